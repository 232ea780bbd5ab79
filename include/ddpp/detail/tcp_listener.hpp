// SPDX-License-Identifier: BSL-1.0
// A listening socket in a poll loop, with those who have connected and not proven themselves yet. Their
// number and their time are bounded: whoever connects and says nothing costs one descriptor for a while, and
// stalls nobody.
#pragma once

#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_listener {
 public:
  static constexpr std::size_t most_strangers = 256;
  /// A stranger has this time to prove itself, and less when others queue behind it.
  static constexpr std::chrono::milliseconds longest_stay{10'000}, shortest_stay{100};
  static constexpr int accepted_at_once = 64;

  /// Throws authentication_error when proofs are asked for and there is no libcrypto.
  tcp_listener(descriptor socket, const credentials& known) : socket_(std::move(socket)), known_(known) {
    if (known_.proves()) libcrypto::instance();
    strangers_.reserve(most_strangers);
  }

  /// Accepts, goes on with all handshakes, and calls `welcome(descriptor, introduction)` for each who has
  /// proven itself and whom `expected(introduction)` (an admission) wants. Never blocks.
  template <class Expected, class Welcome>
  void serve(const Expected& expected, const Welcome& welcome) {
    const auto now = std::chrono::steady_clock::now();
    accept_some(now);
    for (std::size_t i = 0; i < strangers_.size();) {
      stranger& each = strangers_[i];
      const auto state = each.handshake.advance(each.socket.get(), known_, expected);
      if (state == server_handshake::state::in_progress && now - each.since < longest_stay) {
        ++i;
        continue;
      }
      if (state == server_handshake::state::accepted) {
        welcome(std::move(each.socket), each.handshake.peer());
      }
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  /// Appends what to poll for.
  void add_to(std::vector<pollfd>& entries) const {
    if (accepting()) entries.push_back({socket_.get(), POLLIN, 0});
    for (const stranger& each : strangers_) {
      entries.push_back({each.socket.get(), each.handshake.events(), 0});
    }
  }

  /// When `serve` is to be called though nothing has happened: for a stranger's time, or to accept again.
  deadline next_due() const {
    deadline due = deadline::max();
    if (!strangers_.empty()) due = strangers_.front().since + longest_stay;
    if (!accepting()) due = std::min(due, accept_again_);
    return due;
  }

  std::size_t strangers() const noexcept { return strangers_.size(); }
  int get() const noexcept { return socket_.get(); }

 private:
  struct stranger {
    descriptor socket;
    server_handshake handshake;
    std::chrono::steady_clock::time_point since;
  };

  bool accepting() const { return std::chrono::steady_clock::now() >= accept_again_; }

  void accept_some(std::chrono::steady_clock::time_point now) {
    if (now < accept_again_) return;
    for (int i = 0; i < accepted_at_once; ++i) {
      if (strangers_.size() == most_strangers) {
        const auto oldest_may_stay = strangers_.front().since + shortest_stay;
        if (now < oldest_may_stay) {
          accept_again_ = oldest_may_stay;
          return;
        }
        strangers_.erase(strangers_.begin());
      }
      descriptor socket = accept_on(socket_.get());
      if (socket) {
        strangers_.push_back({std::move(socket), server_handshake(known_), now});
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // No descriptor left: the oldest stranger's is the next one's; without strangers, wait for better
        // times.
        if (strangers_.empty())
          accept_again_ = now + shortest_stay;
        else
          strangers_.erase(strangers_.begin());
        return;
      } else if (errno != ECONNABORTED) {
        return;
      }
    }
  }

  descriptor socket_;
  credentials known_;
  std::vector<stranger> strangers_;  // oldest first
  std::chrono::steady_clock::time_point accept_again_{};
};

}  // namespace ddpp::detail
