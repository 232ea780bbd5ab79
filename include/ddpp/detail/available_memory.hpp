// SPDX-License-Identifier: BSL-1.0
// How much memory a process can still get before the system kills somebody for it.
#pragma once

#include <ddpp/detail/cgroup.hpp>
#include <ddpp/detail/small_file.hpp>
#include <ddpp/detail/text.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace ddpp::detail {

/// The number that follows `label` in `text`, or `otherwise` if none does.
[[gnu::cold]] inline std::size_t number_after(std::string_view label, std::string_view text,
                                              std::size_t otherwise) {
  const std::size_t found = text.find(label);
  if (found == text.npos) return otherwise;
  const std::size_t begin = text.find_first_not_of(" \t", found + label.size());
  if (begin == text.npos) return otherwise;
  std::size_t number = otherwise;
  std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return number;
}

inline constexpr std::size_t unlimited_memory = std::numeric_limits<std::size_t>::max();

/// What a memory cgroup leaves to its members; pages of files that can be dropped count as free.
[[gnu::cold]] inline std::size_t memory_left_in_cgroup(const std::string& folder, const char* limit_name,
                                                       const char* usage_name) {
  const auto read = [&](const char* name) { return read_small_file((folder + name).c_str()); };
  const std::size_t limit = number_after("", read(limit_name), unlimited_memory);
  if (limit == unlimited_memory) return limit;
  const std::string stat = read("/memory.stat");
  const auto cached_in = [&](const char* list) {  // version 1 tells this of the group's descendants apart
    return number_after(text("\ntotal_", list), stat, number_after(text("\n", list), stat, 0));
  };
  const std::size_t cached = cached_in("inactive_file ") + cached_in("active_file ");
  const std::size_t usage = number_after("", read(usage_name), 0), fixed = usage - std::min(usage, cached);
  return limit - std::min(limit, fixed);
}

/// In bytes. What the system does not tell is no limit.
[[gnu::cold]] inline std::size_t available_memory() {
  const std::string system = read_small_file("/proc/meminfo");
  constexpr std::size_t kib = 1024;
  const std::size_t free_kib = number_after("MemAvailable:", system, unlimited_memory / kib),
                    swap = number_after("SwapFree:", system, 0) * kib;
  std::size_t available = free_kib * kib;
  const auto limit_by = [&](std::string_view label, const char* mount, const char* limit_name,
                            const char* usage_name) {
    for_each_cgroup(label, mount, [&](const std::string& folder) {
      available = std::min(available, memory_left_in_cgroup(folder, limit_name, usage_name));
    });
  };
  limit_by("0::", "/sys/fs/cgroup", "/memory.max", "/memory.current");
  limit_by(":memory:", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes");
  return available > unlimited_memory - swap ? unlimited_memory : available + swap;
}

}  // namespace ddpp::detail
