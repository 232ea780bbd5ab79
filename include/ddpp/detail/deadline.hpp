// SPDX-License-Identifier: BSL-1.0
// Points in time for waits that are given a duration, however long.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <time.h>

namespace ddpp::detail {

/// Now plus `timeout`. Durations beyond a year (milliseconds::max() among them) end in a year.
template <class Rep, class Period>
deadline deadline_after(std::chrono::duration<Rep, Period> timeout) {
  constexpr std::chrono::hours year(24 * 365);
  const deadline now = std::chrono::steady_clock::now();
  if (timeout >= year) return now + year;
  return now + std::chrono::ceil<deadline::duration>(std::max(timeout, timeout.zero()));
}

/// The same, for timeouts of a second or more about 10 ms later and for a fifth of the price: what each
/// blocking operation asks for, and nearly none needs.
inline deadline deadline_soon_after(std::chrono::milliseconds timeout) {
  if (timeout < std::chrono::seconds(1)) return deadline_after(timeout);
  constexpr std::chrono::milliseconds longest_tick(10);  // of the kernel's clock, whose last one is read
  timespec tick{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
  const deadline now(std::chrono::seconds(tick.tv_sec) + std::chrono::nanoseconds(tick.tv_nsec));
  return now + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365)) + longest_tick;
}

/// What is left, rounded up, so that a wait for it does not end early; 0 when there is nothing left.
inline std::chrono::milliseconds time_left(deadline until) {
  const auto left = until - std::chrono::steady_clock::now();
  if (left <= left.zero()) return std::chrono::milliseconds(0);
  return std::chrono::ceil<std::chrono::milliseconds>(left);
}

/// "1800 s", or "250 ms" where whole seconds would not say it.
[[gnu::cold]] inline std::string text_of(std::chrono::milliseconds timeout) {
  const auto count = timeout.count();
  return count % 1000 == 0 ? text(count / 1000, " s") : text(count, " ms");
}

}  // namespace ddpp::detail
