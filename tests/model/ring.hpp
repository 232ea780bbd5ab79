// SPDX-License-Identifier: BSL-1.0
// The ring, by itself: one thread fills it, another empties it, both look until there is room or an entry.
#pragma once

#include <ddpp/detail/spsc_ring.hpp>

#include <doctest/doctest.h>

#include "explore.hpp"

namespace model {

template <int Entries>
struct ring_test : rl::test_suite<ring_test<Entries>, 2> {
  using entry = relacy_atomics::plain<int>;
  static constexpr std::uint32_t room = 2;

  ddpp::detail::spsc_ring<entry, room, relacy_atomics> ring;

  void thread(unsigned index) { index == 0 ? produce() : consume(); }

  void produce() {
    ddpp::detail::ring_producer<entry, room, relacy_atomics> to(ring);
    for (int i = 0; i < Entries;) {
      if (entry* const slot = to.room()) {
        *slot = i++;
        to.push();
      } else {
        rl::yield(1, here());
      }
    }
  }
  void consume() {
    ddpp::detail::ring_consumer<entry, room, relacy_atomics> from(ring);
    for (int i = 0; i < Entries;) {
      if (const entry* const slot = from.front()) {
        RL_ASSERT(*slot == i++);
        from.pop();
      } else {
        rl::yield(1, here());
      }
    }
  }
};

TEST_CASE("ring: entries arrive whole and in order") {
  check_right(at_random<ring_test<6>>(50'000));
  check_right(with_interruptions<ring_test<4>>(6));
}

TEST_CASE("ring: release and acquire would do") {
  check_right(at_random<ring_test<6>>(50'000, {flaw::release_acquire}));
}

TEST_CASE("ring: release and acquire are needed on both sides, in both directions") {
  for (const unsigned thread : {0u, 1u}) {
    check_wrong(at_random<ring_test<6>>(100'000, {flaw::relaxed_stores, thread}), rl::test_result_data_race);
    check_wrong(at_random<ring_test<6>>(100'000, {flaw::relaxed_loads, thread}), rl::test_result_data_race);
  }
}

}  // namespace model
