// SPDX-License-Identifier: BSL-1.0
#include "process_tree.hpp"

#include <ddpp/detail/process_tree.hpp>
#include <ddpp/detail/small_file.hpp>
#include <ddpp/detail/text.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace launcher {

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void reap_orphans(const std::function<bool(pid_t)>& is_rank) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (is_rank(info.si_pid)) return;  // the others' turn comes once that one's status is taken
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void kill_all_descendants(const std::vector<pid_t>& spared) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto nobody = [](pid_t) { return false; };
  while (std::chrono::steady_clock::now() < until) {
    reap_orphans(nobody);
    std::vector<pid_t> victims = ddpp::detail::descendants_of(::getpid());
    for (const pid_t root : spared) {
      std::vector<pid_t> family = ddpp::detail::descendants_of(root);
      family.push_back(root);
      std::erase_if(victims, [&](pid_t each) { return std::count(family.begin(), family.end(), each) != 0; });
    }
    if (victims.empty()) return;
    for (const pid_t victim : victims) ::kill(victim, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool catches(pid_t process, int signal) {
  const std::string status =
      ddpp::detail::read_small_file(ddpp::detail::text("/proc/", process, "/status").c_str());
  const auto at = status.find("\nSigCgt:");
  if (at == status.npos) return false;
  const unsigned long long caught = std::strtoull(status.c_str() + at + 8, nullptr, 16);
  return (caught >> (signal - 1) & 1) != 0;
}

}  // namespace launcher
