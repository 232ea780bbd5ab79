// SPDX-License-Identifier: BSL-1.0
// Ranks that have gone are missed where others wait for them to form a group, too.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/init.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/tcp_store.hpp>

#include <string>
#include <unistd.h>
#include <vector>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Returns on `leaver` once nobody else is in an operation that needs it.
template <class C>
void until_free_to_go(C& comm, int leaver) {
  ddpp::barrier(comm);
  std::vector<int> token(1);
  if (comm.rank() != leaver) return ddpp::send(comm, token, leaver);
  for (int r = 0; r < comm.size(); ++r) {
    if (r != leaver) ddpp::recv(comm, token, r);
  }
}

constexpr bool are_processes = transport::launch == ddpp::launch_kind::processes;

/// Rank 1 of 3 goes; the others want a group with it, in which it is the first or a later rank.
template <class F>
void check_group_without_rank_1(F go) {
  for (const std::vector<int>& members : {std::vector<int>{0, 1, 2}, {1, 0, 2}}) {
    on_ranks(3, [&](auto& comm) {
      until_free_to_go(comm, 1);
      if (comm.rank() == 1) return go();
      const std::string text = EXPECT_THROWS(ddpp::peer_lost, (void)comm.subgroup(members));
      EXPECT(says(text, "rank 1"));
      EXPECT_THROWS(ddpp::peer_lost, ddpp::barrier(comm));
    });
  }
}

}  // namespace

CASE_WHERE(ddpp::has_control_plane<transport>, "a group is not waited for once one of its ranks has left") {
  check_group_without_rank_1([] {});
}

CASE_WHERE(are_processes, "a group is not waited for once one of its ranks has died") {
  check_group_without_rank_1([] { ::_exit(0); });
}

CASE_WHERE(are_processes, "a group is not waited for once the rank that serves the store has died") {
  const auto port = ddpp::detail::store_listener("127.0.0.1", 0).port();
  const std::string url = "tcp://127.0.0.1:" + std::to_string(port);
  CHECK_NOTHROW(ddpp::spawn(3, [&](int rank) {
    auto comm =
        ddpp::init<transport>({.init_method = url, .rank = rank, .world_size = 3, .timeout = generous});
    until_free_to_go(comm, 0);
    if (rank == 0) ::_exit(0);
    EXPECT(says(EXPECT_THROWS(ddpp::peer_lost, (void)comm.subgroup({1, 0, 2})), "rank 0"));
  }));
}
