// SPDX-License-Identifier: BSL-1.0
// Which last-level cache the cores share that this thread may run on.
#pragma once

#include <ddpp/detail/small_file.hpp>
#include <ddpp/detail/text.hpp>

#include <charconv>
#include <cstdint>
#include <sched.h>
#include <string>

namespace ddpp::detail {

/// f(first, last) for each range of a list such as "0-3,8,10-11".
template <class F>
[[gnu::cold]] void for_each_range(const std::string& list, F f) {
  const char *at = list.data(), *const end = at + list.size();
  while (at < end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc{}) return;
    int last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    f(first, last);
    at = read.ptr < end && *read.ptr == ',' ? read.ptr + 1 : end;
  }
}

/// A number that is equal where the cache is, and never 0; 0 if there are several. Where the system does not
/// tell (some containers, processors with two levels only), it is as if all shared one.
[[gnu::cold]] inline std::uint64_t last_level_cache() {
  constexpr std::uint64_t unknown = 1;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return unknown;
  int core = 0;
  while (core < CPU_SETSIZE && !CPU_ISSET(core, &allowed)) ++core;
  const std::string sharers =
      read_small_file(text("/sys/devices/system/cpu/cpu", core, "/cache/index3/shared_cpu_list").c_str());
  int shared = 0, lowest = -1;
  for_each_range(sharers, [&](int first, int last) {
    if (lowest < 0) lowest = first;
    for (int i = first; i <= last && i < CPU_SETSIZE; ++i) shared += CPU_ISSET(i, &allowed) ? 1 : 0;
  });
  if (lowest < 0) return unknown;
  return shared == CPU_COUNT(&allowed) ? static_cast<std::uint64_t>(lowest) + 2 : 0;
}

}  // namespace ddpp::detail
