// SPDX-License-Identifier: BSL-1.0
#include "signals.hpp"

#include <cstring>
#include <ctime>
#include <sys/signalfd.h>
#include <unistd.h>

namespace launcher {

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

int signal_number(std::string_view name) {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const known = ::sigabbrev_np(signal);
    if (known && name == known) return signal;
  }
  return 0;
}

bool ends_the_job(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

waited_signals::waited_signals(const std::vector<int>& signals) {
  ::sigemptyset(&waited_);
  for (const int signal : signals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (signal == SIGHUP && now.sa_handler == SIG_IGN) continue;
    ::signal(signal, SIG_DFL);
    ::sigaddset(&waited_, signal);
  }
  ::signal(SIGCHLD, SIG_DFL);
  ::sigaddset(&waited_, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &waited_, &before_);
}

int waited_signals::wait(int milliseconds) const {
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  const int signal = ::sigtimedwait(&waited_, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

signal_queue::signal_queue(const std::vector<int>& signals) {
  sigset_t waited;
  ::sigemptyset(&waited);
  for (const int signal : signals) ::sigaddset(&waited, signal);
  queue_ = file_descriptor(::signalfd(-1, &waited, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::optional<int> signal_queue::next() {
  signalfd_siginfo info{};
  if (::read(queue_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace launcher
