// SPDX-License-Identifier: BSL-1.0
// Sleeping and waking. A wake-up that is lost is a deadlock here, as no time passes.
#pragma once

#include <ddpp/detail/parking.hpp>
#include <ddpp/detail/spsc_ring.hpp>

#include <cstdint>
#include <doctest/doctest.h>

#include "explore.hpp"

namespace model {

using parking = ddpp::detail::parking<relacy_atomics>;

/// The steps in which message_engine sleeps.
template <class Found>
void park_until(parking& mine, std::uint32_t reasons, Found found) {
  while (!found()) {
    const std::uint32_t ticket = mine.announce(reasons);
    if (has(flaw::no_second_look) || !found()) mine.sleep(ticket, {});
    mine.cancel();
  }
}

/// The owner waits for what several others do, each at its own time.
template <int Others>
struct waking_test : rl::test_suite<waking_test<Others>, 1 + Others> {
  parking place;
  relacy_atomics::atomic<int> done[Others];

  void thread(unsigned index) {
    if (index == 0) {
      for (auto& one : done) {
        park_until(place, 1, [&] { return one.load(std::memory_order_seq_cst) != 0; });
      }
    } else {
      done[index - 1].store(1, std::memory_order_seq_cst);
      place.wake(1);
    }
  }
};

/// A ring whose producer sleeps until there is room, and whose consumer until there is an entry.
template <int Entries>
struct sleeping_ring_test : rl::test_suite<sleeping_ring_test<Entries>, 2> {
  using entry = relacy_atomics::plain<int>;
  static constexpr std::uint32_t room = 2, for_entries = 1, for_room = 2;

  ddpp::detail::spsc_ring<entry, room, relacy_atomics> ring;
  parking producers, consumers;

  void thread(unsigned index) { index == 0 ? produce() : consume(); }

  void produce() {
    ddpp::detail::ring_producer<entry, room, relacy_atomics> to(ring);
    for (int i = 0; i < Entries; ++i) {
      entry* slot = nullptr;
      park_until(producers, for_entries | for_room, [&] { return (slot = to.room()) != nullptr; });
      *slot = i;
      to.push();
      consumers.wake(for_entries);
    }
  }
  void consume() {
    ddpp::detail::ring_consumer<entry, room, relacy_atomics> from(ring);
    for (int i = 0; i < Entries; ++i) {
      const entry* slot = nullptr;
      park_until(consumers, for_entries, [&] { return (slot = from.front()) != nullptr; });
      RL_ASSERT(*slot == i);
      from.pop();
      producers.wake(for_room);
    }
  }
};

TEST_CASE("parking: no wake-up is lost") {
  check_right(at_random<waking_test<1>>(50'000));
  check_right(at_random<waking_test<3>>(50'000));
  check_right(at_random<sleeping_ring_test<5>>(50'000));
  check_right(with_interruptions<waking_test<2>>(3));
  check_right(with_interruptions<sleeping_ring_test<4>>(3));
}

TEST_CASE("parking: wake-ups are lost without sequential consistency") {
  check_wrong(at_random<waking_test<1>>(100'000, {flaw::release_acquire}), rl::test_result_deadlock);
  check_wrong(at_random<sleeping_ring_test<5>>(100'000, {flaw::release_acquire}), rl::test_result_deadlock);
}

TEST_CASE("parking: wake-ups are lost without a second look") {
  check_wrong(at_random<waking_test<1>>(100'000, {flaw::no_second_look}), rl::test_result_deadlock);
}

TEST_CASE("parking: wake-ups are lost if the doorbell is not bumped") {
  check_wrong(at_random<waking_test<1>>(100'000, {flaw::lost_increments}), rl::test_result_deadlock);
}

}  // namespace model
