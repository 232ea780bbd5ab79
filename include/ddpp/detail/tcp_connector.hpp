// SPDX-License-Identifier: BSL-1.0
// A connection that is being made in a poll loop: to each address of a host in turn, with its handshake,
// again and again until it succeeds or its time is up.
#pragma once

#include <ddpp/detail/address.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/resolve.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_connector {
 public:
  /// `duplicate`: the other side has or makes a connection to us. `failed`: error() says why.
  enum class state : std::uint8_t { in_progress, connected, duplicate, failed };

  /// Calls from `from`, where that is given. Gives up at `until`, and once everyone has refused for
  /// `refusals` on end: who refuses does not listen.
  tcp_connector(const std::string& host, std::uint16_t port, const introduction& who, deadline until,
                std::chrono::milliseconds refusals, const address& from)
      : host_(host), port_(port), who_(who), until_(until), refusals_(refusals), from_(from) {
    addresses_ = resolve(host, port, error_);
  }

  /// Goes on as far as possible without blocking.
  state advance(const credentials& known) {
    try {
      for (;;) {
        if (const auto done = step(known)) return *done;
      }
    } catch (const error& e) {  // refused by handshake, or no descriptor left
      error_ = e.what();
      return state::failed;
    }
  }

  /// Once connected.
  descriptor take() { return std::move(socket_); }
  const std::string& error_text() const noexcept { return error_; }
  /// Whether the last attempts met hosts that answer, but nobody who listens.
  bool refused() const noexcept { return refused_since_.has_value(); }
  /// Whether it failed because its time was up.
  bool out_of_time() const noexcept { return out_of_time_; }

  void add_to(std::vector<pollfd>& entries) const {
    if (!socket_) return;
    entries.push_back({socket_.get(), handshake_ ? handshake_->events() : short{POLLOUT}, 0});
  }

  /// When `advance` is to be called though nothing has happened.
  deadline next_due() const { return socket_ ? attempt_until_ : next_attempt_; }

 private:
  /// Nothing: go on at once.
  std::optional<state> step(const credentials& known) {
    const auto now = std::chrono::steady_clock::now();
    if (!socket_) return now < next_attempt_ ? std::optional(state::in_progress) : begin(now);
    if (now >= attempt_until_) return next(ETIMEDOUT);
    if (!handshake_) return connecting();
    switch (handshake_->advance(socket_.get(), known)) {
      case client_handshake::state::accepted:
        return state::connected;
      case client_handshake::state::duplicate:
        return state::duplicate;
      case client_handshake::state::broken:
        return next(ECONNRESET);
      case client_handshake::state::in_progress:
        break;
    }
    return state::in_progress;
  }

  std::optional<state> begin(std::chrono::steady_clock::time_point now) {
    if (addresses_.empty()) return state::failed;
    const address& to = addresses_[at_];
    socket_ = open_caller(to, from_);
    if (!socket_) return next(errno);
    attempt_until_ = std::min(until_, now + longest_attempt);
    if (::connect(socket_.get(), to.data(), to.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
      return next(errno);
    }
    return std::nullopt;
  }

  std::optional<state> connecting() {
    if (!poll_until(socket_.get(), POLLOUT, {})) return state::in_progress;
    int code = 0;
    socklen_t length = sizeof(code);
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
    if (code == 0) code = connection_problem(socket_.get());
    if (code != 0) return next(code);
    handshake_.emplace(who_, host_and_port(host_, port_));
    attempt_until_ = until_;  // to give up on a connection that may have been accepted would lose it
    return std::nullopt;
  }

  /// This attempt has failed.
  std::optional<state> next(int code) {
    const auto now = std::chrono::steady_clock::now();
    socket_.reset();
    handshake_.reset();
    tried_ += (tried_.empty() ? "" : ", ") + addresses_[at_].text() + " (" + system_text(code) + ")";
    if (code != ECONNREFUSED)
      refused_since_.reset();
    else if (!refused_since_)
      refused_since_ = now;
    at_ = (at_ + 1) % addresses_.size();
    if (at_ != 0) return std::nullopt;
    error_ = host_and_port(host_, port_) + " cannot be reached; tried: " + std::exchange(tried_, {});
    out_of_time_ = now >= until_;
    if (out_of_time_ || (refused_since_ && now - *refused_since_ >= refusals_)) return state::failed;
    next_attempt_ = std::min(until_, now + pause_.next());
    return std::nullopt;
  }

  std::string host_;
  std::uint16_t port_;
  introduction who_;
  deadline until_;
  std::chrono::milliseconds refusals_;
  address from_;
  std::vector<address> addresses_;
  std::size_t at_ = 0;
  descriptor socket_;
  std::optional<client_handshake> handshake_;
  deadline attempt_until_ = {}, next_attempt_ = {};
  std::optional<std::chrono::steady_clock::time_point> refused_since_;
  bool out_of_time_ = false;
  retry_pause pause_;
  std::string tried_, error_;
};

}  // namespace ddpp::detail
