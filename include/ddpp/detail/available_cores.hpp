// SPDX-License-Identifier: BSL-1.0
// How many cores a process can keep busy.
#pragma once

#include <ddpp/detail/cgroup.hpp>
#include <ddpp/detail/small_file.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sched.h>
#include <string>
#include <string_view>
#include <system_error>

namespace ddpp::detail {

/// The cores that a quota such as "150000 100000" (microseconds of each period of so many) is worth; infinite
/// for "max 100000", "-1" and what is no quota.
[[gnu::cold]] inline double cores_of_quota(std::string_view quota) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const char* const end = quota.data() + quota.size();
  long long allowed = 0, period = 0;
  const auto first = std::from_chars(quota.data(), end, allowed);
  if (first.ec != std::errc{} || allowed <= 0) return infinite;
  const std::string_view rest(first.ptr, static_cast<std::size_t>(end - first.ptr));
  const std::size_t digits = std::min(rest.find_first_not_of(" \n"), rest.size());
  const auto second = std::from_chars(first.ptr + digits, end, period);
  if (second.ec != std::errc{} || period <= 0) return infinite;
  return static_cast<double>(allowed) / static_cast<double>(period);
}

/// By this thread's affinity and the quotas of the process's control groups. Infinite where neither is known.
[[gnu::cold]] inline double available_cores() {
  double cores = std::numeric_limits<double>::infinity();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = CPU_COUNT(&allowed);
  const auto read = [](const std::string& path) { return read_small_file(path.c_str()); };
  for_each_cgroup("0::", "/sys/fs/cgroup", [&](const std::string& folder) {
    cores = std::min(cores, cores_of_quota(read(folder + "/cpu.max")));
  });
  for (const char* const label : {":cpu:", ":cpu,cpuacct:", ":cpuacct,cpu:"}) {
    for_each_cgroup(label, "/sys/fs/cgroup/cpu", [&](const std::string& folder) {
      cores = std::min(
          cores, cores_of_quota(read(folder + "/cpu.cfs_quota_us") + read(folder + "/cpu.cfs_period_us")));
    });
  }
  return cores;
}

}  // namespace ddpp::detail
