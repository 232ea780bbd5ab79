// SPDX-License-Identifier: BSL-1.0
// How a thread waits that works beside a computation: whether it goes on yielding its core, or sleeps.
//
// Among threads that wait for each other a yield comes back within microseconds. Where it comes back late, a
// thread that computes has had the core for a whole turn, as the backward pass has whose gradients are being
// reduced, and so it would be with each further yield. Asleep, the waiter gets the core as soon as it is
// woken: schedulers prefer who has slept to who computes.
#pragma once

#include <ddpp/failure.hpp>

#include <atomic>
#include <chrono>
#include <sched.h>

namespace ddpp::detail {

/// While one lives, this thread works beside a computation of its own rank's.
class beside_computation {
 public:
  beside_computation() noexcept { ++depth_; }
  ~beside_computation() { --depth_; }
  beside_computation(const beside_computation&) = delete;
  beside_computation& operator=(const beside_computation&) = delete;

  static bool here() noexcept { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

/// What such threads of a group have noticed. From any thread.
class shared_core {
 public:
  /// Yields, and then `now` is the time; unless this thread had better sleep: false then.
  bool yield(deadline& now) noexcept {
    const bool beside = beside_computation::here();
    if (beside && now < computed_on_until_.load(std::memory_order_relaxed)) return false;
    const deadline before = now;
    ::sched_yield();
    now = std::chrono::steady_clock::now();
    if (beside && now - before > late) computed_on_until_.store(now + memory, std::memory_order_relaxed);
    return true;
  }

 private:
  static constexpr std::chrono::microseconds late{500};  // a turn on Linux is 1.5 ms and more
  static constexpr std::chrono::milliseconds memory{100};

  std::atomic<deadline> computed_on_until_{deadline{}};
};

}  // namespace ddpp::detail
