// SPDX-License-Identifier: BSL-1.0
// Random sequences of deaths, goodbyes and revocations under load, in processes. Whoever is left recovers or
// shrinks, goes on, and must end up with the right members, in the old order, and right sums.
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/error.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <doctest/doctest.h>
#include <memory>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"

namespace failure {

using namespace std::chrono_literals;
using support::expect;

enum class fate { survives, dies, leaves };

/// What happens in a run: the same for all who make it from one seed.
struct script {
  explicit script(unsigned seed) {
    std::mt19937 random(seed);
    fates.resize(2 + random() % 5);
    for (fate& each : fates) {
      const auto drawn = random() % 10;
      each = drawn < 4 ? fate::dies : drawn < 5 ? fate::leaves : fate::survives;
    }
    fates[random() % fates.size()] = fate::survives;
    served_by_rank_0 = random() % 2 == 0;
  }

  int ranks() const { return static_cast<int>(fates.size()); }
  std::vector<int> survivors() const {
    std::vector<int> who;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (fates[static_cast<std::size_t>(rank)] == fate::survives) who.push_back(rank);
    }
    return who;
  }

  std::vector<fate> fates;
  bool served_by_rank_0 = false;  // the store dies with it, if it does
};

inline std::int64_t bit_of(int rank) { return std::int64_t{1} << rank; }

inline std::int64_t mask_of(const std::vector<int>& ranks) {
  std::int64_t mask = 0;
  for (const int rank : ranks) mask |= bit_of(rank);
  return mask;
}

/// Several collectives and a message in flight at once. Returns who took part.
template <class C>
std::int64_t step(C& comm, int origin, int number) {
  const std::size_t size = 1 + static_cast<std::size_t>(number) * 7919 % 30'000;
  std::vector<std::int64_t> members(size, bit_of(origin));
  std::vector<double> ones(size + 1, 1.0), out(9, number), in(9);
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  auto received = ddpp::irecv(comm, in, previous, number);
  auto first = ddpp::all_reduce_async(comm, members);
  auto second = ddpp::all_reduce_async(comm, ones);
  auto sent = ddpp::isend(comm, out, next, number);
  first.wait();
  second.wait();
  received.wait();
  sent.wait();
  expect(members.front() == members.back(), "the sum is the same everywhere");
  expect(std::popcount(static_cast<std::uint64_t>(members[0])) == comm.size(), "each counts once");
  expect((members[0] & bit_of(origin)) != 0, "this rank counts");
  expect(ones[size] == comm.size() && in[8] == number, "sums and messages are right");
  return members[0];
}

/// Goes on with those that are left. After a revocation that is everyone, unless somebody dies meanwhile.
template <class C>
void go_on(C& comm, bool somebody_is_lost) {
  if (!somebody_is_lost) {
    try {
      return comm.recover();
    } catch (const ddpp::group_error&) {  // somebody is, or others know so already
    }
  }
  comm = comm.shrink();
}

template <class T>
void run_rank(const script& plan, unsigned seed, int origin, const ddpp::bootstrap& boot) {
  std::mt19937 random(seed * 64 + static_cast<unsigned>(origin));
  const fate mine = plan.fates[static_cast<std::size_t>(origin)];
  const auto until_end = std::chrono::microseconds(random() % 20'000);
  auto steps_until_goodbye = random() % 20, revocations_left = random() % 3;
  ddpp::communicator<T> comm(boot);
  std::thread killer;
  if (mine == fate::dies) {
    killer = std::thread([until_end] {
      std::this_thread::sleep_for(until_end);
      ::kill(::getpid(), SIGKILL);
    });
  }
  const std::vector<int> survivors = plan.survivors();
  bool resuming = false;
  for (int number = 0;;) {
    try {
      if (mine == fate::leaves && steps_until_goodbye-- == 0) return;
      if (resuming) {
        std::vector<int> last{number};
        ddpp::all_reduce(comm, last, ddpp::min);
        number = last[0];
        resuming = false;
      }
      if (revocations_left > 0 && random() % 8 == 0) {
        --revocations_left;
        comm.revoke("a whim");
      }
      const std::int64_t members = step(comm, origin, number++);
      if (members != mask_of(survivors) || number < 20) continue;
      revocations_left = 0;
      if (comm.agree(true)) break;
    } catch (const ddpp::revoked_error& e) {
      expect(e.rank() >= 0 && e.rank() < comm.size(), "who revoked is a member");
      go_on(comm, false);
      resuming = true;
    } catch (const ddpp::peer_lost&) {
      go_on(comm, true);
      resuming = true;
    }
  }
  expect(comm.size() == static_cast<int>(survivors.size()), "all survivors are members");
  expect(survivors[static_cast<std::size_t>(comm.rank())] == origin, "they keep their order");
  if (mine == fate::dies) killer.join();
}

/// Where the ranks meet: a file, or a server in rank 0.
inline std::shared_ptr<ddpp::store> meeting_place(const support::scratch_directory& directory, bool served,
                                                  int rank) {
  auto file = std::make_shared<ddpp::file_store>(directory.file("store"));
  if (!served) return file;
  const ddpp::tcp_store_options options{.timeout = 60s, .secret = ddpp::secret("the job's own")};
  if (rank == 0) {
    auto server =
        std::make_shared<ddpp::tcp_store>("127.0.0.1", std::uint16_t{0}, ddpp::tcp_store::server, options);
    file->set("port", std::to_string(server->port()));
    return server;
  }
  const auto port = static_cast<std::uint16_t>(std::stoi(file->get("port")));
  return std::make_shared<ddpp::tcp_store>("127.0.0.1", port, ddpp::tcp_store::client, options);
}

template <class T>
void run(unsigned seed) {
  CAPTURE(seed);
  const script plan(seed);
  const support::scratch_directory directory;
  const ddpp::file_store kept(directory.file("store"));  // else the first rank to leave it may remove it
  std::vector<pid_t> children;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    children.push_back(support::fork_child([&] {
      ::alarm(100);  // nothing hangs
      ddpp::bootstrap boot =
          support::bootstrap_of(rank, plan.ranks(), meeting_place(directory, plan.served_by_rank_0, rank));
      boot.secret = "the job's own";
      run_rank<T>(plan, seed, rank, boot);
    }));
  }
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    CAPTURE(rank);
    CHECK(support::status_of(children[rank]) == (plan.fates[rank] == fate::dies ? SIGKILL : 0));
  }
}

}  // namespace failure

TEST_CASE("random deaths, goodbyes and revocations: the right members go on, with right sums") {
  for (unsigned seed = 0; seed < 100; ++seed) failure::run<TRANSPORT>(seed);
}
