// SPDX-License-Identifier: BSL-1.0
// The way of a message: ring, chunk pool and parking together, in the steps of memory_link. One rank sends to
// two, which share its chunks.
#pragma once

#include <ddpp/detail/chunk_pool.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/spsc_ring.hpp>

#include <cstdint>
#include <doctest/doctest.h>

#include "explore.hpp"
#include "parking.hpp"

namespace model {

template <int Messages, int Receivers, std::uint32_t Room>
struct messages_test : rl::test_suite<messages_test<Messages, Receivers, Room>, 1 + Receivers> {
  struct entry {
    relacy_atomics::plain<int> chunk, number;  // the number, where there was no chunk to put it into
  };
  using ring = ddpp::detail::spsc_ring<entry, Room, relacy_atomics>;
  using producer = ddpp::detail::ring_producer<entry, Room, relacy_atomics>;
  using consumer = ddpp::detail::ring_consumer<entry, Room, relacy_atomics>;
  using pool = ddpp::detail::chunk_pool<2, relacy_atomics>;

  ring rings[Receivers];
  parking places[1 + Receivers];
  ddpp::detail::chunk_flag<relacy_atomics> flags[2];
  relacy_atomics::plain<int> chunks[2];

  void thread(unsigned index) { index == 0 ? send() : receive(static_cast<int>(index) - 1); }

  void send() {
    pool free(flags, Receivers);
    producer to[Receivers];
    int sent[Receivers] = {};
    for (int peer = 0; peer < Receivers; ++peer) to[peer] = producer(rings[peer]);
    const auto push_all = [&] {
      bool done = true;
      for (int peer = 0; peer < Receivers; ++peer) {
        while (sent[peer] < Messages && push(to[peer], free, peer, sent[peer])) ++sent[peer];
        done = done && sent[peer] == Messages;
      }
      return done;
    };
    park_until(places[0], ddpp::detail::wake_for_messages | ddpp::detail::wake_for_room, push_all);
  }
  // False: no room.
  bool push(producer& to, pool& free, int peer, int number) {
    entry* const slot = to.room();
    if (slot == nullptr) return false;
    const int chunk = free.take(peer);
    if (chunk != pool::none) {
      chunks[chunk] = number;
    } else if (free.holds_any(peer)) {
      return false;
    } else {
      slot->number = number;
    }
    slot->chunk = chunk;
    to.push();
    places[1 + peer].wake(ddpp::detail::wake_for_messages);
    return true;
  }

  void receive(int peer) {
    consumer from(rings[peer]);
    for (int i = 0; i < Messages; ++i) {
      const entry* next = nullptr;
      park_until(places[1 + peer], ddpp::detail::wake_for_messages,
                 [&] { return (next = from.front()) != nullptr; });
      const int chunk = next->chunk;
      if (chunk != pool::none) {
        RL_ASSERT(chunks[chunk] == i);
        flags[chunk].release();
        places[0].wake(ddpp::detail::wake_for_room);
      } else {
        RL_ASSERT(next->number == i);
      }
      from.pop();
      places[0].wake(ddpp::detail::wake_for_room);
    }
  }
};

TEST_CASE("messages: all arrive, each chunk is read before it is written again") {
  check_right(at_random<messages_test<4, 1, 2>>(20'000));
  check_right(at_random<messages_test<3, 2, 2>>(20'000));
  check_right(with_interruptions<messages_test<3, 1, 2>>(3));
}

TEST_CASE("messages: a chunk must be released") {
  // In a ring in which no slot is used twice.
  check_right(at_random<messages_test<4, 1, 4>>(20'000));
  check_wrong(at_random<messages_test<4, 1, 4>>(50'000, {flaw::relaxed_stores, 1}),
              rl::test_result_data_race);
}

/// A leader that parked when there was nothing to send; another thread of its rank has something, finds no
/// room, and has the leader ask for it. Both do all under the engine's mutex but sleep.
struct second_thread_test : rl::test_suite<second_thread_test, 3> {
  parking place;
  relacy_atomics::atomic<std::uint64_t> room{0};
  relacy_atomics::plain<bool> queued{false}, sent{false};
  rl::mutex mutex;

  void thread(unsigned index) { index == 0 ? lead() : index == 1 ? queue() : make_room(); }

  void lead() {
    mutex.lock(here());
    while (!sent) {
      const std::uint32_t reasons =
          ddpp::detail::wake_for_messages | (queued ? ddpp::detail::wake_for_room : 0);
      const std::uint32_t ticket = place.announce(reasons);
      push();
      if (sent) {
        place.cancel();
      } else {
        mutex.unlock(here());
        place.sleep(ticket, {});
        place.cancel();
        mutex.lock(here());
      }
    }
    mutex.unlock(here());
  }
  void queue() {
    mutex.lock(here());
    queued = true;
    push();
    const bool unasked = place.wanted() == ddpp::detail::wake_for_messages && !has(flaw::no_ring);
    if (sent || unasked) place.wake(ddpp::detail::wake_for_messages);
    mutex.unlock(here());
  }
  void make_room() {
    room.store(1, std::memory_order_seq_cst);
    place.wake(ddpp::detail::wake_for_room);
  }
  void push() {
    if (queued && room.load(std::memory_order_seq_cst) != 0) sent = true;
  }
};

TEST_CASE("messages: a leader asks for room once there is something to send") {
  check_right(at_random<second_thread_test>(50'000));
  check_right(with_interruptions<second_thread_test>(3));
  check_wrong(at_random<second_thread_test>(100'000, {flaw::no_ring}), rl::test_result_deadlock);
}

}  // namespace model
