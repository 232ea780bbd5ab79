// SPDX-License-Identifier: BSL-1.0
// Memory in which ranks show each other parts of their buffers and say how far they are, for collectives that
// need no messages.
//
// Each rank has two slots, used in turn. A round is:
//
//     1. write to the slot, then arrive(): the round's number is stored, and whoever sleeps is woken
//     2. await_arrivals(): everyone's slot of this round can be read
//     3. where the round has a second half: write what was reduced to the slot, reduced(), await_reductions()
//
// A slot is written again two rounds later. By then its writer has waited for the arrivals of the round
// between, and whoever has arrived there has read all that it wanted of the round before: no other
// synchronisation is needed. The same holds for the fingerprints beside the numbers. (All this while
// rounds end: see open().) The numbers are sequentially consistent, for the sleeping and waking of
// fabric_slot.
#pragma once

#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/memory_fabric.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddpp::detail {

class fabric_slots {
 public:
  static constexpr std::size_t bytes = fabric_slot_bytes;

  fabric_slots(fabric_memory& memory, memory_link& link, message_engine& engine, int rank)
      : memory_(memory), link_(link), engine_(engine), rank_(rank) {}

  /// Before each collective. Makes this rank's slots usable; throws `resource_error`, and `group_failed` once
  /// the group has failed: a round that was given up is never over, so its slots must not be written again.
  void open() {
    if (memory_.has_failed()) throw group_failed(memory_.first_failure());
    if (is_open_) return;
    memory_.reserve_staging(rank_);
    is_open_ = true;
  }

  /// That of a rank for the round that begins, or has begun.
  std::byte* slot(int rank) const noexcept { return memory_.staging(rank, round_ % 2 != 0); }

  /// This rank's slot is written. `print` is the collective's, which all must be in.
  void arrive(const fingerprint& print) {
    fabric_arrival_flag& flag = arrival_of(rank_);
    flag.print = print;
    flag.round.store(round_, std::memory_order_seq_cst);
    link_.wake_others();
  }

  /// Blocks until all have arrived. Fails the group where one is in another collective.
  void await_arrivals(const fingerprint& print, deadline until) {
    for (int peer = 0; peer < memory_.ranks(); ++peer) {
      if (peer == rank_) continue;
      const fabric_arrival_flag& flag = arrival_of(peer);
      engine_.wait_for(
          peer, [&] { return flag.round.load(std::memory_order_seq_cst) >= round_; }, until);
      if (flag.print != print) engine_.fail_for({peer, print, flag.print});
    }
  }

  void reduced() {
    memory_.slot(rank_).reduced.store(round_, std::memory_order_seq_cst);
    link_.wake_others();
  }
  void await_reductions(deadline until) {
    for (int peer = 0; peer < memory_.ranks(); ++peer) {
      const std::atomic<std::uint64_t>& flag = memory_.slot(peer).reduced;
      if (peer == rank_) continue;
      engine_.wait_for(
          peer, [&] { return flag.load(std::memory_order_seq_cst) >= round_; }, until);
    }
  }

  /// After the round's last read.
  void next_round() noexcept { ++round_; }

 private:
  fabric_arrival_flag& arrival_of(int rank) const noexcept { return memory_.slot(rank).arrivals[round_ % 2]; }

  fabric_memory& memory_;
  memory_link& link_;
  message_engine& engine_;
  const int rank_;
  bool is_open_ = false;
  std::uint64_t round_ = 1;  // the one that begins, or has begun
};

}  // namespace ddpp::detail
