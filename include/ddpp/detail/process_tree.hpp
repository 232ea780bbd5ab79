// SPDX-License-Identifier: BSL-1.0
// The children of a process, their children, and so on, as far as /proc tells.
#pragma once

#include <ddpp/detail/text.hpp>

#include <charconv>
#include <cstddef>
#include <dirent.h>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

namespace ddpp::detail {

/// Appends the process ids in /proc/.../children: decimal numbers, each followed by a space.
[[gnu::cold]] inline void read_process_ids(const std::string& path, std::vector<pid_t>& to) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  std::string text;
  char some[4096];
  for (ssize_t got; (got = ::read(file, some, sizeof(some))) > 0;)
    text.append(some, static_cast<std::size_t>(got));
  ::close(file);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    pid_t pid = 0;
    const auto [stop, problem] = std::from_chars(at, end, pid);
    if (problem != std::errc()) return;
    to.push_back(pid);
    at = stop + 1;
  }
}

/// Whether /proc has the numbers that this process knows. (Another's, in a new PID namespace without a /proc
/// of its own, would name strangers.)
[[gnu::cold]] inline bool proc_is_ours() {
  char target[32];
  const ssize_t length = ::readlink("/proc/self", target, sizeof target);
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)) == text(::getpid());
}

/// Each after its parent; `root` itself is not among them. Those whose parent has died before are not found.
[[gnu::cold]] inline std::vector<pid_t> descendants_of(pid_t root) {
  if (!proc_is_ours()) return {};
  std::vector<pid_t> found{root};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string tasks = text("/proc/", found[i], "/task/");
    DIR* const directory = ::opendir(tasks.c_str());
    if (!directory) continue;
    while (const dirent* const task = ::readdir(directory)) {
      if (task->d_name[0] != '.') read_process_ids(text(tasks, task->d_name, "/children"), found);
    }
    ::closedir(directory);
  }
  found.erase(found.begin());
  return found;
}

}  // namespace ddpp::detail
