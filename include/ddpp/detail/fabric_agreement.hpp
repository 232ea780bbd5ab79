// SPDX-License-Identifier: BSL-1.0
// Consensus in a block of memory that the ranks share, where compare-and-swap makes it simple.
//
// To vote, a rank fills its ballot and stores the decision's number in it last. Whoever finds that all have
// voted or gone, or that its own time is up, writes down who came in an attendance table of its own and tries
// to swap the header's `decided` from the decision before to (number, itself): one succeeds, and its table
// and the ballots of those marked in it are the verdict. So no rank's death can hold up the others, and all
// read the same.
//
// Ballots and tables are used for every other number, so a verdict stays as it is until the next decision has
// been made. That waits for everyone who is there, so only a rank whose time was up can find the verdict
// overwritten while it reads: it looks at `decided` again afterwards. All accesses are sequentially
// consistent; speed does not matter here.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddpp::detail {

template <class Memory>
class fabric_agreement {
 public:
  fabric_agreement(Memory& memory, int rank) : memory_(memory), rank_(rank) {}

  /// See `has_agreement`.
  verdict decide(std::uint64_t number, const ballot& mine, deadline until) {
    if (decided_number() < number) vote(number, mine);
    for (;;) {
      const std::uint32_t rung = memory_.header().agreement_bell.load();
      if (decided_number() >= number) return read(number);
      const auto now = std::chrono::steady_clock::now();
      if (all_came(number) || now >= until) {
        conclude(number);
      } else {
        Memory::atomics::wait(memory_.header().agreement_bell, rung,
                              std::min<std::chrono::nanoseconds>(until - now, death_watch));
      }
    }
  }

 private:
  static constexpr std::chrono::milliseconds death_watch{10};
  static constexpr int rank_bits = 16;

  std::uint64_t decided_number() const { return memory_.header().decided.load() >> rank_bits; }
  int decider() const {
    return static_cast<int>(memory_.header().decided.load() & ((std::uint64_t{1} << rank_bits) - 1));
  }

  auto& ballot_of(int rank, std::uint64_t number) const noexcept {
    return memory_.slot(rank).ballots[number % 2];
  }

  void vote(std::uint64_t number, const ballot& mine) {
    auto& ballot = ballot_of(rank_, number);
    ballot.decision = mine.decision;
    ballot.yes = mine.yes;
    const std::size_t length = std::min(mine.note.size(), longest_note);
    ballot.note_bytes = static_cast<std::uint8_t>(length);
    for (std::size_t i = 0; i < length; ++i) ballot.note[i] = mine.note[i];
    DDPP_PROBE(ballot_written);
    ballot.number = number;
    DDPP_PROBE(voted);
    ring();
  }

  void ring() {
    memory_.header().agreement_bell.fetch_add(1);
    Memory::atomics::wake_all(memory_.header().agreement_bell);
  }

  // A rank may vote and go: its vote counts.
  attendance attendance_of(int rank, std::uint64_t number) const {
    const auto& slot = memory_.slot(rank);
    const bool is_there =
        slot.presence.load() == fabric_presence::here && (rank == rank_ || memory_.exists(rank));
    if (ballot_of(rank, number).number.load() == number) return attendance::voted;
    return is_there ? attendance::absent : attendance::gone;
  }

  bool all_came(std::uint64_t number) const {
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      if (attendance_of(rank, number) == attendance::absent) return false;
    }
    return true;
  }

  void conclude(std::uint64_t number) {
    std::uint64_t before = memory_.header().decided.load();
    if ((before >> rank_bits) >= number) return;
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      memory_.attended(number % 2 != 0, rank_, rank) = attendance_of(rank, number);
    }
    const std::uint64_t after = number << rank_bits | static_cast<std::uint64_t>(rank_);
    DDPP_PROBE(attendance_written);
    if (!memory_.header().decided.compare_exchange_strong(before, after)) return;
    DDPP_PROBE(decided);
    ring();
  }

  verdict read(std::uint64_t number) const {
    verdict result;
    result.ranks.resize(static_cast<std::size_t>(memory_.ranks()), attendance::absent);
    result.yes = true;
    const int by = decider();
    bool first = true;
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      const attendance came = memory_.attended(number % 2 != 0, by, rank).load();
      result.ranks[static_cast<std::size_t>(rank)] = came;
      if (came != attendance::voted) continue;
      const auto& ballot = ballot_of(rank, number);
      result.yes = result.yes && ballot.yes;
      if (first) {
        for (std::size_t i = 0; i < ballot.note_bytes.load(); ++i) result.note += ballot.note[i].load();
        result.decision = ballot.decision;
      }
      const ddpp::decision named = ballot.decision;
      result.alike = result.alike && named == result.decision;
      result.decision = std::max(result.decision, named);
      first = false;
    }
    if (decided_number() == number) return result;
    verdict missed;
    missed.ranks.resize(static_cast<std::size_t>(memory_.ranks()), attendance::absent);
    return missed;
  }

  Memory& memory_;
  const int rank_;
};

}  // namespace ddpp::detail
