// SPDX-License-Identifier: BSL-1.0
// The control groups of this process.
#pragma once

#include <ddpp/detail/small_file.hpp>

#include <string>
#include <string_view>

namespace ddpp::detail {

/// f(folder) for the group that this process is in and for all around it, which limit it, too. `label` is how
/// the hierarchy is called in /proc/self/cgroup: "0::" for version 2, or ":memory:" and the like for
/// version 1. A folder need not exist, as containers see part of the tree.
template <class F>
[[gnu::cold]] void for_each_cgroup(std::string_view label, std::string_view mount, F f) {
  const std::string groups = read_small_file("/proc/self/cgroup");
  const std::size_t found = groups.find(label);
  if (found == groups.npos) return;
  const std::size_t begin = found + label.size();
  std::string path = groups.substr(begin, groups.find('\n', begin) - begin);
  for (;; path.resize(path.rfind('/'))) {
    f(std::string(mount) + path);
    if (path.find('/') == path.npos) return;
  }
}

}  // namespace ddpp::detail
