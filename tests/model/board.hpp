// SPDX-License-Identifier: BSL-1.0
// The board on which a rank shows its collective.
#pragma once

#include <ddpp/detail/state_board.hpp>
#include <ddpp/fingerprint.hpp>

#include <doctest/doctest.h>

#include "explore.hpp"

namespace model {

struct board_test : rl::test_suite<board_test, 3> {
  static constexpr unsigned states = 3;

  ddpp::detail::state_board<relacy_atomics> board;

  void thread(unsigned index) { index == 0 ? write() : read(); }

  void write() {
    ddpp::fingerprint print;
    for (unsigned i = 1; i <= states; ++i) {
      print.sequence = print.count = print.step = print.counts = i;
      board.write(print, i % 2 != 0);
    }
  }
  void read() {
    unsigned last = 0;
    for (int i = 0; i < 3; ++i) {
      const auto seen = board.read();
      if (!seen) continue;
      const ddpp::fingerprint& print = seen->last;
      RL_ASSERT(print.sequence == print.count && print.sequence == print.step &&
                print.sequence == print.counts);
      RL_ASSERT(seen->inside == (print.sequence % 2 != 0) && print.sequence >= last);
      last = print.step;
    }
  }
};

TEST_CASE("board: no mixture is taken for a state") { check_right(at_random<board_test>(20'000)); }

TEST_CASE("board: release and acquire are needed") {
  check_wrong(at_random<board_test>(50'000, {flaw::relaxed_stores, 0}), rl::test_result_user_assert_failed);
  check_wrong(at_random<board_test>(50'000, {flaw::relaxed_loads, 1}), rl::test_result_user_assert_failed);
}

}  // namespace model
