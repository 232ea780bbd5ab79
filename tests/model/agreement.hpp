// SPDX-License-Identifier: BSL-1.0
// The consensus: whatever ranks die, and however little time some have, those who hear a verdict hear the
// same.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/fabric_agreement.hpp>
#include <ddpp/detail/fabric_memory.hpp>

#include <algorithm>
#include <cstdint>
#include <doctest/doctest.h>
#include <string>

#include "explore.hpp"

namespace model {

/// Stands in for fabric_memory.
class ballot_memory {
 public:
  using atomics = relacy_atomics;
  template <class T>
  using atomic = relacy_atomics::atomic<T>;

  struct ballot {
    atomic<std::uint64_t> number{0};
    atomic<ddpp::decision> decision;
    atomic<bool> yes;
    atomic<std::uint8_t> note_bytes;
    atomic<char> note[1];
  };
  struct ballot_box {
    ballot two[2];
    ballot& operator[](std::uint64_t number) { return two[has(flaw::one_ballot) ? 0 : number]; }
  };
  struct rank_slot {
    atomic<ddpp::detail::fabric_presence> presence{ddpp::detail::fabric_presence::here};
    mutable ballot_box ballots;
    atomic<bool> exists{true};
  };
  struct head {
    atomic<std::uint64_t> decided{0};
    atomic<std::uint32_t> agreement_bell{0};
  };

  static constexpr int ranks() { return 3; }
  head& header() { return header_; }
  rank_slot& slot(int rank) { return slots_[rank]; }
  bool exists(int rank) { return slots_[rank].exists; }
  atomic<ddpp::attendance>& attended(bool odd, int decider, int rank) {
    return attended_[odd][decider][rank];
  }

 private:
  head header_;
  rank_slot slots_[3];
  atomic<ddpp::attendance> attended_[2][3][3];
};

struct agreement_test : rl::test_suite<agreement_test, ballot_memory::ranks()> {
  static constexpr int decisions = 3;
  static constexpr int ranks = ballot_memory::ranks();
  /// Rank 0 waits for nobody; rank 2 dies before, in or after the second decision.
  static inline bool hurried, mortal;
  static inline int missed = 0;  // verdicts that were overwritten before they had been read

  struct heard {
    std::string text;
    bool is_verdict = false;
  };
  ballot_memory memory;
  heard said[ranks][decisions];

  void thread(unsigned index) {
    const int rank = static_cast<int>(index);
    const auto until = hurried && rank == 0 ? ddpp::deadline::min() : ddpp::deadline::max();
    const unsigned death = mortal && rank == 2 ? rl::rand(3) : 3;
    for (int i = 0; i < decisions; ++i) {
      if (i == 1 && death == 0) break;
      const ddpp::ballot mine{.decision = static_cast<ddpp::decision>(rank == i ? 1 : 0),
                              .yes = (rank + i) % 4 != 0,
                              .note = std::string(1, static_cast<char>('a' + rank))};
      const auto number = static_cast<std::uint64_t>(i) + 1;
      note(said[rank][i], ddpp::detail::fabric_agreement(memory, rank).decide(number, mine, until));
      if (i == 1 && death == 1) break;
    }
    if (mortal && rank == 2) memory.slot(rank).exists = false;
  }

  static void note(heard& here, const ddpp::verdict& verdict) {
    for (const ddpp::attendance came : verdict.ranks) {
      here.is_verdict = here.is_verdict || came == ddpp::attendance::voted;
      here.text += std::to_string(static_cast<int>(came));
    }
    here.text += verdict.note + std::to_string(static_cast<int>(verdict.decision));
    here.text += verdict.yes ? 'y' : 'n';
    here.text += verdict.alike ? '=' : '!';
  }

  void after() {
    for (int i = 0; i < decisions; ++i) {
      const heard* first = nullptr;
      for (int rank = 0; rank < ranks; ++rank) {
        const heard& one = said[rank][i];
        missed += !one.is_verdict;
        if (!one.is_verdict) continue;
        if (first == nullptr) first = &one;
        RL_ASSERT(one.text == first->text);
      }
      RL_ASSERT(first != nullptr);
      if (!hurried && !mortal) RL_ASSERT(first->text == (i == 1 ? "222a1y!" : "222a1n!"));
    }
  }
};

inline outcome agree_at_random(bool hurried, bool mortal, rl::iteration_t executions, flaw with = {}) {
  agreement_test::hurried = hurried;
  agreement_test::mortal = mortal;
  relacy_atomics::sleeps_end = mortal;  // as nobody rings the bell for one who dies
  const outcome found = at_random<agreement_test>(executions, with);
  relacy_atomics::sleeps_end = false;
  return found;
}
TEST_CASE("agreement: all who hear a verdict hear the same") {
  check_right(agree_at_random(false, false, 5'000));
  check_right(agree_at_random(true, false, 5'000));
  check_right(agree_at_random(false, true, 5'000));
  check_right(agree_at_random(true, true, 5'000));
  CHECK(agreement_test::missed > 0);
}

TEST_CASE("agreement: a ballot must be seen before its number, and kept for one decision more") {
  check_wrong(agree_at_random(true, false, 100'000, {flaw::relaxed_stores, 1}),
              rl::test_result_user_assert_failed);
  check_wrong(agree_at_random(false, false, 10'000, {flaw::one_ballot}), rl::test_result_user_assert_failed);
}

}  // namespace model
