// SPDX-License-Identifier: BSL-1.0
// A tcp_store's client: one connection per call in progress, kept for the next one.
#pragma once

#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/detail/tcp_store_protocol.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp::detail {

class store_client {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Connects, trying again until the timeout. Throws timeout_error and authentication_error.
  store_client(const std::string& host, std::uint16_t port, const credentials& known, milliseconds timeout)
      : host_(host), port_(port), known_(known), reached_at_(host) {
    auto first = std::make_unique<pool>();
    first->idle.push_back(connect(deadline_after(timeout), when_refused::retry));
    const int fd = first->idle.back().get();
    local_address_ = address::local_of(fd).host();
    if (const address server = address::peer_of(fd); server.length() > 0) reached_at_ = server.host();
    pools_.store(first.release());
  }
  ~store_client() {
    for (pool* each = pools_.load(); each != nullptr;) {
      const std::unique_ptr<pool> owned(std::exchange(each, each->before));
    }
  }
  store_client(const store_client&) = delete;
  store_client& operator=(const store_client&) = delete;

  const std::string& local_address() const noexcept { return local_address_; }

  void set(const std::string& key, std::string_view value, milliseconds timeout) {
    call(request::set, {key, value}, 1, timeout);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, milliseconds timeout) {
    std::vector<std::string> values = call(request::get, views(keys), keys.size(), timeout);
    if (values.size() != keys.size()) throw_nonsense();
    return values;
  }
  std::int64_t add(const std::string& key, std::int64_t amount, milliseconds timeout) {
    return number(call(request::add, {key, text(amount)}, 1, timeout));
  }
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired,
                          milliseconds timeout) {
    return single(call(request::compare_set, {key, expected, desired}, 1, timeout));
  }
  void append(const std::string& key, std::string_view tail, milliseconds timeout) {
    call(request::append, {key, tail}, 1, timeout);
  }
  bool check(const std::vector<std::string>& keys, milliseconds timeout) {
    return number(call(request::check, views(keys), keys.size(), timeout)) != 0;
  }
  void wait(const std::vector<std::string>& keys, milliseconds timeout) {
    call(request::wait, views(keys), keys.size(), timeout);
  }
  bool delete_key(const std::string& key, milliseconds timeout) {
    return number(call(request::delete_key, {key}, 1, timeout)) != 0;
  }
  std::int64_t num_keys(milliseconds timeout) { return number(call(request::num_keys, {}, 0, timeout)); }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                 milliseconds timeout) {
    check_multi_set(keys, values);
    strings pairs;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      pairs.push_back(keys[i]);
      pairs.push_back(values[i]);
    }
    call(request::multi_set, pairs, 0, timeout);
  }
  void queue_push(const std::string& key, std::string_view value, milliseconds timeout) {
    call(request::queue_push, {key, value}, 1, timeout);
  }
  std::string queue_pop(const std::string& key, milliseconds timeout) {
    return single(call(request::queue_pop, {key}, 1, timeout));
  }
  /// As long as the connection lasts that the result is.
  std::shared_ptr<void> hold(const std::string& key, milliseconds timeout) {
    const deadline until = deadline_after(std::max(timeout, answer_time));
    auto connection = std::make_shared<descriptor>(connect(until, when_refused::give_up));
    const std::string message = encoded(request::hold, {key});
    if (send_all(connection->get(), std::as_bytes(std::span(message)), until) == transfer::closed)
      throw_gone();
    if (receive(connection->get(), until).code != reply::ok) throw_nonsense();
    return connection;
  }
  bool is_held(const std::string& key, milliseconds timeout) {
    return number(call(request::is_held, {key}, 1, timeout)) != 0;
  }
  std::int64_t queue_length(const std::string& key, milliseconds timeout) {
    return number(call(request::queue_length, {key}, 1, timeout));
  }

 private:
  using request = store_wire::request;
  using reply = store_wire::reply;
  using strings = std::vector<std::string_view>;

  static constexpr std::size_t most_idle = 8;
  /// A server that is there answers within this time, a request taken back included.
  static constexpr milliseconds answer_time{1'000};
  static constexpr milliseconds connect_time{5'000};

  /// Connections that nobody uses now. After a fork the child begins a new pool (the old one's mutex may have
  /// been held by a thread that does not exist there).
  struct pool {
    std::mutex mutex = {};
    std::vector<descriptor> idle = {};
    fork_guard guard = {};
    pool* before = nullptr;
  };

  struct answer {
    reply code = reply::ok;
    std::vector<std::string> strings = {};
  };

  static strings views(const std::vector<std::string>& keys) { return {keys.begin(), keys.end()}; }

  [[gnu::cold]] std::string where() const { return text("the store at ", host_and_port(host_, port_)); }

  [[noreturn, gnu::cold]] void throw_gone() const {
    throw init_error(text(where(), " has closed the connection: the process that served it has ended"));
  }

  /// One request, one reply; `keys` is how many of the strings are keys that an error message should name.
  std::vector<std::string> call(request what, const strings& with, std::size_t keys, milliseconds timeout) {
    const std::string message = encoded(what, with);
    const deadline until = deadline_after(timeout);
    const deadline grace = std::max(until, deadline_after(answer_time));
    descriptor connection = take(std::max(until, deadline_after(connect_time)));
    const auto sent = send_all(connection.get(), std::as_bytes(std::span(message)), grace);
    if (sent == transfer::closed) throw_gone();
    bool in_time = sent == transfer::done && poll_until(connection.get(), POLLIN, until);
    if (sent == transfer::done && !in_time) in_time = take_back(connection.get());
    answer got;
    if (in_time) {
      got = receive(connection.get(), std::max(until, deadline_after(answer_time)));
      give_back(std::move(connection));
    }
    if (got.code == reply::invalid) throw usage_error(text(where(), ": ", got.strings.front()));
    if (in_time && got.code == reply::ok) return std::move(got.strings);
    throw_timeout(
        in_time ? got.strings : std::vector<std::string>(with.begin(), with.begin() + std::ptrdiff_t(keys)),
        timeout);
  }

  /// Takes a request back that waits at the server. Whether an answer came then.
  bool take_back(int fd) const {
    const std::string message = encoded(request::cancel, {});
    const deadline until = deadline_after(answer_time);
    return send_all(fd, std::as_bytes(std::span(message)), until) == transfer::done &&
           poll_until(fd, POLLIN, until);
  }

  std::string encoded(request what, const strings& with) const {
    for (const std::string_view each : with) {
      if (each.size() > store_wire::longest_value) {
        throw usage_error(
            text(where(), " takes values of up to 64 MiB; this one has ", each.size(), " bytes"));
      }
    }
    if (store_wire::body_bytes(with) > store_wire::longest_body) {
      throw usage_error(text(where(), " takes up to 65 MiB in one call: use several"));
    }
    std::string message;
    store_wire::encode(message, what, with);
    return message;
  }

  answer receive(int fd, deadline until) const {
    store_wire::header head;
    check_received(receive_all(fd, std::as_writable_bytes(std::span(&head, 1)), until));
    if (!plausible(head, static_cast<std::uint32_t>(reply::cancelled))) throw_nonsense();
    std::string body(head.bytes, '\0');
    check_received(receive_all(fd, std::as_writable_bytes(std::span(body)), until));
    const auto decoded = store_wire::decode(body, head.strings);
    if (!decoded || (head.code == static_cast<std::uint32_t>(reply::invalid) && decoded->empty()))
      throw_nonsense();
    return {static_cast<reply>(head.code), {decoded->begin(), decoded->end()}};
  }

  void check_received(transfer how) const {
    if (how == transfer::closed) throw_gone();
    if (how == transfer::timed_out) throw timeout_error(text(where(), " stopped in the middle of an answer"));
  }

  [[noreturn, gnu::cold]] void throw_nonsense() const {
    throw init_error(text(where(), " answers nonsense"));
  }

  [[noreturn, gnu::cold]] void throw_timeout(const std::vector<std::string>& keys,
                                             milliseconds timeout) const {
    if (keys.empty()) throw timeout_error(text(where(), " did not answer within ", text_of(timeout)));
    throw timeout_error(text(where(), ": ", quoted_keys(keys), " did not come within ", text_of(timeout)));
  }

  std::string single(std::vector<std::string> answered) const {
    if (answered.size() != 1) throw_nonsense();
    return std::move(answered.front());
  }
  std::int64_t number(std::vector<std::string> answered) const {
    return std::strtoll(single(std::move(answered)).c_str(), nullptr, 10);
  }

  descriptor connect(deadline until, when_refused refused) const {
    descriptor made =
        connect_and_prove(reached_at_, port_, known_, {purpose::store, {}, -1, -1}, until, refused);
    expect_prompt_reader(made.get());
    return made;
  }

  pool& current() {
    pool* now = pools_.load();
    while (now->guard.in_child()) {
      auto fresh = std::make_unique<pool>();
      fresh->before = now;
      if (pools_.compare_exchange_strong(now, fresh.get())) return *fresh.release();
    }
    return *now;
  }

  descriptor take(deadline until) {
    pool& from = current();
    {
      const std::lock_guard lock(from.mutex);
      if (!from.idle.empty()) {
        descriptor connection = std::move(from.idle.back());
        from.idle.pop_back();
        return connection;
      }
    }
    return connect(until, when_refused::give_up);
  }

  void give_back(descriptor connection) {
    pool& to = current();
    const std::lock_guard lock(to.mutex);
    if (to.idle.size() < most_idle) to.idle.push_back(std::move(connection));
  }

  std::string host_;
  std::uint16_t port_;
  credentials known_;
  std::string reached_at_;  // not asked for by name again: that may block without a limit
  std::string local_address_;
  std::atomic<pool*> pools_{nullptr};
};

}  // namespace ddpp::detail
