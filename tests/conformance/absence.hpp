// SPDX-License-Identifier: BSL-1.0
// Ranks that have gone are missed where others wait for them to form a group, too.
#pragma once

#include <ddpp/concepts.hpp>

#include <unistd.h>
#include <vector>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Rank 1 of 3 goes; the others want a group with it, in which it is the first or a later rank.
template <class F>
void check_group_without_rank_1(F go) {
  for (const std::vector<int>& members : {std::vector<int>{0, 1, 2}, {1, 0, 2}}) {
    on_ranks(3, [&](auto& comm) {
      ddpp::barrier(comm);
      if (comm.rank() == 1) return go();
      const std::string text = EXPECT_THROWS(ddpp::peer_lost, (void)comm.subgroup(members));
      EXPECT(says(text, "rank 1"));
      EXPECT_THROWS(ddpp::peer_lost, ddpp::barrier(comm));
    });
  }
}

}  // namespace

TEST_CASE("a group is not waited for once one of its ranks has left") {
  if constexpr (ddpp::has_control_plane<transport>) check_group_without_rank_1([] {});
}

TEST_CASE("a group is not waited for once one of its ranks has died") {
  if constexpr (transport::launch == ddpp::launch_kind::processes) {
    check_group_without_rank_1([] { ::_exit(0); });
  }
}
