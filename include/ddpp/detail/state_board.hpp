// SPDX-License-Identifier: BSL-1.0
// The collective that a rank is in: written by it, read by anyone at any time.
//
// A reader that sees any word of a newer state also sees the odd version stored before it (release and
// acquire on the words), and so does not take a mixture for a state.
#pragma once

#include <ddpp/detail/atomics.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/fingerprint.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace ddpp::detail {

template <class Atomics = native_atomics>
class state_board {
 public:
  void write(const fingerprint& print, bool inside) noexcept {
    words state{};
    std::memcpy(state.data(), &print, sizeof print);
    state.back() = inside ? 1 : 0;
    const std::uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    DDPP_PROBE(board_half_written);
    for (std::size_t i = 0; i < state.size(); ++i) words_[i].store(state[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Empty if the rank was writing all the time (it may have died at it).
  std::optional<rank_state> read() const noexcept {
    for (int tries = 0; tries < 1000; ++tries) {
      const std::uint32_t version = version_.load(std::memory_order_acquire);
      words state{};
      for (std::size_t i = 0; i < state.size(); ++i) state[i] = words_[i].load(std::memory_order_acquire);
      if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) continue;
      rank_state read;
      std::memcpy(static_cast<void*>(&read.last), state.data(), sizeof read.last);
      read.inside = state.back() != 0;
      return read;
    }
    return std::nullopt;
  }

 private:
  using words = std::array<std::uint64_t, sizeof(fingerprint) / 8 + 1>;

  typename Atomics::template atomic<std::uint32_t> version_{0};
  std::array<typename Atomics::template atomic<std::uint64_t>, std::tuple_size_v<words>> words_{};
};

}  // namespace ddpp::detail
