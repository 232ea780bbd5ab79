// SPDX-License-Identifier: BSL-1.0
// Stops a process whenever one of its threads is exactly at a named point: an int3 in place of the point's
// nop, seen through ptrace.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <utility>

#include "../support/ranks.hpp"

namespace kill_points {

class tracer {
 public:
  /// `process` is a fork of this one that has called nothing of interest yet, and waits to be let go.
  tracer(pid_t process, std::set<std::uintptr_t> points) : process_(process), points_(std::move(points)) {
    const long follow = PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    EXPECT(::ptrace(PTRACE_SEIZE, process_, nullptr, follow) == 0);
    EXPECT(::ptrace(PTRACE_INTERRUPT, process_, nullptr, nullptr) == 0);
    int status = 0;
    EXPECT(::waitpid(process_, &status, __WALL) == process_ && WIFSTOPPED(status));
    for (const std::uintptr_t address : points_) plant(address);
    threads_.insert(process_);
    go_on(process_, 0);
  }

  /// Of what waitpid tells of the process and its threads. Returns the point that a thread has come to, where
  /// it stays until release(), or 0.
  std::uintptr_t notice(pid_t thread, int status) {
    if (!WIFSTOPPED(status)) {
      threads_.erase(thread);
      held_.erase(thread);
      return 0;
    }
    threads_.insert(thread);
    const int event = status >> 16;
    const std::uintptr_t point = event == 0 && WSTOPSIG(status) == SIGTRAP ? point_of(thread) : 0;
    const int signal = event != 0 || point != 0 ? 0 : WSTOPSIG(status);
    if (point != 0 || holding_)
      held_[thread] = signal;
    else
      go_on(thread, signal);
    return point;
  }

  /// All threads stop where they are.
  void hold() {
    holding_ = true;
    for (const pid_t thread : threads_) {
      if (!held_.contains(thread)) ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
    }
  }
  bool holds_all() const { return holding_ && held_.size() == threads_.size(); }

  void release() {
    holding_ = false;
    for (const auto& [thread, signal] : std::exchange(held_, {})) go_on(thread, signal);
  }

 private:
  /// A word of code with its lowest byte replaced. What follows the byte stays.
  void plant(std::uintptr_t address) {
    constexpr long nop = 0x90, trap = 0xcc, byte = 0xff;
    const long word = ::ptrace(PTRACE_PEEKTEXT, process_, address, nullptr);
    EXPECT((word & byte) == nop);
    EXPECT(::ptrace(PTRACE_POKETEXT, process_, address, (word & ~byte) | trap) == 0);
  }

  /// The trap is as long as the nop, so the thread then is behind it.
  std::uintptr_t point_of(pid_t thread) const {
#if defined(__x86_64__)
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) return 0;
    return points_.contains(registers.rip - 1) ? registers.rip - 1 : 0;
#else
    return 0 * static_cast<std::uintptr_t>(thread);
#endif
  }

  static void go_on(pid_t thread, int signal) { ::ptrace(PTRACE_CONT, thread, nullptr, signal); }

  const pid_t process_;
  const std::set<std::uintptr_t> points_;
  std::set<pid_t> threads_;
  std::map<pid_t, int> held_;  // and the signal that is to be delivered then
  bool holding_ = false;
};

/// Whether processes may be traced here, and this processor's trap is known above.
inline bool can_trace() {
#if !defined(__x86_64__)
  return false;
#endif
  const pid_t child = support::fork_child([] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
  });
  if (support::status_of(child) != 0) return false;
  const pid_t other = support::fork_child([] { ::pause(); });
  const bool can = ::ptrace(PTRACE_SEIZE, other, nullptr, nullptr) == 0;
  ::kill(other, SIGKILL);
  support::status_of(other);
  return can;
}

}  // namespace kill_points
