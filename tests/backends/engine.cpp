// SPDX-License-Identifier: BSL-1.0
// The parts that the message engine and the fabric are made of.
#include <ddpp/detail/available_cores.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/operation.hpp>
#include <ddpp/detail/peer_set.hpp>
#include <ddpp/detail/slot_writer.hpp>
#include <ddpp/detail/spsc_ring.hpp>
#include <ddpp/detail/staging.hpp>
#include <ddpp/detail/streaming_copy.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

using namespace ddpp::detail;

TEST_CASE("copies take every length at every offset, and nothing else") {
  constexpr std::size_t room = 3000;
  std::vector<std::byte> from(room), to(room);
  for (std::size_t i = 0; i < room; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const auto copy : {copy_bytes, copy_streaming}) {
    bool right = true;
    for (std::size_t length = 0; length < 1300; length += (length < 1000 ? 97 : 1)) {
      for (const std::size_t from_at : {0u, 1u, 8u, 33u, 63u}) {
        for (const std::size_t to_at : {0u, 1u, 16u, 31u, 64u}) {
          std::memset(to.data(), 0xee, room);
          copy(to.data() + to_at, from.data() + from_at, length);
          finish_streaming();
          right = right && std::memcmp(to.data() + to_at, from.data() + from_at, length) == 0 &&
                  (to_at == 0 || to[to_at - 1] == std::byte{0xee}) && to[to_at + length] == std::byte{0xee};
        }
      }
    }
    CHECK(right);
  }
}

TEST_CASE("one slow sample is no reason to write past the caches, two in a row are") {
  line_cost cost;
  const auto high_after = [&](double nanoseconds_per_line) {
    cost.add(nanoseconds_per_line);
    return cost.is_high();
  };
  CHECK(!high_after(1e6));
  CHECK(!high_after(2));
  CHECK(!high_after(20));
  CHECK(high_after(18));
  CHECK(high_after(1e6));
  CHECK(!high_after(2));
}

TEST_CASE("a slot_writer's puts are whole, measured or not, streamed or not") {
  constexpr std::size_t room = std::size_t{40} << 10;
  std::vector<std::byte> from(room), to(room);
  for (std::size_t i = 0; i < room; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const bool large : {false, true}) {
    slot_writer writer(true);
    writer.open(large ? std::size_t{1} << 30 : room);
    CHECK(writer.streams() == large);
    bool right = true;
    for (std::size_t length = 1; length < room - 64; length += 301) {
      std::memset(to.data(), 0xee, room);
      writer.put(to.data() + length % 64, from.data() + length % 7, length);
      writer.finish();
      right = right && std::memcmp(to.data() + length % 64, from.data() + length % 7, length) == 0 &&
              to[length % 64 + length] == std::byte{0xee};
    }
    CHECK(right);
  }
}

TEST_CASE("what the system says of cores and quotas") {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  CHECK(cores_of_quota("150000 100000\n") == 1.5);  // version 2
  CHECK(cores_of_quota("50000\n100000\n") == 0.5);  // version 1, two files
  for (const char* const none :
       {"max 100000\n", "-1\n100000\n", "", "0 100000", "100000", "100000 0", "nonsense"})
    CHECK(cores_of_quota(none) == infinite);
  CHECK(available_cores() > 0);
  CHECK(available_cores() <= CPU_SETSIZE);
}

TEST_CASE("staging is aligned and comes back") {
  staging_pool pool;
  staging first = pool.take(10), second = pool.take(100'000);
  CHECK(reinterpret_cast<std::uintptr_t>(first.data()) % 64 == 0);
  CHECK(second.capacity() >= 100'000);
  std::byte* const large = second.data();
  pool.give_back(std::move(first));
  pool.give_back(std::move(second));
  CHECK(pool.take(50'000).data() == large);
  pool.give_back(staging());
  for (int i = 0; i < 100; ++i) pool.give_back(staging(std::size_t{1} << 20));  // does not hoard
}

TEST_CASE("peer_set") {
  peer_set set(130);
  CHECK(set.empty());
  for (const int peer : {0, 63, 64, 129}) set.set(peer, true);
  std::vector<int> seen;
  set.for_each([&](int peer) {
    seen.push_back(peer);
    set.set(peer, false);
  });
  CHECK(seen == std::vector<int>{0, 63, 64, 129});
  CHECK(set.empty());
  set.set(64, true);
  CHECK((set.contains(64) && !set.contains(65)));
}

TEST_CASE("operation lists and pools") {
  operation_pool pool;
  operation_list list;
  std::vector<operation*> nodes;
  for (int i = 0; i < 100; ++i) {
    nodes.push_back(&pool.take());
    nodes.back()->tag = i;
    list.push_back(*nodes.back());
  }
  list.remove(*nodes[0]);
  list.remove(*nodes[99]);
  list.remove(*nodes[50]);
  CHECK(list.front() == nodes[1]);
  CHECK(!nodes[50]->listed);
  CHECK(list.find([](const operation& op) { return op.tag == 50; }) == nullptr);
  CHECK(list.find([](const operation& op) { return op.tag == 98; }) == nodes[98]);
  for (int i = 1; i < 99; ++i) {
    if (i != 50) list.remove(*nodes[static_cast<std::size_t>(i)]);
  }
  CHECK(list.empty());
}

TEST_CASE("a ring keeps order and bounds, also when its counters wrap around") {
  using ring = spsc_ring<int, 4>;
  ring shared;
  ring_producer<int, 4> producer(shared);
  ring_consumer<int, 4> consumer(shared);
  CHECK(consumer.front() == nullptr);
  for (int i = 0; i < 4; ++i) {
    *producer.room() = i;
    producer.push();
  }
  CHECK(producer.room() == nullptr);
  CHECK(*consumer.front() == 0);
  consumer.pop();
  CHECK(producer.room() != nullptr);

  ring other;
  other.tail = other.head = std::numeric_limits<std::uint32_t>::max() - 50'000;
  std::thread writer([&] {
    ring_producer<int, 4> to(other);
    for (int i = 0; i < 100'000;) {
      if (int* const slot = to.room()) {
        *slot = i++;
        to.push();
      } else {
        std::this_thread::yield();
      }
    }
  });
  ring_consumer<int, 4> from(other);
  bool ordered = true;
  for (int i = 0; i < 100'000;) {
    if (const int* const slot = from.front()) {
      ordered = ordered && *slot == i++;
      from.pop();
    } else {
      std::this_thread::yield();
    }
  }
  writer.join();
  CHECK(ordered);
  CHECK(other.tail < 50'000);
}

TEST_CASE("a state board is never read as a mixture") {
  state_board board;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    ddpp::fingerprint print;
    for (std::uint64_t i = 1; !stop; ++i) {
      print.sequence = print.count = i;
      print.step = static_cast<std::uint32_t>(i);
      board.write(print, i % 2 != 0);
    }
  });
  bool whole = true;
  for (int i = 0; i < 20'000; ++i) {
    const auto state = board.read();
    if (!state) continue;
    whole = whole && state->last.sequence == state->last.count &&
            state->last.step == static_cast<std::uint32_t>(state->last.sequence) &&
            state->inside == (state->last.sequence % 2 != 0);
  }
  stop = true;
  writer.join();
  CHECK(whole);
}

TEST_CASE("the layout keeps alignments and does not overlap") {
  for (const int ranks : {1, 2, 3, 64, 100}) {
    const fabric_layout layout(ranks);
    const auto n = static_cast<std::size_t>(ranks);
    CHECK(layout.slots() >= sizeof(fabric_header));
    CHECK(layout.open_flags() >= layout.slots() + n * sizeof(fabric_slot));
    CHECK(layout.pools() >= layout.open_flags() + n * n);
    CHECK(layout.pools() % 4096 == 0);
    CHECK(layout.ring(0, 0) == layout.initial_bytes());
    CHECK(layout.ring(ranks - 1, ranks - 1) + sizeof(fabric_ring) <= layout.total_bytes());
    CHECK(layout.ring(0, 0) % 64 == 0);
  }
}

TEST_CASE("deadlines, however far; the cheap one at most a tick late") {
  using namespace std::chrono_literals;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (const auto timeout : {0ms, 1ms, 1000ms, std::chrono::milliseconds(1800s)}) {
    const auto before = now();
    CHECK(deadline_after(timeout) >= before + timeout);
    // The clock's last tick is never ahead, and would have to be a second old for this to be early.
    const auto soon = deadline_soon_after(timeout);
    CHECK(soon <= now() + timeout + 10ms);
    CHECK(soon >= before + timeout - 1s);
  }
  for (const auto far : {deadline_after(std::chrono::milliseconds::max()),
                         deadline_soon_after(std::chrono::milliseconds::max())}) {
    CHECK(far > now() + std::chrono::hours(24 * 364));
    CHECK(far < now() + std::chrono::hours(24 * 366));
  }
  for (const auto past : {deadline_after(-5ms), deadline_soon_after(-5ms)}) CHECK(past <= now() + 10ms);
}
