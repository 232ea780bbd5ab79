// SPDX-License-Identifier: BSL-1.0
// A function on new ranks, as threads and as processes; a backend by its name.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/launch.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
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

template <class T>
void runs_on_each_rank() {
  for (const int n : {1, 2, 5}) {
    ddpp::launch<T>(n, [n](auto& comm) {
      std::vector<int> x(3, comm.rank() + 1);
      ddpp::all_reduce(comm, x);
      if (comm.size() != n || x[2] != n * (n + 1) / 2) throw std::logic_error("wrong sum");
    });
  }
}

}  // namespace

TEST_CASE("launch: threads") { runs_on_each_rank<ddpp::threads>(); }
TEST_CASE("launch: processes") { runs_on_each_rank<ddpp::shm>(); }

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
