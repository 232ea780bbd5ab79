// SPDX-License-Identifier: BSL-1.0
// The rounds of the slots, and the collectives that go through them: fabric_slots.hpp and staged.hpp as they
// are, on memory, links and an engine of the model's.
#pragma once

#include <ddpp/algorithms/staged.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/fabric_slots.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <optional>
#include <vector>

#include "explore.hpp"
#include "parking.hpp"

namespace model {

template <class T>
using plain = relacy_atomics::plain<T>;

/// Stands in for fabric_memory. Room for slots is watched in pieces of 512 bytes.
template <int Ranks>
class slot_memory {
 public:
  using atomics = relacy_atomics;
  /// Three slots of 4 KiB, and the two for small ones.
  static constexpr std::size_t room = std::size_t{16} << 10;

  struct rank_slot {
    model::parking parking;
    ddpp::detail::fabric_arrival_flag<relacy_atomics> arrivals[2];
    ddpp::detail::fabric_collective collectives[2];
    relacy_atomics::atomic<std::uint64_t> reduced{0};
  };

  slot_memory() {
    for (auto& bytes : bytes_) bytes.fill(std::byte{0xff});  // NaN
  }
  static constexpr int ranks() { return Ranks; }
  rank_slot& slot(int rank) { return slots_[rank]; }
  std::byte* staging(int rank) { return bytes_[rank].data(); }
  static constexpr std::size_t staging_bytes() { return room; }

  /// Counts as an access to all of a slot.
  void touch(int rank, const std::byte* slot, std::size_t bytes, bool writes) {
    const auto access = [&](plain<int>& piece) {
      if (writes)
        piece = 0;
      else
        (void)static_cast<int>(piece);
    };
    if (slot == slots_[rank].arrivals[0].bytes) return access(pieces_[rank][pieces]);
    if (slot == slots_[rank].arrivals[1].bytes) return access(pieces_[rank][pieces + 1]);
    // Of large slots the pieces that belong to one slot alone; small ones begin with a piece.
    const auto at = static_cast<std::size_t>(slot - bytes_[rank].data());
    const std::size_t first = (at + piece_bytes - 1) / piece_bytes, end = (at + bytes) / piece_bytes;
    for (std::size_t i = first; i < std::max(end, first + 1); ++i) access(pieces_[rank][i]);
  }

  void reserve_staging(int, std::size_t) {}
  static bool has_failed() { return false; }
  static ddpp::failure first_failure() { return {}; }

 private:
  static constexpr std::size_t piece_bytes = 512, pieces = room / piece_bytes;

  rank_slot slots_[Ranks];
  plain<int> pieces_[Ranks][pieces + 2];  // the last two: slots in flags
  std::array<std::byte, room> bytes_[Ranks];
};

/// Stands in for memory_link and message_engine.
template <int Ranks>
class slot_waiter {
 public:
  slot_waiter(slot_memory<Ranks>& memory, int rank, bool sleeps)
      : memory_(memory), rank_(rank), sleeps_(sleeps) {}

  void wake_others() {
    for (int rank = 0; rank < Ranks; ++rank) {
      if (rank != rank_) memory_.slot(rank).parking.wake(ddpp::detail::wake_for_messages);
    }
  }
  template <class Arrived>
  void wait_for(int, Arrived arrived, ddpp::deadline) {
    if (sleeps_) return park_until(memory_.slot(rank_).parking, ddpp::detail::wake_for_messages, arrived);
    while (!arrived()) rl::yield(1, here());
  }

  // All are in one collective:
  static void fail_for(const ddpp::detail::suspicion&) { RL_ASSERT(false); }
  static void abort(const ddpp::failure&) { RL_ASSERT(false); }
  static ddpp::failure cause() { return {}; }
  static std::vector<ddpp::rank_state> survey() { return std::vector<ddpp::rank_state>(Ranks); }

 private:
  slot_memory<Ranks>& memory_;
  const int rank_;
  const bool sleeps_;
};

template <int Ranks>
class slots_of_rank
    : public ddpp::detail::basic_fabric_slots<slot_memory<Ranks>, slot_waiter<Ranks>, slot_waiter<Ranks>> {
 public:
  using basic = ddpp::detail::basic_fabric_slots<slot_memory<Ranks>, slot_waiter<Ranks>, slot_waiter<Ranks>>;

  slots_of_rank(slot_memory<Ranks>& memory, slot_waiter<Ranks>& waiter, int rank)
      : basic(memory, waiter, waiter, rank, ddpp::detail::slot_writer(false)), memory_(memory), rank_(rank) {}

  std::size_t most_bytes() const { return basic::most_bytes() * (has(flaw::short_room) ? 3 : 2) / 2; }
  void begin_round(std::size_t bytes, ddpp::deadline until) {
    if (!has(flaw::no_begin_round)) basic::settle(until);
    basic::take_slot(bytes);
    last_bytes_ = bytes_;
    bytes_ = bytes;
    has_arrived_ = false;
  }
  std::byte* slot(int rank) { return look(rank, basic::slot(rank), bytes_); }
  std::byte* last_slot(int rank) { return look(rank, basic::last_slot(rank), last_bytes_); }
  void arrive(const ddpp::detail::symmetric_place& place = {}) {
    has_arrived_ = true;
    basic::arrive(place);
  }

 private:
  std::byte* look(int rank, std::byte* slot, std::size_t bytes) {
    if (has(flaw::one_slot)) slot = memory_.staging(rank);
    memory_.touch(rank, slot, bytes, rank == rank_ && !has_arrived_);
    return slot;
  }

  slot_memory<Ranks>& memory_;
  const int rank_;
  std::size_t bytes_ = 0, last_bytes_ = 0;
  bool has_arrived_ = false;
};

/// A rank's communicator, and its transport.
template <int Ranks>
class slots_comm {
 public:
  using transport_type = slots_comm;

  slots_comm(slot_memory<Ranks>& memory, int rank, bool sleeps)
      : rank_(rank), waiter_(memory, rank, sleeps), slots_(memory, waiter_, rank) {}

  int rank() const { return rank_; }
  static int size() { return Ranks; }
  static ddpp::deadline deadline() { return ddpp::deadline::max(); }
  slots_comm& transport() { return *this; }
  slots_of_rank<Ranks>& shared_slots() { return slots_; }

  /// As memory_transport does before each collective.
  void enter() {
    if (!has(flaw::no_begin_round)) slots_.settle(deadline());
    print_.sequence += 1;
    slots_.enter(print_);
  }

 private:
  const int rank_;
  slot_waiter<Ranks> waiter_;
  slots_of_rank<Ranks> slots_;
  ddpp::fingerprint print_;
};

// Makes what the process has one of, before a test's allocations are counted.
inline const ddpp::detail::fork_guard first_guard;

// What the ranks do, all the same.

template <int Ranks>
double sum_of_ranks(double each) {
  return each * Ranks + Ranks * (Ranks - 1) / 2;
}

template <int Ranks>
void all_reduces(slots_comm<Ranks>& comm, std::size_t count, int times) {
  std::vector<double> data(count);
  for (int i = 0; i < times; ++i) {
    for (std::size_t k = 0; k < count; ++k) data[k] = static_cast<double>(k) + i + comm.rank();
    comm.enter();
    ddpp::algorithms::staged().all_reduce(comm, std::span(data), ddpp::sum);
    bool right = true;
    for (std::size_t k = 0; k < count; ++k) {
      right = right && data[k] == sum_of_ranks<Ranks>(static_cast<double>(k) + i);
    }
    RL_ASSERT(right);
  }
}

/// One synchronisation each, so that the two slots are used in turn.
template <int Ranks>
void flat_all_reduces(slots_comm<Ranks>& comm) {
  all_reduces(comm, 8, 4);
}

/// Three chunks and a half, in five rounds; then again.
template <int Ranks>
void sliced_all_reduces(slots_comm<Ranks>& comm) {
  const std::size_t per_chunk =
      (comm.shared_slots().most_bytes() - 64) / (Ranks + 1) / sizeof(double) * Ranks;
  all_reduces(comm, per_chunk * 7 / 2, 2);
}

/// The root writes as soon as it may.
template <int Ranks>
void broadcasts(slots_comm<Ranks>& comm) {
  for (int i = 0; i < 5; ++i) {
    double value = comm.rank() == 0 ? i : -1;
    comm.enter();
    ddpp::algorithms::staged().broadcast(comm, std::as_writable_bytes(std::span(&value, 1)), 0);
    RL_ASSERT(value == i);
  }
}

template <int Ranks>
void one_of_each(slots_comm<Ranks>& comm) {
  const ddpp::algorithms::staged staged;
  const ddpp::detail::partition blocks(Ranks, Ranks), bytes(Ranks * sizeof(double), Ranks);
  for (int i = 0; i < 2; ++i) {
    double all[Ranks], sum = 0, root = comm.rank();
    for (double& one : all) one = comm.rank();
    comm.enter();
    staged.reduce_scatter(comm, std::span<const double>(all), std::span(&sum, 1), blocks, ddpp::sum);
    RL_ASSERT(sum == sum_of_ranks<Ranks>(0));
    all[comm.rank()] = sum + comm.rank();
    comm.enter();
    staged.all_gather(comm, std::as_writable_bytes(std::span(all)), bytes);
    bool right = true;
    for (int rank = 0; rank < Ranks; ++rank) right = right && all[rank] == sum + rank;
    RL_ASSERT(right);
    comm.enter();
    staged.broadcast(comm, std::as_writable_bytes(std::span(&root, 1)), Ranks - 1);
    RL_ASSERT(root == Ranks - 1);
    comm.enter();
    staged.barrier(comm);
  }
}

/// Small and large slots by turns, which must not overlap where they come around.
template <int Ranks>
void all_reduces_of_many_sizes(slots_comm<Ranks>& comm) {
  for (const std::size_t count : {700u, 2u, 350u, 8u, 520u, 100u, 900u, 1u}) all_reduces(comm, count, 1);
}

/// Blocks larger than a slot.
template <int Ranks>
void large_blocks(slots_comm<Ranks>& comm) {
  const ddpp::algorithms::staged staged;
  constexpr std::size_t count = 600;
  const ddpp::detail::partition blocks(count * Ranks, Ranks), bytes(count * Ranks * sizeof(double), Ranks);
  std::vector<double> all(count * Ranks), sums(count);
  for (std::size_t k = 0; k < all.size(); ++k) all[k] = static_cast<double>(k) + comm.rank();
  comm.enter();
  staged.reduce_scatter(comm, std::span<const double>(all), std::span(sums), blocks, ddpp::sum);
  std::copy(sums.begin(), sums.end(), all.begin() + static_cast<std::ptrdiff_t>(blocks.offset(comm.rank())));
  comm.enter();
  staged.all_gather(comm, std::as_writable_bytes(std::span(all)), bytes);
  if (comm.rank() != 0) std::fill(sums.begin(), sums.end(), -1);
  comm.enter();
  staged.broadcast(comm, std::as_writable_bytes(std::span(sums)), 0);
  bool right = true;
  for (std::size_t k = 0; k < all.size(); ++k) {
    right = right && all[k] == sum_of_ranks<Ranks>(static_cast<double>(k));
    right = right && (k >= count || sums[k] == all[k]);
  }
  RL_ASSERT(right);
}

/// Each reads in a round what the others wrote in the one before, as a sliced all-reduce does.
template <int Ranks>
void reads_of_the_round_before(slots_comm<Ranks>& comm) {
  auto& slots = comm.shared_slots();
  const auto number_in = [](std::byte* slot) -> int& { return *reinterpret_cast<int*>(slot); };
  comm.enter();
  for (int round = 0; round < 5; ++round) {
    const auto read = [&] {
      for (int rank = 0; rank < Ranks; ++rank) {
        if (round > 0 && rank != comm.rank()) RL_ASSERT(number_in(slots.last_slot(rank)) == round - 1);
      }
    };
    slots.begin_round(64, comm.deadline());
    number_in(slots.slot(comm.rank())) = round;
    if (!has(flaw::late_read)) read();
    slots.arrive();
    if (has(flaw::late_read)) read();
    slots.await_arrivals(comm.deadline());
    slots.next_round();
  }
}

template <int Ranks>
using script = void (*)(slots_comm<Ranks>&);

template <int Ranks>
struct slots_test : rl::test_suite<slots_test<Ranks>, Ranks> {
  static inline script<Ranks> steps;
  static inline bool sleeps;

  slot_memory<Ranks> memory;
  std::optional<slots_comm<Ranks>> comms[Ranks];

  void before() {
    for (int rank = 0; rank < Ranks; ++rank) comms[rank].emplace(memory, rank, sleeps);
  }
  void thread(unsigned rank) { steps(*comms[rank]); }
};

template <int Ranks>
outcome at_random(script<Ranks> steps, rl::iteration_t executions, flaw with = {}, bool sleeps = true) {
  slots_test<Ranks>::steps = steps;
  slots_test<Ranks>::sleeps = sleeps;
  return at_random<slots_test<Ranks>>(executions, with);
}
template <int Ranks>
outcome with_interruptions(script<Ranks> steps, unsigned most) {
  slots_test<Ranks>::steps = steps;
  slots_test<Ranks>::sleeps = true;
  return with_interruptions<slots_test<Ranks>>(most);
}

/// Buffers in symmetric memory: each rank fills its own, then reduces its slice of all, then reads its own.
template <int Ranks>
struct in_place_test : rl::test_suite<in_place_test<Ranks>, Ranks> {
  slot_memory<Ranks> memory;
  std::optional<slots_comm<Ranks>> comms[Ranks];
  plain<int> buffers[Ranks][Ranks];  // rank, slice

  void before() {
    for (int rank = 0; rank < Ranks; ++rank) comms[rank].emplace(memory, rank, true);
  }
  void thread(unsigned rank) {
    auto& comm = *comms[rank];
    auto& slots = comm.shared_slots();
    for (int i = 0; i < 3; ++i) {
      for (auto& slice : buffers[rank]) slice = i;
      comm.enter();
      slots.begin_round(0, comm.deadline());
      slots.arrive({.number = 1, .offset = rank});
      slots.await_arrivals(comm.deadline());
      int sum = 0;
      for (int peer = 0; peer < Ranks; ++peer) {
        sum += buffers[peer][rank];
        RL_ASSERT(slots.place_of(peer).offset == static_cast<unsigned>(peer));
      }
      for (auto& buffer : buffers) buffer[rank] = sum;
      slots.reduced();
      if (!has(flaw::no_reductions)) slots.await_reductions(comm.deadline());
      slots.next_round();
      for (auto& slice : buffers[rank]) RL_ASSERT(slice == i * Ranks);
    }
  }
};

TEST_CASE("slots: each rank reads what the others wrote for this round" * doctest::timeout(600)) {
  check_right(at_random<2>(flat_all_reduces, 20'000));
  check_right(at_random<3>(flat_all_reduces, 10'000));
  check_right(at_random<2>(sliced_all_reduces, 5'000));
  check_right(at_random<3>(sliced_all_reduces, 2'000));
  check_right(at_random<3>(broadcasts, 10'000));
  check_right(at_random<3>(one_of_each, 5'000));
  check_right(at_random<3>(reads_of_the_round_before, 10'000));
  check_right(at_random<2>(all_reduces_of_many_sizes, 5'000));
  check_right(at_random<3>(large_blocks, 2'000));
  check_right(with_interruptions<2>(broadcasts, 2));
  check_right(with_interruptions<2>(reads_of_the_round_before, 2));
}

TEST_CASE("slots: buffers in symmetric memory are used by one rank at a time" * doctest::timeout(600)) {
  check_right(at_random<in_place_test<3>>(10'000));
  check_right(with_interruptions<in_place_test<2>>(2));
  check_wrong(at_random<in_place_test<2>>(20'000, {flaw::no_reductions}), rl::test_result_data_race);
}

TEST_CASE("slots: for ranks that do not sleep, release and acquire would do") {
  check_right(at_random<2>(flat_all_reduces, 20'000, {flaw::release_acquire}, false));
  check_wrong(at_random<2>(flat_all_reduces, 50'000, {flaw::release_acquire}), rl::test_result_deadlock);
}

TEST_CASE("slots: release and acquire are needed") {
  check_wrong(at_random<2>(flat_all_reduces, 50'000, {flaw::relaxed_stores, 0}), rl::test_result_data_race);
  check_wrong(at_random<2>(flat_all_reduces, 50'000, {flaw::relaxed_loads, 1}), rl::test_result_data_race);
}

TEST_CASE("slots: one that is written a round too early is seen") {
  for (const script<2> steps : {flat_all_reduces<2>, sliced_all_reduces<2>}) {
    check_wrong(at_random<2>(steps, 50'000, {flaw::one_slot}), rl::test_result_data_race);
  }
  check_wrong(at_random<2>(all_reduces_of_many_sizes, 5'000, {flaw::short_room}), rl::test_result_data_race);
  check_wrong(at_random<2>(broadcasts, 50'000, {flaw::no_begin_round}), rl::test_result_data_race);
  check_wrong(at_random<2>(reads_of_the_round_before, 50'000, {flaw::late_read}), rl::test_result_data_race);
}

}  // namespace model
