// SPDX-License-Identifier: BSL-1.0
// What could be left behind: files, descriptors, mappings, threads, processes. Looked at before and after.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "process.hpp"

namespace support {

struct holdings {
  std::set<std::string> files;  ///< ddpp's in /dev/shm
  std::size_t descriptors = 0, threads = 0;
  std::size_t mappings = 0;  ///< of shared memory that ddpp made

  static holdings now() {
    holdings held{files_of_ddpp(), open_descriptors(), running_threads(), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      held.mappings += says(line, "memfd:ddpp-") || says(line, "/dev/shm/");
    }
    return held;
  }

  /// What there is now beyond this: empty if it is nothing.
  std::string left_since() const {
    const holdings after = now();
    std::string text;
    std::set<std::string> fresh;
    std::set_difference(after.files.begin(), after.files.end(), files.begin(), files.end(),
                        std::inserter(fresh, fresh.end()));
    for (const std::string& name : fresh) text += " /dev/shm/" + name;
    const auto compare = [&](const char* what, std::size_t then, std::size_t today) {
      if (today != then) text += " " + std::to_string(today) + " instead of " + std::to_string(then) + what;
    };
    compare(" descriptors", descriptors, after.descriptors);
    compare(" threads", threads, after.threads);
    compare(" mappings", mappings, after.mappings);
    return text;
  }

 private:
  static std::set<std::string> files_of_ddpp() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("ddpp")) names.insert(name);
    }
    return names;
  }
};

/// Nothing is left when it goes: orphans of those who ran meanwhile count as this process's children.
class nothing_left {
 public:
  nothing_left() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  nothing_left(const nothing_left&) = delete;
  nothing_left& operator=(const nothing_left&) = delete;
  ~nothing_left() {
    CHECK(before_.left_since() == "");
    const bool no_child = ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
    CHECK_MESSAGE(no_child, "no process is left");
  }

 private:
  const holdings before_ = holdings::now();
};

}  // namespace support
