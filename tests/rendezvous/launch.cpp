// SPDX-License-Identifier: BSL-1.0
// A function on new ranks, as threads and as processes; a backend by its name.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/spawn.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include "../support/process.hpp"

using support::says;

using namespace std::chrono_literals;

namespace {

/// A transport that cannot be made on one rank.
class broken_on_rank_1 : public ddpp::threads {
 public:
  broken_on_rank_1(const ddpp::bootstrap& boot, const options& with) : ddpp::threads(checked(boot), with) {}

 private:
  static const ddpp::bootstrap& checked(const ddpp::bootstrap& boot) {
    if (boot.rank == 1) throw ddpp::resource_error("no memory for rank 1");
    return boot;
  }
};

/// A transport whose rank dies before it has met the others, who say at `witness` that they heard of it.
template <class Base, int victim>
class dies_early : public Base {
 public:
  static inline int witness = -1;
  dies_early(const ddpp::bootstrap& boot, const typename Base::options& with) try
      : Base(checked(boot), with) {
  } catch (const ddpp::error& e) {
    if (says(e.what(), "rank " + std::to_string(victim) + " ")) (void)!::write(witness, "h", 1);
    throw;
  }

 private:
  static const ddpp::bootstrap& checked(const ddpp::bootstrap& boot) {
    if (boot.rank == victim) ::raise(SIGKILL);
    return boot;
  }
};

template <class Transport, int victim>
void reports_early_death() {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Transport::witness = ends[1];
  int rank = -1, signal = 0;
  try {
    ddpp::launch<Transport>(3, [](auto&) {});
  } catch (const ddpp::spawn_error& e) {
    rank = e.rank();
    signal = e.signal();
  }
  CHECK(rank == victim);
  CHECK(signal == SIGKILL);
  ::close(ends[1]);
  char heard[4];
  CHECK(::read(ends[0], heard, sizeof heard) == 2);
  ::close(ends[0]);
}

template <class Base, int victim>
void reports_early_death_of() {
  reports_early_death<dies_early<Base, victim>, victim>();
}

template <class Comm>
void add_up(Comm& comm, int n) {
  std::vector<int> x(3, comm.rank() + 1);
  ddpp::all_reduce(comm, x);
  if (comm.size() != n || x[2] != n * (n + 1) / 2) throw std::logic_error("wrong sum");
}

template <class T>
void runs_on_each_rank() {
  for (const int n : {1, 2, 5}) {
    ddpp::launch<T>(n, [n](auto& comm) { add_up(comm, n); });
  }
}

}  // namespace

TEST_CASE("launch: threads") { runs_on_each_rank<ddpp::threads>(); }
TEST_CASE("launch: processes") { runs_on_each_rank<ddpp::shm>(); }
TEST_CASE("launch: processes over tcp") { runs_on_each_rank<ddpp::tcp>(); }

TEST_CASE("launch: processes find their numbers in the environment, and no surrounding launcher's") {
  REQUIRE(::setenv("DDPP_RANK", "7", 1) == 0);
  REQUIRE(::setenv("MASTER_PORT", "1", 1) == 0);
  ddpp::launch<ddpp::shm>(3, [](auto& comm) {
    const auto is = [](const char* name, const std::string& value) {
      const char* const set = std::getenv(name);
      return set ? set == value : value.empty();
    };
    const std::string me = std::to_string(comm.rank());
    if (!is("RANK", me) || !is("LOCAL_RANK", me) || !is("WORLD_SIZE", "3") || !is("LOCAL_WORLD_SIZE", "3") ||
        !is("DDPP_RANK", "") || !is("MASTER_PORT", "") || ddpp::local_rank() != comm.rank() ||
        ddpp::local_size() != 3 || ddpp::launched_ranks() != 3) {
      throw std::logic_error("another environment than expected");
    }
  });
  ::unsetenv("DDPP_RANK");
  ::unsetenv("MASTER_PORT");
}

TEST_CASE("launch: init in processes makes other groups of the same ranks; subgroups work") {
  ddpp::launch<ddpp::shm>(3, [](auto& comm) {
    for (int i = 0; i < 3; ++i) {
      auto by_tcp = ddpp::init<ddpp::tcp>();
      auto named = ddpp::init<ddpp::shm>({.group_name = "named"});
      add_up(by_tcp, 3);
      add_up(named, 3);
      auto alike = comm.duplicate();
      add_up(alike, 3);
      if (comm.rank() == 1) continue;
      auto two = comm.subgroup({2, 0});
      add_up(two, 2);
    }
    auto again = ddpp::init<ddpp::shm>({.rank = comm.rank(), .world_size = 3});
    add_up(again, 3);
  });
}

TEST_CASE("launch: a rank can launch and spawn ranks of its own") {
  ddpp::launch<ddpp::shm>(2, [](auto& comm) {
    ddpp::launch<ddpp::shm>(3, [](auto& inner) {
      add_up(inner, 3);
      auto other = ddpp::init<ddpp::shm>();
      add_up(other, 3);
    });
    ddpp::spawn(2, [](int) {
      auto inner = ddpp::init<ddpp::shm>();
      add_up(inner, 2);
    });
    add_up(comm, 2);
  });
}

TEST_CASE("launch: a process that dies before the group has come together is known to the others at once") {
  reports_early_death_of<ddpp::shm, 0>();
  reports_early_death_of<ddpp::shm, 2>();
  reports_early_death_of<ddpp::tcp, 0>();
  reports_early_death_of<ddpp::tcp, 1>();
}

TEST_CASE("launch: leaves no descriptors and no children, whether it ends well or not") {
  const auto once = [](bool well) {
    try {
      ddpp::launch<ddpp::shm>(2, [&](auto& comm) {
        ddpp::barrier(comm);
        if (!well && comm.rank() == 1) ::raise(SIGKILL);
      });
    } catch (const ddpp::spawn_error&) {
    }
  };
  once(true);
  const std::size_t before = support::open_descriptors();
  for (int i = 0; i < 20; ++i) once(i % 4 != 0);
  CHECK(support::open_descriptors() == before);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("launch: threads share the program's memory and can launch again") {
  std::atomic<int> ran{0};
  ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
    ++ran;
    if (comm.rank() == 0) ddpp::launch<ddpp::threads>(2, [&](auto&) { ++ran; });
    ddpp::barrier(comm);
    if (ran != 5) throw std::logic_error("not all have run");
  });
  CHECK(ran == 5);
}

TEST_CASE("launch: the first exception comes out as it was, and the other ranks hear of it") {
  std::atomic<int> heard{0};
  const auto one_throws = [&] {
    ddpp::launch<ddpp::threads>(4, [&](auto& comm) {
      if (comm.rank() == 2) throw std::range_error("rank 2 had enough");
      try {
        for (;;) ddpp::barrier(comm);
      } catch (const ddpp::revoked_error& e) {
        if (e.rank() == 2 && says(e.what(), "had enough")) ++heard;
        throw;
      }
    });
  };
  CHECK_THROWS_WITH_AS(one_throws(), "rank 2 had enough", std::range_error);
  CHECK(heard == 3);
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(2,
                                              [](auto& comm) {
                                                if (comm.rank() == 1) throw 42;
                                                for (;;) ddpp::barrier(comm);
                                              }),
                  int);
}

TEST_CASE("launch: a rank whose transport cannot be made holds up nobody") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(ddpp::launch<broken_on_rank_1>(3, [](auto&) {}), "no memory for rank 1",
                       ddpp::resource_error);
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("launch: of processes, the first failure is reported, and the others hear of it") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  int rank = -1;
  std::string text;
  try {
    ddpp::launch<ddpp::shm>(3, [&](auto& comm) {
      if (comm.rank() == 1) throw std::range_error("rank 1 had enough");
      try {
        for (;;) ddpp::barrier(comm);
      } catch (const ddpp::revoked_error& e) {
        if (e.rank() == 1 && says(e.what(), "had enough")) (void)!::write(ends[1], "h", 1);
        throw;
      }
    });
  } catch (const ddpp::spawn_error& e) {
    rank = e.rank();
    text = e.what();
  }
  CHECK(rank == 1);
  CHECK(says(text, "rank 1 had enough"));
  ::close(ends[1]);
  char heard[4];
  CHECK(::read(ends[0], heard, sizeof heard) == 2);
  ::close(ends[0]);
}

TEST_CASE("launch: a process that dies is the one reported, not those who miss it") {
  for (int victim = 0; victim < 3; ++victim) {
    int rank = -1, signal = 0;
    try {
      ddpp::launch<ddpp::shm>(3, [&](auto& comm) {
        ddpp::barrier(comm);
        if (comm.rank() == victim) ::raise(SIGKILL);
        for (;;) ddpp::barrier(comm);
      });
    } catch (const ddpp::spawn_error& e) {
      rank = e.rank();
      signal = e.signal();
    }
    CHECK(rank == victim);
    CHECK(signal == SIGKILL);
  }
}

TEST_CASE("launch: what it cannot mean") {
  const auto nothing = [](auto&) {};
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(0, nothing), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::shm>(-1, nothing), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(2, nothing, {.rank = 0, .world_size = 2}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::shm>(2, nothing, {.init_method = "env://"}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(2, nothing, {.timeout = 0ms}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::shm>(2, nothing, {.init_timeout = 0ms}), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(2, nothing, {.store = std::make_shared<ddpp::hash_store>()}),
                  ddpp::usage_error);
}

TEST_CASE("launch: a communicator that was moved away") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    auto mine = std::move(comm);
    ddpp::barrier(mine);
  });
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(1,
                                              [](auto& comm) {
                                                auto mine = std::move(comm);
                                                throw std::range_error("after the move");
                                              }),
                  std::range_error);
}
