// SPDX-License-Identifier: BSL-1.0
// Forked ranks: what they are told, how each way of ending is reported, and that nothing is left of them.
#include <ddpp/detail/process_tree.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../support/process.hpp"

using support::in_child;
using support::open_descriptors;
using support::running_threads;
using support::says;

using namespace std::chrono_literals;

namespace {

template <class F>
std::optional<ddpp::spawn_error> failure_of(int n, F&& f, const ddpp::spawn_options& options = {}) {
  try {
    ddpp::spawn(n, f, options);
  } catch (const ddpp::spawn_error& e) {
    return e;
  }
  return std::nullopt;
}

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

/// A pipe that says when all who hold its writing end are gone, and what they wrote.
class witness {
 public:
  witness() { REQUIRE(::pipe(ends_) == 0); }
  ~witness() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  witness(const witness&) = delete;
  witness& operator=(const witness&) = delete;

  void say(const std::string& text) const { (void)!::write(ends_[1], text.data(), text.size()); }
  /// Blocks until `count` bytes have come.
  std::string hear(std::size_t count) const {
    std::string text(count, '\0');
    std::size_t got = 0;
    while (got < count) {
      const ssize_t more = ::read(ends_[0], text.data() + got, count - got);
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    return text.substr(0, got);
  }
  /// Blocks until nobody else can write any more.
  std::string hear_all() {
    ::close(ends_[1]);
    ends_[1] = -1;
    std::string text;
    for (std::string some; !(some = hear(1)).empty();) text += some;
    return text;
  }
  int writing_end() const { return ends_[1]; }

 private:
  int ends_[2];
};

[[noreturn]] void stay() {
  if (std::signal(SIGTERM, SIG_DFL) == SIG_IGN)
    std::signal(SIGTERM, SIG_IGN);  // the test framework's is not for ranks
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("spawn: each rank runs once and finds its environment and the store") {
  witness all;
  ddpp::spawn(3, [&](int rank) {
    const auto is = [](const char* name, const std::string& value) {
      const char* const set = std::getenv(name);
      return set && set == value;
    };
    const std::string me = std::to_string(rank);
    const bool good = is("RANK", me) && is("LOCAL_RANK", me) && is("WORLD_SIZE", "3") &&
                      is("LOCAL_WORLD_SIZE", "3") && is("MASTER_ADDR", "127.0.0.1") &&
                      std::getenv("DDPP_SECRET") && ddpp::local_rank() == rank && ddpp::local_size() == 3;
    ddpp::tcp_store store("127.0.0.1", static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
    store.set(me, "here");
    store.wait({"0", "1", "2"});
    all.say(good ? me : "x");
  });
  std::string said = all.hear_all();
  std::sort(said.begin(), said.end());
  CHECK(said == "012");
  CHECK_FALSE(has_children());
}

TEST_CASE("spawn: a surrounding launcher's variables do not reach the ranks") {
  CHECK(in_child([] {
          for (const char* name : {"DDPP_RANK", "DDPP_WORLD_SIZE", "DDPP_LOCAL_RANK"}) ::setenv(name, "7", 1);
          ::setenv("DDPP_INIT_METHOD", "tcp://elsewhere:1", 1);
          ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
          const auto good = [](int rank) {
            return ddpp::detail::read_environment().rank == rank && !std::getenv("DDPP_INIT_METHOD") &&
                   !std::getenv("TORCHELASTIC_USE_AGENT_STORE");
          };
          ddpp::spawn(2, [&](int rank) {
            if (!good(rank)) throw std::logic_error("misled");
          });
          return std::string(std::getenv("DDPP_RANK")) == "7" ? 0 : 1;
        }) == 0);
}

TEST_CASE("spawn: several nodes") {
  CHECK(in_child([] {
          ::setenv("DDPP_SECRET", "of all nodes", 1);
          const int port = [] { return int(ddpp::detail::store_listener("127.0.0.1", 0).port()); }();
          const auto meet = [&](int rank) {
            if (ddpp::detail::read_environment().size != 4) throw std::logic_error("wrong size");
            ddpp::tcp_store store("127.0.0.1", static_cast<std::uint16_t>(port));
            store.set(std::to_string(rank), std::getenv("GROUP_RANK"));
            store.wait({"0", "1", "2", "3"});
            if (store.multi_get({"0", "1", "2", "3"}) != std::vector<std::string>{"0", "0", "1", "1"}) {
              throw std::logic_error("wrong nodes");
            }
            store.add("seen", 1);
            while (rank == 0 && store.add("seen", 0) < 4)
              std::this_thread::sleep_for(1ms);  // it serves the store
          };
          auto second = ddpp::start_processes(2, meet, {.node_rank = 1, .nnodes = 2, .master_port = port});
          ddpp::spawn(2, meet, {.node_rank = 0, .nnodes = 2, .master_port = port});
          second.join();
          return 0;
        }) == 0);
  CHECK(in_child([] {
          ::unsetenv("DDPP_SECRET");
          try {
            ddpp::spawn(1, [](int) {}, {.nnodes = 2, .master_port = 1});
          } catch (const ddpp::authentication_error&) {
            return 0;
          }
          return 1;
        }) == 0);
}

TEST_CASE("spawn: numbers that cannot be") {
  const auto nothing = [](int) {};
  CHECK_THROWS_AS(ddpp::spawn(0, nothing), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(-3, nothing), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(1, nothing, {.node_rank = 1}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(1, nothing, {.nnodes = 0}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(1, nothing, {.nnodes = 2}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(1, nothing, {.master_port = 65536}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(2'000'000'000, nothing, {.nnodes = 2, .master_port = 1}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::spawn(1, nothing, {.master_addr = "no.such.host.invalid"}), ddpp::init_error);
}

TEST_CASE("spawn: an exit status, a signal, an exception: each is reported with its rank") {
  auto e = failure_of(3, [](int rank) {
    if (rank == 2) std::_Exit(3);
  });
  REQUIRE(e);
  CHECK(e->rank() == 2);
  CHECK(e->exit_code() == 3);
  CHECK(e->signal() == 0);
  CHECK(says(e->what(), "rank 2"));
  CHECK(says(e->what(), "status 3"));

  for (const int signal : {SIGSEGV, SIGABRT, SIGKILL}) {
    e = failure_of(2, [&](int rank) {
      std::signal(signal, SIG_DFL);
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      if (rank == 1) ::raise(signal);
    });
    REQUIRE(e);
    CHECK(e->rank() == 1);
    CHECK(e->exit_code() == 0);
    CHECK(e->signal() == signal);
    CHECK(says(e->what(), ::strsignal(signal)));
  }

  e = failure_of(2, [](int rank) {
    if (rank == 1) throw std::runtime_error("the disk is full");
  });
  REQUIRE(e);
  CHECK(e->rank() == 1);
  CHECK(e->exit_code() == 1);
  CHECK(says(e->what(), "the disk is full"));

  struct odd {};
  e = failure_of(1, [](int) { throw odd(); });
  REQUIRE(e);
  CHECK(says(e->what(), "odd"));
  e = failure_of(1, [](int) { throw "just text"; });
  REQUIRE(e);
  CHECK(says(e->what(), "just text"));
  e = failure_of(1, [](int) { throw std::runtime_error(std::string(1'000'000, 'x')); });
  REQUIRE(e);
  CHECK(std::strlen(e->what()) > 3000);
}

TEST_CASE("spawn: a rank that ends early and well is no failure, however it ends") {
  CHECK_FALSE(failure_of(3, [](int rank) {
    if (rank == 0) std::_Exit(0);
    if (rank == 1) ::_exit(0);
  }));
  CHECK_FALSE(failure_of(2, [](int rank) {
    if (rank == 0) std::quick_exit(0);
  }));
}

TEST_CASE("spawn: the program's atexit handlers run in no rank, unless it calls exit itself") {
  witness handlers;
  CHECK(in_child([&] {
          static int fd = handlers.writing_end();
          std::atexit([] { (void)!::write(fd, "h", 1); });
          ddpp::spawn(3, [](int) {});
          if (failure_of(1, [](int) { throw 1; })->exit_code() != 1) return 1;
          handlers.say("|");
          ddpp::spawn(1, [](int) { std::exit(0); });
          return 0;
        }) == 0);
  CHECK(handlers.hear_all() == "|h");
}

TEST_CASE("spawn: output is neither doubled nor lost") {
  witness out;
  CHECK(in_child([&] {
          ::dup2(out.writing_end(), STDOUT_FILENO);
          std::printf("parent ");  // unflushed when the ranks are forked
          ddpp::spawn(2, [](int) { std::printf("rank "); });
          std::fflush(stdout);
          return 0;
        }) == 0);
  CHECK(out.hear_all() == "parent rank rank ");
}

TEST_CASE("spawn: a rank that closes every descriptor is reported all the same") {
  const auto e = failure_of(2, [](int rank) {
    for (int fd = 0; fd < 1024; ++fd) ::close(fd);
    if (rank == 1) throw std::runtime_error("said without descriptors");
  });
  REQUIRE(e);
  CHECK(e->rank() == 1);
  CHECK(says(e->what(), "said without descriptors"));
}

TEST_CASE("spawn: the first failure is the one reported, and consequences are not causes") {
  witness order;
  auto e = failure_of(3,
                      [&](int rank) {
                        if (rank == 1) {
                          std::_Exit(5);
                        }
                        stay();
                      },
                      {.grace = 20ms});
  REQUIRE(e);
  CHECK(e->rank() == 1);
  CHECK(e->exit_code() == 5);

  // Rank 0 notices at once that rank 2 is going, and ends before it.
  e = failure_of(3,
                 [&](int rank) {
                   if (rank == 0) throw ddpp::peer_lost("rank 2 left", 2, "barrier", 1);
                   if (rank == 1) return;
                   std::this_thread::sleep_for(50ms);
                   throw std::runtime_error("the cause");
                 },
                 {.grace = 20s});
  REQUIRE(e);
  CHECK(e->rank() == 2);
  CHECK(says(e->what(), "the cause"));

  // When there is nothing else, a consequence is better than nothing.
  e = failure_of(2, [&](int rank) {
    if (rank == 1) throw ddpp::revoked_error("revoked", 0, "barrier", 1);
  });
  REQUIRE(e);
  CHECK(e->rank() == 1);
}

TEST_CASE("spawn: the others get the grace period, then SIGTERM, then SIGKILL") {
  witness said, ready;
  const auto begin = std::chrono::steady_clock::now();
  const auto e = failure_of(4,
                            [&](int rank) {
                              static int fd = said.writing_end();
                              if (rank == 0) {  // ends within the grace period
                                ready.say("r");
                                std::this_thread::sleep_for(50ms);
                                said.say("g");
                              } else if (rank == 1) {  // heeds SIGTERM
                                std::signal(SIGTERM, [](int) {
                                  (void)!::write(fd, "t", 1);
                                  std::_Exit(0);
                                });
                                ready.say("r");
                                for (;;) ::pause();
                              } else if (rank == 2) {  // ignores it
                                std::signal(SIGTERM, SIG_IGN);
                                ready.say("r");
                                stay();
                              } else {
                                ready.hear(3);  // the others have set their handlers
                                std::_Exit(9);
                              }
                            },
                            {.grace = 1s});
  const auto spent = std::chrono::steady_clock::now() - begin;
  REQUIRE(e);
  CHECK(e->rank() == 3);
  CHECK(e->exit_code() == 9);
  CHECK(spent >= 2s);
  CHECK(said.hear_all() == "gt");
  CHECK_FALSE(has_children());
}

TEST_CASE("spawn: what a rank has started ends with it") {
  witness alive;
  const auto e = failure_of(2,
                            [&](int rank) {
                              if (rank == 1) {
                                alive.hear(1);  // until the other's child's child is there
                                std::_Exit(1);
                              }
                              if (::fork() == 0) {
                                if (::fork() == 0) alive.say("x");
                                stay();
                              }
                              stay();
                            },
                            {.grace = 20ms});
  REQUIRE(e);
  CHECK(e->rank() == 1);
  CHECK(alive.hear_all() == "");
}

TEST_CASE("spawn: when the parent is killed its ranks end") {
  witness alive;
  const pid_t parent = ::fork();
  if (parent == 0) {
    ddpp::spawn(3, [&](int) {
      std::signal(SIGTERM, SIG_IGN);
      alive.say("x");
      stay();
    });
    ::_exit(0);
  }
  CHECK(alive.hear(3) == "xxx");
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  CHECK(alive.hear_all() == "");  // returns once the last is gone
}

TEST_CASE("spawn: the program's other children are left alone") {
  const pid_t other = ::fork();
  if (other == 0) ::_exit(17);
  ddpp::spawn(2, [](int) { std::this_thread::sleep_for(20ms); });
  CHECK(failure_of(1, [](int) { std::_Exit(1); }));
  int status = 0;
  CHECK(::waitpid(other, &status, 0) == other);
  CHECK(WEXITSTATUS(status) == 17);
}

TEST_CASE("spawn: in a program that ignores SIGCHLD or collects every child itself") {
  CHECK(in_child([] {
          std::signal(SIGCHLD, SIG_IGN);
          ddpp::spawn(3, [](int) {});
          const auto e = failure_of(2, [](int rank) {
            if (rank == 1) throw std::runtime_error("still told");
          });
          if (!e || e->rank() != 1 || !says(e->what(), "still told")) return 1;
          const auto killed = failure_of(2, [](int rank) {
            if (rank == 1) ::raise(SIGKILL);
          });
          return killed && killed->rank() == 1 && says(killed->what(), "SIGCHLD") ? 0 : 2;
        }) == 0);
  CHECK(in_child([] {
          std::signal(SIGCHLD, [](int) {
            while (::waitpid(-1, nullptr, WNOHANG) > 0) {
            }
          });
          for (int i = 0; i < 20; ++i) ddpp::spawn(2, [](int) {});
          return 0;
        }) == 0);
}

TEST_CASE("spawn: interrupted all the time") {
  CHECK(in_child([] {
          struct sigaction action {};
          action.sa_handler = [](int) {};
          ::sigaction(SIGALRM, &action, nullptr);
          const itimerval often{{0, 1000}, {0, 1000}};
          ::setitimer(ITIMER_REAL, &often, nullptr);
          ddpp::spawn(2, [&](int) {
            ::setitimer(ITIMER_REAL, &often, nullptr);
            ddpp::tcp_store store("127.0.0.1",
                                  static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
            for (int i = 0; i < 100; ++i) store.add("n", 1);
            while (store.add("n", 0) < 200) std::this_thread::sleep_for(1ms);
          });
          return 0;
        }) == 0);
}

TEST_CASE("spawn: without descriptors for handles it polls") {
  CHECK(in_child([] {
          const rlimit few{static_cast<rlim_t>(open_descriptors()) + 6,
                           static_cast<rlim_t>(open_descriptors()) + 6};
          ::setrlimit(RLIMIT_NOFILE, &few);
          try {
            ddpp::spawn(40, [](int rank) {
              if (rank == 30) std::_Exit(4);
            });
          } catch (const ddpp::spawn_error& e) {
            return e.rank() == 30 && e.exit_code() == 4 ? 0 : 1;
          } catch (const ddpp::resource_error& e) {
            return says(e.what(), "descriptors") && !has_children() ? 0 : 2;  // the store could not be served
          }
          return 3;
        }) == 0);
}

TEST_CASE("spawn: when the system refuses to fork, what was started is ended") {
  CHECK(in_child([] {
          if (::geteuid() == 0 && ::setuid(54321) != 0) return 10;  // root has no limit
          const rlimit two{2, 2};
          ::setrlimit(RLIMIT_NPROC, &two);
          try {
            ddpp::spawn(8, [](int) { stay(); });
          } catch (const ddpp::resource_error& e) {
            return says(e.what(), "rank ") && says(e.what(), "of 8") && !has_children() ? 0 : 1;
          }
          return 2;
        }) == 0);
}

TEST_CASE("start_processes: join with a timeout, process ids, an end by destruction") {
  witness go, alive;
  {
    auto running = ddpp::start_processes(2, [&](int) {
      go.hear(1);
      alive.say("a");
    });
    CHECK(running.pids().size() == 2);
    for (const pid_t pid : running.pids()) CHECK(::kill(pid, 0) == 0);
    CHECK_FALSE(running.join(20ms));
    CHECK_FALSE(running.join(0ms));
    go.say("xx");
    CHECK(running.join());
    CHECK(running.join());
    CHECK(running.join(0ms));
  }
  CHECK(alive.hear(2) == "aa");
  {
    auto abandoned = ddpp::start_processes(2, [&](int) {
      alive.say("b");
      stay();
    });
    CHECK(alive.hear(2) == "bb");
    auto moved = std::move(abandoned);
  }
  CHECK(alive.hear_all() == "");
  CHECK_FALSE(has_children());
}

TEST_CASE("start_processes: a context in a forked child ends nobody") {
  witness go;
  auto running = ddpp::start_processes(1, [&](int) { go.hear(1); });
  CHECK(in_child([&] {
          { const auto mine = std::move(running); }
          return 0;
        }) == 0);
  CHECK_FALSE(running.join(20ms));
  go.say("x");
  CHECK(running.join());
}

TEST_CASE("spawn: inside a rank") {
  witness all;
  ddpp::spawn(2, [&](int) { ddpp::spawn(2, [&](int) { all.say("x"); }); });
  CHECK(all.hear_all() == "xxxx");
}

TEST_CASE("spawn: 100 times, and nothing is left") {
  ddpp::spawn(2, [](int) {});
  const std::size_t descriptors = open_descriptors(), running = running_threads();
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 9)
      CHECK(failure_of(2, [](int) { std::_Exit(1); }));
    else
      ddpp::spawn(2, [](int) {});
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(running_threads() == running);
  CHECK_FALSE(has_children());
}
