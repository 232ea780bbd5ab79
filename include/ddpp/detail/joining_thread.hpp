// SPDX-License-Identifier: BSL-1.0
// A thread of the library's own.
#pragma once

#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/error.hpp>

#include <new>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace ddpp::detail {

/// Joined by its destructor; in a forked child, where it does not run, let go.
class joining_thread {
 public:
  template <class F>
  explicit joining_thread(F&& body) {
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    std::string problem;
    try {
      ::new (static_cast<void*>(&thread_)) std::thread(std::forward<F>(body));
    } catch (const std::system_error& e) {
      problem = e.what();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!problem.empty()) throw resource_error("could not start a thread: " + problem);
  }
  joining_thread(const joining_thread&) = delete;
  joining_thread& operator=(const joining_thread&) = delete;
  ~joining_thread() {
    if (guard_.in_child()) return;
    thread_.join();
    thread_.~thread();
  }

 private:
  fork_guard guard_;
  union {
    std::thread thread_;
  };
};

}  // namespace ddpp::detail
