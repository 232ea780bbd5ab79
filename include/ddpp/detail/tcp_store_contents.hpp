// SPDX-License-Identifier: BSL-1.0
// What a tcp_store's server does at each request. Knows nothing of connections.
#pragma once

#include <ddpp/detail/store_table.hpp>
#include <ddpp/detail/tcp_store_protocol.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp::detail {

class store_contents {
 public:
  using request = store_wire::request;
  using reply = store_wire::reply;

  /// What one can wait for. Keys and queues are names of different kinds.
  struct topic {
    bool is_queue = false;
    std::string name = {};
    friend bool operator==(const topic&, const topic&) = default;
  };

  struct outcome {
    bool must_wait = false;  ///< for `missing`; nothing has changed
    topic missing = {};
    reply code = reply::ok;
    std::vector<std::string> strings = {};
    std::vector<topic> appeared = {};  ///< what others may have been waiting for
  };

  outcome execute(request what, const std::vector<std::string>& with) {
    try {
      return attempt(what, with);
    } catch (const usage_error& e) {
      outcome refused = result(e.what());
      refused.code = reply::invalid;
      return refused;
    }
  }

  bool is_there(const topic& what) const {
    return what.is_queue ? table_.length(what.name) > 0 : table_.find(what.name) != nullptr;
  }

  /// Undoes `hold`.
  void let_go(const std::string& key) { held_.erase(key); }

  /// Of the keys that a waiting request names, those that are not there.
  std::vector<std::string> missing(request what, const std::vector<std::string>& with) const {
    std::vector<std::string> result;
    for (const std::string& key : with) {
      if (!is_there({what == request::queue_pop, key})) result.push_back(key);
    }
    return result;
  }

 private:
  outcome attempt(request what, const std::vector<std::string>& with) {
    check_strings(what, with);
    switch (what) {
      case request::set:
      case request::multi_set:
        return set(with);
      case request::get:
        return get(with);
      case request::add:
        return appeared({false, with[0]}, text(table_.add(with[0], number(with[1]))));
      case request::compare_set:
        return appeared({false, with[0]}, table_.compare_set(with[0], with[1], with[2]));
      case request::append:
        return append(with[0], with[1]);
      case request::check:
        return result(table_.has_all(with) ? "1" : "0");
      case request::wait:
        return wait(with);
      case request::delete_key:
        return result(table_.erase(with[0]) ? "1" : "0");
      case request::num_keys:
        return result(text(table_.size()));
      case request::queue_push:
        table_.push(with[0], with[1]);
        return appeared({true, with[0]}, {});
      case request::queue_pop:
        return queue_pop(with[0]);
      case request::queue_length:
        return result(text(table_.length(with[0])));
      case request::hold:
        held_.set(with[0], {});
        return result({});
      case request::is_held:
        return result(held_.find(with[0]) != nullptr ? "1" : "0");
      case request::cancel:
        break;
    }
    throw usage_error("no such request");
  }

  /// How many strings belong to a request, and which of them are keys.
  static void check_strings(request what, const std::vector<std::string>& with) {
    std::size_t count = 1, keys_every = with.size() + 1;
    switch (what) {
      case request::set:
      case request::add:
      case request::append:
      case request::queue_push:
        count = 2;
        break;
      case request::compare_set:
        count = 3;
        break;
      case request::num_keys:
        count = 0;
        break;
      case request::get:
      case request::check:
      case request::wait:
        count = with.size(), keys_every = 1;
        break;
      case request::multi_set:
        count = with.size() / 2 * 2, keys_every = 2;
        break;
      default:
        break;
    }
    if (with.size() != count) throw usage_error("this request does not come with so many strings");
    for (std::size_t i = 0; i < with.size(); i += keys_every) {
      if (with[i].size() <= store_wire::longest_key) continue;
      throw usage_error(text("a key may have 4096 bytes; this one has ", with[i].size()));
    }
  }

  static std::int64_t number(std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (problem != std::errc() || end != digits.data() + digits.size())
      throw usage_error("add needs a number");
    return value;
  }

  static outcome result(std::string value) {
    outcome done;
    done.strings.push_back(std::move(value));
    return done;
  }
  static outcome appeared(topic what, std::string value) {
    outcome done = result(std::move(value));
    done.appeared.push_back(std::move(what));
    return done;
  }
  static outcome wait_for(topic what) {
    outcome parked;
    parked.must_wait = true;
    parked.missing = std::move(what);
    return parked;
  }

  outcome set(const std::vector<std::string>& with) {
    outcome done;
    for (std::size_t i = 0; i < with.size(); i += 2) {
      table_.set(with[i], with[i + 1]);
      done.appeared.push_back({false, with[i]});
    }
    return done;
  }

  outcome get(const std::vector<std::string>& with) const {
    outcome done = wait(with);
    if (done.must_wait) return done;
    std::size_t bytes = 0;
    for (const std::string& key : with) {
      const std::string& value = *table_.find(key);
      bytes += sizeof(std::uint32_t) + value.size();
      if (bytes > store_wire::longest_body)
        throw usage_error("these values do not fit one answer: ask for fewer");
      done.strings.push_back(value);
    }
    return done;
  }

  outcome append(const std::string& key, const std::string& tail) {
    const std::string* before = table_.find(key);
    if (before != nullptr && before->size() + tail.size() > store_wire::longest_value) {
      throw usage_error(text("append: the value of ", quoted_keys({key}), " would be longer than 64 MiB"));
    }
    table_.append(key, tail);
    return appeared({false, key}, {});
  }

  outcome wait(const std::vector<std::string>& with) const {
    for (const std::string& key : with) {
      if (table_.find(key) == nullptr) return wait_for({false, key});
    }
    return {};
  }

  outcome queue_pop(const std::string& key) {
    auto value = table_.pop(key);
    return value ? result(*std::move(value)) : wait_for({true, key});
  }

  store_table table_;
  store_table held_;
};

}  // namespace ddpp::detail
