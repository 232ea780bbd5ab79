// SPDX-License-Identifier: BSL-1.0
// Which of a sender's chunks are on loan, and to whom.
//
// A destination that holds h chunks gets another one only while more than h are free. So one destination gets
// at most half, some are left for the next, and how much depends on how many compete.
//
// Each chunk has a flag in shared memory. The sender sets it when it hands the chunk out, before the entry
// that names the chunk; who has read the chunk clears it. Clearing is sequentially consistent for the sake of
// a sender that sleeps until there is room: see parking.hpp.
#pragma once

#include <ddpp/detail/atomics.hpp>
#include <ddpp/detail/probe.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddpp::detail {

template <class Atomics = native_atomics>
class alignas(64) chunk_flag {
 public:
  void take() noexcept { taken_.store(1, std::memory_order_relaxed); }  // seen with the entry
  void release() noexcept { taken_.store(0, std::memory_order_seq_cst); }
  bool is_taken() const noexcept { return taken_.load(std::memory_order_seq_cst) != 0; }

 private:
  typename Atomics::template atomic<std::uint32_t> taken_{0};
};

/// The sender's, whose flags these are.
template <int Chunks, class Atomics = native_atomics>
class chunk_pool {
 public:
  static constexpr std::int32_t none = -1;

  chunk_pool(chunk_flag<Atomics> (&flags)[Chunks], int peers)
      : flags_(flags), held_(static_cast<std::size_t>(peers)) {
    holder_.fill(nobody);
  }

  /// The lowest free one, as it is likeliest to be in the cache; or none.
  std::int32_t take(int peer) noexcept {
    int free = 0;
    std::int32_t lowest = none;
    for (std::int32_t number = Chunks - 1; number >= 0; --number) {
      int& holder = holder_[static_cast<std::size_t>(number)];
      if (holder != nobody && !flags_[number].is_taken()) --held(std::exchange(holder, nobody));
      if (holder != nobody) continue;
      ++free;
      lowest = number;
    }
    if (free <= held(peer)) return none;
    holder_[static_cast<std::size_t>(lowest)] = peer;
    ++held(peer);
    flags_[lowest].take();
    DDPP_PROBE(chunk_taken);
    return lowest;
  }

  bool holds_any(int peer) const noexcept { return held_[static_cast<std::size_t>(peer)] != 0; }

 private:
  static constexpr int nobody = -1;

  int& held(int peer) noexcept { return held_[static_cast<std::size_t>(peer)]; }

  chunk_flag<Atomics>* flags_;
  std::array<int, Chunks> holder_;
  std::vector<int> held_;  // by each peer
};

}  // namespace ddpp::detail
