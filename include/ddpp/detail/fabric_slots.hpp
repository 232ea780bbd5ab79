// SPDX-License-Identifier: BSL-1.0
// Memory in which ranks show each other parts of their buffers and say how far they are, for collectives that
// need no messages.
//
// A round is:
//
//     1. begin_round(), write to the slot, arrive(): the round's number is stored, and whoever sleeps is
//     woken
//     2. await_arrivals(), or await_arrival() of one rank: their slots of this round can be read
//     3. where the round has a second half: write what was reduced, reduced(), await_reductions()
//     4. next_round(), after the last read
//
// Slots, but for small ones, are laid one after the other around a rank's room for them, which is three times
// the largest: no slot overlaps that of the round before. begin_round() waits until all have arrived in the
// round before; whoever has arrived there has read all that it wanted of older ones. The same holds for what
// is said beside the numbers, of which there are two sets in turn. (All this while rounds end: see open().)
// The numbers are sequentially consistent, for the sleeping and waking of parking.hpp.
//
// The room is larger than a processor's innermost caches on purpose. A slot that comes to lines which another
// core has read just before, and still has, must wait for that to let go of each.
//
// A buffer in symmetric memory need not pass through a slot: its rank says where it is when it arrives.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/memory_fabric.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/slot_writer.hpp>
#include <ddpp/detail/symmetric_window.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp::detail {

template <class Memory, class Link, class Engine>
class basic_fabric_slots {
  using arrival_flag = fabric_arrival_flag<typename Memory::atomics>;

 public:
  basic_fabric_slots(Memory& memory, Link& link, Engine& engine, int rank, slot_writer writer)
      : memory_(memory), link_(link), engine_(engine), rank_(rank), writer_(writer) {}

  const std::shared_ptr<symmetric_windows>& windows() const noexcept { return windows_; }

  /// The largest slot, in bytes.
  std::size_t most_bytes() const noexcept {
    return (memory_.staging_bytes() - 2 * small_bytes) / 3 / line_bytes * line_bytes;
  }

  /// The next collective begins.
  void enter(const fingerprint& print) noexcept {
    digest_ = hash_of(digest_, print);
    fabric_collective& entry = memory_.slot(rank_).collectives[++entered_ % 2];
    entry.digest.store(digest_, std::memory_order_relaxed);
    entry.now = print;
    entry.before = print_;
    print_ = print;
  }

  /// Before the rounds of a collective that is about so many bytes in all. Makes this rank's slots usable;
  /// throws `resource_error`, and `group_failed` once the group has failed: a round that was given up is
  /// never over, so its slots must not be written again.
  void open(std::size_t bytes) {
    check();
    // What is about few bytes needs only the small slots.
    const std::size_t needed = bytes <= small_bytes / 2 ? 2 * small_bytes : memory_.staging_bytes();
    if (reserved_ < needed) {
      memory_.reserve_staging(rank_, needed);
      DDPP_PROBE(slots_reserved);
      reserved_ = needed;
    }
    writer_.open(bytes);
  }

  /// Throws `group_failed` once the group has failed: before each step that writes to others' buffers, who
  /// may have been told and gone on.
  void check() const {
    if (memory_.has_failed()) throw group_failed(memory_.first_failure());
  }

  /// Whether slots are written past the caches.
  bool streams() const noexcept { return writer_.streams(); }

  /// Blocks until all have arrived in the round before. Fails the group where one was in another collective
  /// there.
  void settle(deadline until) {
    if (all_arrived_ + 1 < round_) await_all(round_ - 1, until);
  }
  /// The collective of the round before, if not all are known to have arrived in it.
  const fingerprint* unsettled() const noexcept { return all_arrived_ + 1 < round_ ? &print_ : nullptr; }

  /// Blocks until this rank may write its slot of so many bytes, the same on all ranks.
  void begin_round(std::size_t bytes, deadline until) {
    settle(until);
    take_slot(bytes);
  }

  /// That of a rank for the round that has begun.
  std::byte* slot(int rank) const noexcept {
    return is_inline_ ? arrival_of(rank, round_).bytes : memory_.staging(rank) + slot_;
  }
  /// That of the round before, if it had more than a few bytes. It is as it was until all have arrived in
  /// this one.
  std::byte* last_slot(int rank) const noexcept { return memory_.staging(rank) + last_slot_; }

  /// Writes to this rank's slot.
  void put(std::byte* to, const std::byte* from, std::size_t count) noexcept { writer_.put(to, from, count); }

  /// Where this memory lies, if all ranks can see it there.
  symmetric_place find(const void* data, std::size_t bytes_there) const noexcept {
    return windows_->find(data, bytes_there);
  }

  /// This rank's slot is written; or its buffer is to be found in `place`.
  void arrive(const symmetric_place& place = {}) {
    writer_.finish();
    DDPP_PROBE(slot_written);
    place_ = place;
    arrived_digests_[round_ % 2] = digest_;
    arrival_flag& flag = arrival_of(rank_, round_);
    flag.digest = digest_;
    flag.window = place.number;
    flag.offset = place.offset;
    DDPP_PROBE(arrival_written);
    Memory::atomics::publish(flag.round, round_);
    DDPP_PROBE(arrived);
    link_.wake_others();
  }

  /// Block until a rank, or all, have arrived. Fail the group where one is in another collective.
  void await_arrival(int peer, deadline until) { await_one(peer, round_, until); }
  void await_arrivals(deadline until) { await_all(round_, until); }

  /// Once it has arrived: where a rank's buffer is to be found, if it said so.
  symmetric_place place_of(int rank) const noexcept {
    if (rank == rank_) return place_;
    const arrival_flag& flag = arrival_of(rank, round_);
    return {flag.window, flag.offset};
  }

  void reduced() {
    Memory::atomics::publish(memory_.slot(rank_).reduced, round_);
    DDPP_PROBE(reduced);
    link_.wake_others();
  }
  void await_reductions(deadline until) {
    for (int peer = 0; peer < memory_.ranks(); ++peer) {
      if (peer == rank_) continue;
      const auto& reduced = memory_.slot(peer).reduced;
      engine_.wait_for(
          peer, [&] { return reduced.load(std::memory_order_seq_cst) >= round_; }, until);
    }
  }

  void next_round() noexcept { ++round_; }

 protected:
  void take_slot(std::size_t bytes) noexcept {
    last_slot_ = slot_;
    is_inline_ = bytes <= arrival_flag::inline_bytes;
    if (is_inline_) return;
    const std::size_t needed = round_up_to_lines(bytes);
    if (needed <= small_bytes) {
      slot_ = round_ % 2 * small_bytes;
      return;
    }
    slot_ = end_ + needed <= memory_.staging_bytes() ? end_ : 2 * small_bytes;
    end_ = slot_ + needed;
  }

  static constexpr std::size_t small_bytes = 2048;

 private:
  arrival_flag& arrival_of(int rank, std::uint64_t round) const noexcept {
    return memory_.slot(rank).arrivals[round % 2];
  }

  /// What a rank has said that it is in, in this round. It cannot be two collectives ahead.
  const fabric_collective& collective_of(int rank, std::uint64_t round) const noexcept {
    const auto& latest = memory_.slot(rank).collectives;
    const bool first = latest[0].digest.load(std::memory_order_relaxed) == arrival_of(rank, round).digest;
    return latest[first ? 0 : 1];
  }

  void await_all(std::uint64_t round, deadline until) {
    for (int peer = 0; peer < memory_.ranks(); ++peer) await_one(peer, round, until);
    all_arrived_ = round;
  }
  void await_one(int peer, std::uint64_t round, deadline until) {
    if (peer == rank_) return;
    // Who waits for a rank that never comes may see from another why.
    const auto arrived = [&] { return has_arrived(peer, round) || odd_one(round) >= 0; };
    engine_.wait_for(peer, arrived, until);
    DDPP_PROBE(arrival_seen);
    if (has_arrived(peer, round) && agrees(peer, round)) return;
    const int odd = odd_one(round);
    const fingerprint &mine = collective_of(rank_, round).now, &theirs = collective_of(odd, round).now;
    if (theirs != mine) engine_.fail_for({odd, mine, theirs});
    fail_for_history(round);
  }
  bool has_arrived(int rank, std::uint64_t round) const noexcept {
    return arrival_of(rank, round).round.load(std::memory_order_seq_cst) >= round;
  }
  /// Only once it has arrived.
  bool agrees(int rank, std::uint64_t round) const noexcept {
    return arrival_of(rank, round).digest == arrived_digests_[round % 2];
  }
  /// A rank that has arrived and does not agree, or -1.
  int odd_one(std::uint64_t round) const noexcept {
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      if (rank != rank_ && has_arrived(rank, round) && !agrees(rank, round)) return rank;
    }
    return -1;
  }

  /// All are in the same collective, but were not in the one before. (Of those that need no answer, such as a
  /// scatter, each rank does its part and goes on.)
  [[noreturn, gnu::cold]] void fail_for_history(std::uint64_t round) {
    const deadline until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    std::vector<rank_state> ranks;
    for (bool complete = false; !complete && std::chrono::steady_clock::now() < until;) {
      ranks = link_.survey();
      complete = true;
      for (int rank = 0; rank < memory_.ranks(); ++rank) {
        const bool came = has_arrived(rank, round);
        if (came) ranks[static_cast<std::size_t>(rank)].last = collective_of(rank, round).before;
        complete = complete && came;
      }
      if (!complete) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    engine_.abort(describe_mismatch(ranks));
    throw group_failed(engine_.cause());
  }

  static std::uint64_t hash_of(std::uint64_t history, const fingerprint& print) noexcept {
    std::array<std::uint64_t, sizeof(fingerprint) / 8> words;
    std::memcpy(words.data(), &print, sizeof print);
    std::uint64_t hash = history;
    for (std::size_t i = 0; i < words.size(); ++i) hash += words[i] * factors[i];
    return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
  }
  // Odd and random, one for each word.
  static constexpr std::array<std::uint64_t, sizeof(fingerprint) / 8> factors = {
      0xd1b54a32d192ed03u, 0xaef17502108ef2d9u, 0xf1357aea2e62a9c5u, 0xc2b2ae3d27d4eb4fu,
      0x9fb21c651e98df25u};

  Memory& memory_;
  Link& link_;
  Engine& engine_;
  const int rank_;
  std::shared_ptr<symmetric_windows> windows_ = std::make_shared<symmetric_windows>(rank_);
  std::size_t reserved_ = 0;
  fingerprint print_;  // of the collective that this rank is in
  std::uint64_t entered_ = 0;
  std::uint64_t digest_ = 0;  // of the collective, and of all before
  // What this rank's flags say. To read it there would be to wait for the others' caches, where the lines
  // are.
  std::array<std::uint64_t, 2> arrived_digests_{};
  symmetric_place place_;  // in the latest round
  // Bytes into the room for slots: where this round's slot begins, the last one's, and the end of the latest.
  std::size_t slot_ = 0, last_slot_ = 0, end_ = 2 * small_bytes;
  bool is_inline_ = false;
  slot_writer writer_;
  std::uint64_t round_ = 1;        // the one that begins, or has begun
  std::uint64_t all_arrived_ = 0;  // a round in which all are known to have arrived
};

using fabric_slots = basic_fabric_slots<fabric_memory, memory_link, message_engine>;

}  // namespace ddpp::detail
