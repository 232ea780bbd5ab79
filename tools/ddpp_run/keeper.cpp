// SPDX-License-Identifier: BSL-1.0
#include "keeper.hpp"

#include <ddpp/detail/process_tree.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "process_tree.hpp"

namespace launcher {
namespace {

using clock = std::chrono::steady_clock;

/// The child's status, as waitpid has it, if it has ended; takes those of orphans, too.
std::optional<int> reap(pid_t child) {
  std::optional<int> result;
  int status = 0;
  for (pid_t ended; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (ended == child) result = status;
  }
  return result;
}

int attend(pid_t child, const waited_signals& signals, std::chrono::milliseconds patience) {
  std::optional<clock::time_point> limit;
  for (;;) {
    if (const auto status = reap(child)) return *status;
    if (limit && clock::now() >= *limit) ::kill(child, SIGKILL);
    const int signal = signals.wait(1000);
    if (signal == 0 || signal == SIGCHLD) continue;
    ::kill(child, signal);
    if (ends_the_job(signal) && !limit) limit = clock::now() + patience;
  }
}

}  // namespace

int keep(const waited_signals& signals, std::chrono::milliseconds patience,
         const std::function<int(const std::function<bool()>& kept)>& work) {
  const pid_t keeper = ::getpid();
  const std::vector<pid_t> others =
      ddpp::detail::descendants_of(keeper);  // of a shell that has become this process
  adopt_orphans();
  const pid_t child = ::fork();
  if (child < 0) {
    std::fprintf(stderr, "ddpp-run: fork: %s\n", std::strerror(errno));
    return 1;
  }
  if (child == 0) {
    ::setsid();  // what a terminal sends goes to the keeper alone, and comes here once
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const auto kept = [keeper] { return ::getppid() == keeper; };
    if (!kept()) std::_Exit(1);
    const int status = work(kept);
    std::fflush(nullptr);
    std::_Exit(status);
  }
  ::signal(SIGPIPE, SIG_IGN);
  const int status = attend(child, signals, patience);
  kill_all_descendants(others);
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "ddpp-run: was ended by %s\n", signal_name(WTERMSIG(status)).c_str());
  return 128 + WTERMSIG(status);
}

}  // namespace launcher
