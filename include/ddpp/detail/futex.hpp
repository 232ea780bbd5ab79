// SPDX-License-Identifier: BSL-1.0
// Sleeping on a word of memory that threads or processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ddpp::detail {

using futex_word = std::atomic<std::uint32_t>;
static_assert(sizeof(futex_word) == 4 && futex_word::is_always_lock_free);

/// Sleeps while the word holds `expected`, until woken, a signal, or for `most` (at least one nanosecond).
inline void futex_wait(futex_word& word, std::uint32_t expected, std::chrono::nanoseconds most) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(seconds.count());
  time.tv_nsec = static_cast<long>((most - seconds).count());
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &time, nullptr, 0);
}

inline void futex_wake_all(futex_word& word) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ddpp::detail
