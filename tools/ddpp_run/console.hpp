// SPDX-License-Identifier: BSL-1.0
// What this node's user sees, whole lines at a time. One who does not read holds up the ranks that write, but
// never the end of the job.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>

#include "file_descriptor.hpp"

namespace launcher {

class console {
 public:
  console();

  /// To 1 (stdout) or 2 (stderr), cut between lines where that is possible. Blocks until all is written, the
  /// other end is closed, or give_up is called. Thread-safe.
  void write(int fd, std::string_view lines);

  /// "ddpp-run: text", each further line of it indented, on stderr; waits for a second at most.
  void say(std::string_view text);

  /// From now on what cannot be written at once is dropped.
  void give_up();

 private:
  bool wait_until_writable(int fd, int milliseconds) const;

  file_descriptor stop_;
  std::array<std::mutex, 3> mutexes_;
  std::array<std::atomic<bool>, 3> closed_{};
};

}  // namespace launcher
