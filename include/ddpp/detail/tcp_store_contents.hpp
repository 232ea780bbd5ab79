// SPDX-License-Identifier: BSL-1.0
// What a tcp_store's server keeps, and what each request does to it. Knows nothing of connections.
#pragma once

#include <ddpp/detail/tcp_store_protocol.hpp>

#include <charconv>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddpp::detail {

class store_contents {
 public:
  using request = store_wire::request;
  using reply = store_wire::reply;
  using strings = std::vector<std::string_view>;

  /// Keys and queues are names of different kinds.
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

  outcome execute(request what, const strings& with) {
    for (const std::string_view key : keys_of(what, with)) {
      if (key.size() > store_wire::longest_key) return invalid("a key is longer than 4096 bytes");
    }
    switch (what) {
      case request::set:
      case request::multi_set:
        return set(with);
      case request::get:
        return get(with);
      case request::add:
        return add(with);
      case request::compare_set:
        return compare_set(with);
      case request::append:
        return append(with);
      case request::check:
        return check(with);
      case request::wait:
        return wait(with);
      case request::delete_key:
        return delete_key(with);
      case request::num_keys:
        return result(std::to_string(values_.size()));
      case request::queue_push:
        return queue_push(with);
      case request::queue_pop:
        return queue_pop(with);
      case request::queue_length:
        return queue_length(with);
      case request::cancel:
        break;
    }
    return invalid("no such request");
  }

  bool is_there(const topic& what) const {
    return what.is_queue ? queues_.contains(what.name) : values_.contains(what.name);
  }

  /// Of the keys that a waiting request names, those that are not there, as far as they fit an error message.
  std::vector<std::string> missing(request what, const strings& with) const {
    std::vector<std::string> result;
    for (const std::string_view key : with) {
      if (result.size() == 16) break;
      if (!is_there({what == request::queue_pop, std::string(key)})) result.emplace_back(key);
    }
    return result;
  }

 private:
  static strings keys_of(request what, const strings& with) {
    strings keys = with;
    if (what == request::multi_set || what == request::set) {
      for (std::size_t i = 0; i < keys.size() / 2; ++i) keys[i] = keys[2 * i];
      keys.resize(keys.size() / 2);
    } else if (what != request::get && what != request::wait && what != request::check) {
      keys.resize(std::min<std::size_t>(keys.size(), 1));
    }
    return keys;
  }

  static outcome result(std::string value) {
    outcome done;
    done.strings.push_back(std::move(value));
    return done;
  }
  static outcome invalid(std::string why) {
    outcome refused = result(std::move(why));
    refused.code = reply::invalid;
    return refused;
  }
  static outcome appeared(topic what) {
    outcome done;
    done.appeared.push_back(std::move(what));
    return done;
  }
  static outcome wait_for(topic what) {
    outcome parked;
    parked.must_wait = true;
    parked.missing = std::move(what);
    return parked;
  }

  outcome set(const strings& with) {
    if (with.size() % 2 != 0) return invalid("a key without a value");
    outcome done;
    for (std::size_t i = 0; i < with.size(); i += 2) {
      done.appeared.push_back({false, std::string(with[i])});
      values_[done.appeared.back().name] = with[i + 1];
    }
    return done;
  }

  outcome get(const strings& with) {
    if (outcome parked = wait(with); parked.must_wait) return parked;
    outcome done;
    std::size_t bytes = 0;
    for (const std::string_view key : with) {
      const std::string& value = values_.at(std::string(key));
      bytes += sizeof(std::uint32_t) + value.size();
      if (bytes > store_wire::longest_body)
        return invalid("the values are more than one reply can hold: ask for fewer");
      done.strings.push_back(value);
    }
    return done;
  }

  outcome add(const strings& with) {
    std::int64_t amount = 0, counter = 0;
    if (with.size() != 2 || !parse(with[1], amount)) return invalid("add needs a key and a number");
    const std::string key(with[0]);
    const auto at = values_.find(key);
    if (at != values_.end() && !parse(at->second, counter)) {
      return invalid("the value of '" + key + "' is not a decimal number");
    }
    if (__builtin_add_overflow(counter, amount, &counter))
      return invalid("the counter '" + key + "' would overflow");
    outcome done = appeared({false, key});
    done.strings.push_back(values_[key] = std::to_string(counter));
    return done;
  }

  outcome compare_set(const strings& with) {
    if (with.size() != 3) return invalid("compare_set needs a key and two values");
    const std::string key(with[0]);
    const auto at = values_.find(key);
    if (at == values_.end() ? !with[1].empty() : at->second != with[1]) {
      return result(at == values_.end() ? std::string() : at->second);
    }
    outcome done = appeared({false, key});
    done.strings.push_back(values_[key] = with[2]);
    return done;
  }

  outcome append(const strings& with) {
    if (with.size() != 2) return invalid("append needs a key and a value");
    const std::string key(with[0]);
    const auto at = values_.find(key);
    if (at != values_.end() && at->second.size() + with[1].size() > store_wire::longest_value) {
      return invalid("the value of '" + key + "' would be longer than 64 MiB");
    }
    values_[key] += with[1];
    return appeared({false, key});
  }

  outcome check(const strings& with) const {
    for (const std::string_view key : with) {
      if (!values_.contains(std::string(key))) return result("0");
    }
    return result("1");
  }

  outcome wait(const strings& with) const {
    for (const std::string_view key : with) {
      if (topic each{false, std::string(key)}; !is_there(each)) return wait_for(std::move(each));
    }
    return {};
  }

  outcome delete_key(const strings& with) {
    if (with.size() != 1) return invalid("delete_key needs a key");
    return result(values_.erase(std::string(with[0])) != 0 ? "1" : "0");
  }

  outcome queue_push(const strings& with) {
    if (with.size() != 2) return invalid("queue_push needs a key and a value");
    topic queue{true, std::string(with[0])};
    queues_[queue.name].emplace_back(with[1]);
    return appeared(std::move(queue));
  }

  outcome queue_pop(const strings& with) {
    if (with.size() != 1) return invalid("queue_pop needs a key");
    topic queue{true, std::string(with[0])};
    const auto at = queues_.find(queue.name);
    if (at == queues_.end()) return wait_for(std::move(queue));
    outcome done = result(std::move(at->second.front()));
    at->second.pop_front();
    if (at->second.empty()) queues_.erase(at);  // an empty queue is no queue
    return done;
  }

  outcome queue_length(const strings& with) const {
    if (with.size() != 1) return invalid("queue_length needs a key");
    const auto at = queues_.find(std::string(with[0]));
    return result(std::to_string(at == queues_.end() ? 0 : at->second.size()));
  }

  static bool parse(std::string_view text, std::int64_t& number) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    return code == std::errc() && end == text.data() + text.size();
  }

  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;
};

}  // namespace ddpp::detail
