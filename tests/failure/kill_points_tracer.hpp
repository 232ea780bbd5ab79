// SPDX-License-Identifier: BSL-1.0
// Stops a process exactly when one of its threads is at a named point for the k-th time: an int3 in place of
// the point's nop, seen through ptrace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"

namespace kill_points {

class tracer {
 public:
  /// `process` is a fork of this one that has called nothing of interest yet, and waits to be let go.
  tracer(pid_t process, std::vector<std::uintptr_t> point) : process_(process), point_(std::move(point)) {
    const long follow = PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    EXPECT(::ptrace(PTRACE_SEIZE, process_, nullptr, follow) == 0);
    EXPECT(::ptrace(PTRACE_INTERRUPT, process_, nullptr, nullptr) == 0);
    int status = 0;
    EXPECT(::waitpid(process_, &status, __WALL) == process_ && WIFSTOPPED(status));
    for (const std::uintptr_t address : point_) plant(address);
    threads_.insert(process_);
    go_on(process_, 0);
  }

  /// Of what waitpid tells of the process and its threads. True: a thread has come to the point, and stays
  /// there until release().
  bool notice(pid_t thread, int status) {
    if (!WIFSTOPPED(status)) {
      threads_.erase(thread);
      held_.erase(thread);
      return false;
    }
    threads_.insert(thread);
    const int event = status >> 16;
    const bool came = event == 0 && WSTOPSIG(status) == SIGTRAP && is_at_point(thread);
    const int signal = event != 0 || came ? 0 : WSTOPSIG(status);
    if (came || holding_)
      held_[thread] = signal;
    else
      go_on(thread, signal);
    return came;
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
    constexpr unsigned char nop = 0x90;
    constexpr std::uint64_t trap = 0xcc, byte = 0xff;
    std::uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof word);  // the same here as there
    EXPECT((word & byte) == nop);
    EXPECT(::ptrace(PTRACE_POKETEXT, process_, address, (word & ~byte) | trap) == 0);
  }

  /// The trap is as long as the nop, so the thread then is behind it.
  bool is_at_point(pid_t thread) const {
#if defined(__x86_64__)
    user_regs_struct registers{};
    return ::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) == 0 &&
           std::find(point_.begin(), point_.end(), registers.rip - 1) != point_.end();
#else
    static_cast<void>(thread);
    return false;
#endif
  }

  static void go_on(pid_t thread, int signal) { ::ptrace(PTRACE_CONT, thread, nullptr, signal); }

  const pid_t process_;
  const std::vector<std::uintptr_t> point_;
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
