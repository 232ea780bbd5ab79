// SPDX-License-Identifier: BSL-1.0
// Forked children that the parent starts, watches and ends: only those, never the program's other children.
#pragma once

#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/process_tree.hpp>
#include <ddpp/detail/rank_report.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <signal.h>
#include <string>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

struct child_process {
  pid_t pid = -1;
  descriptor handle = {};  ///< a pidfd: readable once the child has ended. Empty where the system has none
  bool running = true;
  bool status_known = false;  ///< false where the program itself took the status away (SIGCHLD ignored)
  int exit_code = 0;
  int signal = 0;

  bool send(int number) const noexcept {
    if (handle) return ::syscall(SYS_pidfd_send_signal, handle.get(), number, nullptr, 0) == 0;
    return ::kill(pid, number) == 0;
  }

  void wait_for_end() noexcept {
    int status = 0;
    pid_t got = -1;
    do got = ::waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    end_with(got, status);
  }

  /// For children without a handle. Whether it has ended.
  bool poll_end() noexcept {
    int status = 0;
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return false;
    end_with(got, status);
    return true;
  }

 private:
  void end_with(pid_t got, int status) noexcept {
    running = false;
    handle.reset();
    status_known = got == pid;
    if (!status_known) return;
    if (WIFEXITED(status)) exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) signal = WTERMSIG(status);
  }
};

/// The children of one start, by index. Not thread-safe.
class child_processes {
 public:
  child_processes() : events_(::epoll_create1(EPOLL_CLOEXEC)) {}
  child_processes(const child_processes&) = delete;
  child_processes& operator=(const child_processes&) = delete;
  ~child_processes() {
    if (!guard_.in_child()) kill_all();
  }

  /// Forks. `body` runs in the child, which ends when it returns (status 0 or 1, see rank_report) and never
  /// comes back into the caller. Throws `resource_error` when the system refuses.
  template <class F>
  void start(rank_report& report, F&& body) {
    if (fork_child()) run_child(report, body);
  }

  /// Waits until at least one more child has ended and lists those that have, in the order of their ends as
  /// far as the system tells it. Empty when the deadline has passed or none is running.
  [[gnu::cold]] std::vector<std::size_t> wait_for_ends(deadline until) {
    std::vector<std::size_t> ended;
    while (ended.empty() && running() > 0) {
      collect(ended, until);
      if (ended.empty() && std::chrono::steady_clock::now() >= until) break;
    }
    return ended;
  }

  std::size_t running() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(children_.begin(), children_.end(), [](const auto& child) { return child.running; }));
  }

  /// To the children that run, and to theirs.
  [[gnu::cold]] void send_all(int number) noexcept {
    for (const child_process& child : children_) {
      if (!child.running) continue;
      const std::vector<pid_t> descendants = descendants_of(child.pid);
      child.send(number);
      for (const pid_t pid : descendants) ::kill(pid, number);
    }
  }

  /// Ends all at once and waits for them.
  [[gnu::cold]] void kill_all() noexcept {
    send_all(SIGKILL);
    for (child_process& child : children_) {
      if (child.running) child.wait_for_end();
    }
  }

  const std::vector<child_process>& all() const noexcept { return children_; }

  /// For poll(2): readable once a child has ended that has a handle. -1 where the system has none.
  int events() const noexcept { return events_.get(); }

 private:
  /// True in the child, which dies with its parent.
  [[gnu::cold]] bool fork_child() {
    children_.reserve(children_.size() + 1);
    std::fflush(stdout);  // or the child would print it again
    std::fflush(stderr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) std::_Exit(EXIT_FAILURE);  // the parent died before the line above
      return true;
    }
    if (pid < 0) throw resource_error(text("fork: ", system_text(errno)));
    children_.emplace_back().pid = pid;
    watch(children_.back());
    return false;
  }

  template <class F>
  [[noreturn]] static void run_child(rank_report& report, F& body) noexcept {
    try {
      body();
      report.finish();
      end(EXIT_SUCCESS);
    } catch (...) {
      const bool follows_another = current_exception_follows_another();
      report.fail(current_exception_text(), follows_another);
      end(EXIT_FAILURE);
    }
  }

  [[noreturn, gnu::cold]] static void end(int status) noexcept {
    std::fflush(stdout);
    std::fflush(stderr);
    std::_Exit(status);  // the parent's destructors and atexit handlers are not this process's to run
  }

  void watch(child_process& child) {
    if (!events_) return;
    child.handle = descriptor(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
    if (!child.handle) return;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = children_.size() - 1;
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, child.handle.get(), &event) != 0) child.handle.reset();
  }

  [[gnu::cold]] void collect(std::vector<std::size_t>& ended, deadline until) {
    bool some_without_handle = false;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      child_process& child = children_[i];
      if (!child.running || child.handle) continue;
      if (child.poll_end())
        ended.push_back(i);
      else
        some_without_handle = true;
    }
    const deadline soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
    if (!ended.empty())
      until = {};
    else if (some_without_handle)
      until = std::min(until, soon);
    if (!events_) return std::this_thread::sleep_until(until);
    epoll_event events[16];
    const int ready = ::epoll_wait(events_.get(), events, 16, poll_timeout(until));
    for (int i = 0; i < ready; ++i) {
      const auto index = static_cast<std::size_t>(events[i].data.u64);
      child_process& child = children_[index];
      ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, child.handle.get(), nullptr);
      child.wait_for_end();
      ended.push_back(index);
    }
  }

  fork_guard guard_;
  descriptor events_;
  std::vector<child_process> children_;
};

}  // namespace ddpp::detail
