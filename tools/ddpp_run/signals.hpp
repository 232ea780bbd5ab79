// SPDX-License-Identifier: BSL-1.0
// Signals that are waited for instead of handled: blocked in this process, and as they were in the ranks.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file_descriptor.hpp"

namespace launcher {

/// "SIGSEGV".
std::string signal_name(int signal);

/// Of "SIGUSR1" or "USR1"; 0 when there is none of that name.
int signal_number(std::string_view name);

/// Whether the job ends when it gets this signal.
bool ends_the_job(int signal);

class waited_signals {
 public:
  /// Blocks these, and SIGCHLD. Each gets its default disposition, but a hang-up that is ignored (nohup)
  /// stays so.
  explicit waited_signals(const std::vector<int>& signals);

  /// The next, or 0 when the time is up.
  int wait(int milliseconds) const;

  /// For the ranks: what was blocked before.
  const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t waited_{};
  sigset_t before_{};
};

/// The same signals through a descriptor that poll(2) can wait for, SIGCHLD left out.
class signal_queue {
 public:
  explicit signal_queue(const std::vector<int>& signals);
  int descriptor() const noexcept { return queue_.get(); }
  /// The next that has come.
  std::optional<int> next();

 private:
  file_descriptor queue_;
};

}  // namespace launcher
