// SPDX-License-Identifier: BSL-1.0
// Places where processes can be put: with a /dev/shm of their own, without a view of others, without memfd.
#pragma once

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../skip.hpp"
#include "leftovers.hpp"
#include "ranks.hpp"

namespace support {

inline constexpr int cannot = 77;  // a process's status where a place cannot be made

/// A child that ends at the latest when its parent or its time does.
template <class F>
pid_t process(F body) {
  return fork_child([&] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(100);
    body();
  });
}

/// This process gets namespaces of its own, by being root in one of users if need be.
inline bool unshare(int kinds) {
  if (::unshare(kinds) != 0) {
    const std::string user = "0 " + std::to_string(::getuid()) + " 1",
                      group = "0 " + std::to_string(::getgid()) + " 1";
    if (::unshare(kinds | CLONE_NEWUSER) != 0) return false;
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << group;
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

/// This process's /dev/shm is a new one with so much room, as tmpfs writes it.
inline bool replace_dev_shm(const std::string& room) {
  return unshare(CLONE_NEWNS) && ::mount("none", "/dev/shm", "tmpfs", 0, ("size=" + room).c_str()) == 0;
}

/// Runs f in a process whose /dev/shm is a new one with so much room, where it leaves nothing.
template <class F>
pid_t on_host(const std::string& room, F f) {
  return process([&] {
    if (!replace_dev_shm(room)) ::_exit(cannot);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const holdings before = holdings::now();
    f();
    const std::string left = before.left_since();
    expect(left.empty(), "nothing is left, but:" + left);
    expect(::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD, "no process is left");
  });
}

/// Runs f in a process that cannot see those of others. Ends this one if it fails.
template <class F>
void in_own_process_table(F f) {
  if (!unshare(CLONE_NEWPID | CLONE_NEWNS)) ::_exit(cannot);
  const int status = status_of(process([&] {
    if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) ::_exit(cannot);
    f();
  }));
  if (status != 0) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/// Skips the test case if not.
inline bool can_make_hosts() {
  const auto try_all = [] {
    const int status = status_of(process([] { in_own_process_table([] {}); }));
    if (status != 0) ::_exit(cannot);
  };
  if (status_of(on_host("1m", try_all)) == 0) return true;
  ddpp::testing::skip("cannot make namespaces");
  return false;
}

/// Makes memfd_create fail in this process, as a sandbox or an old kernel does.
inline void forbid_memfd(int error) {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the number of the system call
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog filter{program.size(), program.data()};
  EXPECT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  EXPECT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

}  // namespace support
