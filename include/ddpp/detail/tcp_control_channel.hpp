// SPDX-License-Identifier: BSL-1.0
// A connection that carries control messages in a poll loop, without blocking.
#pragma once

#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace ddpp::detail {

class control_channel {
 public:
  explicit control_channel(descriptor socket) : socket_(std::move(socket)) {
    expect_prompt_reader(socket_.get());
  }

  /// Queues the message and sends what the socket takes.
  void send(const std::string& encoded) {
    if (out_.size() < most_queued) out_ += encoded;
    flush();
  }

  void flush() {
    std::size_t sent = 0;
    while (sent < out_.size()) {
      const ssize_t now =
          ::send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (now < 0)
        sent = out_.size();  // the end shows when receiving
      else
        sent += static_cast<std::size_t>(now);
    }
    out_.erase(0, sent);
  }

  /// Calls `take(message)` for each that has come; false is its answer to nonsense. False: the connection has
  /// ended, carries nonsense, or its other end has not read for very long.
  template <class Take>
  bool receive(const Take& take) {
    bool open = out_.size() < most_queued;
    for (;;) {
      char buffer[16384];
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0) {
        end_ = end_without_goodbye(got < 0 ? errno : 0);
        open = false;
        break;
      }
      in_.append(buffer, static_cast<std::size_t>(got));
      if (in_.size() > 2 * control_wire::longest_body) break;
    }
    control_wire::message message;
    for (;;) {
      switch (parse(in_, message)) {
        case control_wire::parsed::nonsense:
          return false;
        case control_wire::parsed::incomplete:
          return open;
        case control_wire::parsed::message:
          if (!take(message)) return false;
      }
    }
  }

  /// How it ended, once it has.
  const char* end() const noexcept { return end_; }

  /// Whether there was something to do when last polled.
  bool is_ready() const noexcept { return ready_ || out_.size() >= most_queued; }
  void note(bool is_ready) noexcept { ready_ = is_ready; }
  pollfd entry() const noexcept {
    return {socket_.get(), static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  }

 private:
  static constexpr std::size_t most_queued = std::size_t{8} << 20;

  descriptor socket_;
  bool ready_ = true;
  const char* end_ = end_without_goodbye(0);
  std::string in_, out_;
};

}  // namespace ddpp::detail
