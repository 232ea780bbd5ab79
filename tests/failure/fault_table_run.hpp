// SPDX-License-Identifier: BSL-1.0
// Lets an incident happen, in processes of their own, and judges what the survivors saw.
#pragma once

#include <ddpp/ddpp.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../support/ports.hpp"
#include "../support/ranks.hpp"
#include "fault_table_incident.hpp"
#include "fault_table_rank.hpp"

namespace fault_table {

/// What `launch` makes its communicators of when the fault is to come before they exist.
template <class T>
class watched : public T {
 public:
  static inline const incident* plan = nullptr;
  static inline board* shared = nullptr;

  watched(const ddpp::bootstrap& boot, const typename T::options& given) try : T(prepare(boot), given) {
  } catch (...) {
    observation& mine = shared->observations[static_cast<std::size_t>(boot.rank)];
    observe(mine, [] { throw; });
    mine.ended = now();
    mine.complete = true;
    throw;
  }

 private:
  static const ddpp::bootstrap& prepare(const ddpp::bootstrap& boot) {
    ::alarm(longest_life);
    if (boot.rank == plan->victim) new doom(*plan, *shared);
    return boot;
  }
};

template <class T>
class trial {
 public:
  explicit trial(const incident& plan) : plan_(plan) {}

  /// Returns what is wrong with what happened; empty: nothing.
  std::string run() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // whoever is left behind becomes a child of this process
    const std::size_t segments = files_in_shm();
    start();
    watch();
    collect();
    judge();
    expect(files_in_shm() == segments, "nothing is left in /dev/shm");
    return problems_;
  }

  /// Of those who survived and saw something: after the fault, or after their call if that came later.
  std::vector<double> seconds_until_seen() const {
    std::vector<double> list;
    for_survivors([&](int, const observation& mine) {
      const nanoseconds begin = plan_.during == phase::idle
                                    ? std::max<nanoseconds>(board_->fault_at, mine.called)
                                    : board_->fault_at.load();
      if (mine.complete && mine.what != seen::nothing)
        list.push_back(static_cast<double>(mine.saw - begin) * 1e-9);
    });
    return list;
  }
  double longest_end() const {
    double longest = 0;
    for_survivors([&](int, const observation& mine) {
      longest = std::max(longest, static_cast<double>(mine.ended - mine.saw) * 1e-9);
    });
    return longest;
  }
  template <class F>
  void for_survivors(F&& f) const {
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      if (rank != plan_.victim) f(rank, board_->observations[static_cast<std::size_t>(rank)]);
    }
  }

 private:
  void start() {
    if (plan_.during == phase::init_launch || plan_.what == fault::throws) {
      supervised([&] { launch_ranks(); });
    } else if (plan_.during == phase::init_spawn) {
      supervised([&] {
        ddpp::spawn(plan_.ranks, [&](int rank) { live(plan_, *board_, rank, [&] { return init({}); }); });
      });
    } else {
      const bool by_tcp = plan_.during == phase::init_tcp || (!is_init(plan_.during) && T::name == "tcp");
      const std::string place = by_tcp ? "tcp://127.0.0.1:" + std::to_string(support::free_port())
                                       : "file://" + directory_.file("store");
      for (int rank = 0; rank < plan_.ranks; ++rank) {
        children_.push_back(support::fork_child([&] {
          live(plan_, *board_, rank,
               [&] { return init({.init_method = place, .rank = rank, .world_size = plan_.ranks}); });
        }));
      }
    }
  }

  /// The starter of the ranks throws, and is a process of its own.
  template <class F>
  void supervised(F&& f) {
    children_.push_back(support::fork_child([&] {
      ::alarm(longest_life);
      try {
        f();
      } catch (const ddpp::spawn_error&) {
      }
    }));
  }

  void launch_ranks() {
    const ddpp::init_options options{.timeout = plan_.timeout(), .init_timeout = plan_.init_timeout()};
    if (plan_.during == phase::init_launch) {
      watched<T>::plan = &plan_;
      watched<T>::shared = &*board_;
      ddpp::launch<watched<T>>(
          plan_.ranks, [&](auto& comm) { observed(comm); }, options);
    } else {
      ddpp::launch<T>(
          plan_.ranks, [&](auto& comm) { live(plan_, *board_, comm.rank(), [&] { return comm.share(); }); },
          options);
    }
  }

  /// The group exists before the fault.
  template <class C>
  void observed(C& comm) {
    if (comm.rank() == plan_.victim) return be_victim_of_launch(comm);
    observation& mine = board_->observations[static_cast<std::size_t>(comm.rank())];
    observe(mine, [&] { be_survivor(comm, plan_, *board_, mine); });
    mine.ended = now();
    mine.complete = true;
  }
  template <class C>
  void be_victim_of_launch(C& comm) {
    for (turns<C> turn(comm, plan_);;) turn.take();
  }

  ddpp::communicator<T> init(ddpp::init_options options) {
    options.timeout = plan_.timeout();
    options.init_timeout = plan_.init_timeout();
    return ddpp::init<T>(options);
  }

  /// Kills whoever has been stopped: when it has, or when nobody waits any more.
  void watch() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(longest_life);
    const auto await = [&](auto&& condition) {
      while (!condition() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(2ms);
    };
    if (plan_.what != fault::stopped && plan_.what != fault::stopped_and_killed) return;
    await([&] { return is_stopped(board_->victim); });
    if (plan_.what == fault::stopped) {
      await([&] {
        bool all = true;
        for_survivors([&](int, const observation& mine) { all = all && mine.complete; });
        return all;
      });
    } else {
      std::this_thread::sleep_for(100ms);
      board_->happen();
    }
    if (board_->victim != 0) ::kill(board_->victim, SIGKILL);
  }

  static bool is_stopped(pid_t process) {
    if (process == 0) return false;
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    std::getline(file, text);
    const auto name_end = text.rfind(") ");
    return name_end != text.npos && text[name_end + 2] == 'T';
  }

  void collect() {
    for (const pid_t child : children_) {
      const int status = support::status_of(child);
      if (child == board_->victim) {
        const int expected = plan_.what == fault::exits_1  ? W_EXITCODE(1, 0)
                             : plan_.what == fault::aborts ? SIGABRT
                             : plan_.what >= fault::killed ? SIGKILL
                                                           : 0;
        expect((status & ~0x80) == expected,
               "the victim ends as it should, not with " + std::to_string(status));
      } else {
        expect(status == 0, "a survivor ends well, not with status " + std::to_string(status));
      }
    }
    expect(::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD, "no child is left");
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  void judge() {
    expect(board_->fault_at != 0, "the fault happens");
    for_survivors([&](int rank, const observation& mine) {
      const std::string who = "rank " + std::to_string(rank) + " ";
      if (!mine.complete) return expect(false, who + "comes to an end");
      const std::string what = who + "saw " + name_of(mine.what) + " \"" + mine.text + "\": ";
      if (plan_.during == phase::destruction) {
        expect(mine.what == seen::nothing, what + "who wants nothing sees nothing");
      } else {
        expect(is_right(mine), what + "the right error");
        if (is_init(plan_.during))
          return judge_end(mine, who);  // who gives up for its sake may be named, too
        expect(std::string(mine.text).find("rank " + std::to_string(plan_.victim)) != std::string::npos,
               what + "it names the rank");
        expect(mine.about < 0 || mine.about == plan_.victim, what + "it is about the rank");
      }
      judge_end(mine, who);
    });
    for (const double seconds : seconds_until_seen()) expect(seconds < 20, "the news come before long");
  }

  void judge_end(const observation& mine, const std::string& who) {
    expect(mine.used_afterwards < 100'000'000, who + "sleeps afterwards");
    expect(mine.ended - mine.saw < 10'000'000'000, who + "ends soon");
  }

  bool is_right(const observation& mine) const {
    if (plan_.what == fault::throws) return mine.what == seen::revoked;
    if (plan_.what == fault::stopped) {
      return mine.what == seen::timeout || (plan_.during == phase::leaving && mine.what == seen::peer_lost);
    }
    if (mine.what == seen::peer_lost) return true;
    return is_init(plan_.during) && (mine.what == seen::init || mine.what == seen::timeout);
  }

  void expect(bool good, const std::string& what) {
    if (!good) problems_ += plan_.text() + ": not so: " + what + "\n";
  }

  static std::size_t files_in_shm() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().starts_with("ddpp-")) ++count;
    }
    return count;
  }

  incident plan_;
  shared_board board_;
  support::scratch_directory directory_;
  std::vector<pid_t> children_;
  std::string problems_;
};

}  // namespace fault_table
