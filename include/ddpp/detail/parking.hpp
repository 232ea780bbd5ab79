// SPDX-License-Identifier: BSL-1.0
// How one who waits for something in shared memory sleeps, and is woken.
//
// The owner announces that it parks: it reads the doorbell, then stores what it wants to be woken for. It
// looks once more for what it waits for, and sleeps while the doorbell is what it was. Who has something for
// it stores that, then reads what the owner wants; if it is this, it clears that (so that only one makes the
// system call), then bumps the doorbell and wakes. All sequentially consistent: one of the two sees the
// other. Every clearing is followed by a bump, so an owner that was cleared does not stay asleep.
#pragma once

#include <ddpp/detail/atomics.hpp>
#include <ddpp/detail/probe.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddpp::detail {

template <class Atomics = native_atomics>
class parking {
 public:
  // The owner's, one thread at a time.

  /// `reasons`: bits, not 0. Returns a ticket for sleep().
  std::uint32_t announce(std::uint32_t reasons) noexcept {
    const std::uint32_t ticket = doorbell_.load(std::memory_order_seq_cst);
    wanted_.store(reasons, std::memory_order_seq_cst);
    DDPP_PROBE(parked);
    return ticket;
  }
  /// Until somebody has woken the owner since announce(), a signal, or for `most` (at least one nanosecond).
  void sleep(std::uint32_t ticket, std::chrono::nanoseconds most) noexcept {
    Atomics::wait(doorbell_, ticket, most);
  }
  /// After sleep(), or instead of it.
  void cancel() noexcept { wanted_.store(0, std::memory_order_relaxed); }

  // Anyone's.

  /// What for, if it is parked or about to be; else 0. Exact only where something else orders it.
  std::uint32_t wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

  /// After a sequentially consistent store of what the owner may wait for.
  void wake(std::uint32_t reason) noexcept {
    if ((wanted_.load(std::memory_order_seq_cst) & reason) == 0) return;
    if (wanted_.exchange(0, std::memory_order_seq_cst) == 0) return;
    DDPP_PROBE(wake_claimed);
    doorbell_.fetch_add(1, std::memory_order_seq_cst);
    DDPP_PROBE(doorbell_rung);
    Atomics::wake_all(doorbell_);
  }

 private:
  using word = typename Atomics::template atomic<std::uint32_t>;

  alignas(64) word wanted_{0};
  alignas(64) word doorbell_{0};
};

}  // namespace ddpp::detail
