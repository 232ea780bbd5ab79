// SPDX-License-Identifier: BSL-1.0
// Why a group has failed: what this rank has proposed to the hub, and what was ruled.
#pragma once

#include <ddpp/detail/socket.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

namespace ddpp::detail {

class tcp_first_cause {
 public:
  explicit tcp_first_cause(const wake_event& control_thread) : control_thread_(control_thread) {}

  /// From any thread: has a cause proposed, and returns the ruling, which may be an earlier one. Waits for it
  /// for a moment (`ruling_time` at most, when the hub does not answer).
  failure spread(const failure& cause) {
    std::unique_lock lock(mutex_);
    if (!ruling_) {
      if (!wanted_) wanted_ = cause;
      control_thread_.set();
      changed_.wait_for(lock, ruling_time, [&] { return ruling_.has_value(); });
      if (!ruling_) ruling_ = cause;
    }
    return *ruling_;
  }

  // On the control thread.

  /// What callers of `spread` want to be proposed, once.
  std::optional<failure> take_wanted() {
    const std::lock_guard lock(mutex_);
    return is_ruled_ ? std::nullopt : std::exchange(wanted_, std::nullopt);
  }
  /// False: there is a proposal or a ruling already.
  bool propose(failure cause, deadline now) {
    if (proposal_ || is_ruled()) return false;
    cause.text.resize(std::min(cause.text.size(), longest_failure_text));
    proposal_ = std::move(cause);
    overdue_at_ = now + ruling_time;
    return true;
  }
  const std::optional<failure>& proposal() const noexcept { return proposal_; }
  void withdraw() {
    proposal_.reset();
    overdue_at_ = deadline::max();
  }
  /// When this rank rules alone.
  deadline overdue_at() const noexcept { return overdue_at_; }

  bool is_ruled() const {
    const std::lock_guard lock(mutex_);
    return is_ruled_;
  }
  std::optional<failure> ruling() const {
    const std::lock_guard lock(mutex_);
    return is_ruled_ ? ruling_ : std::nullopt;
  }
  /// Makes it the ruling, and returns what is the ruling for this rank. Nothing: there was one.
  std::optional<failure> rule(failure cause) {
    withdraw();
    cause.text.resize(std::min(cause.text.size(), longest_failure_text));
    const std::lock_guard lock(mutex_);
    if (is_ruled_) return std::nullopt;
    is_ruled_ = true;
    if (!ruling_) ruling_ = std::move(cause);  // else a caller of spread() went ahead alone
    changed_.notify_all();
    return ruling_;
  }

 private:
  static constexpr std::chrono::milliseconds ruling_time{2'000};

  const wake_event& control_thread_;
  std::optional<failure> proposal_;  // sent to the hub
  deadline overdue_at_ = deadline::max();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<failure> wanted_, ruling_;
  bool is_ruled_ = false;  // ruling_ is the hub's, or this rank could not hear it in time
};

}  // namespace ddpp::detail
