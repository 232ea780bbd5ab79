// SPDX-License-Identifier: BSL-1.0
// The peers that have something to do: a bit each.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddpp::detail {

class peer_set {
 public:
  explicit peer_set(int size) : words_((static_cast<std::size_t>(size) + 63) / 64) {}

  void set(int peer, bool member) noexcept {
    std::uint64_t& word = words_[static_cast<std::size_t>(peer) / 64];
    const std::uint64_t bit = std::uint64_t{1} << (peer % 64);
    word = member ? word | bit : word & ~bit;
  }

  bool contains(int peer) const noexcept {
    return (words_[static_cast<std::size_t>(peer) / 64] >> (peer % 64) & 1) != 0;
  }

  bool empty() const noexcept {
    for (const std::uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }

  /// Calls visit(peer) for each member; `visit` may change the set.
  template <class Visitor>
  void for_each(Visitor visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        visit(static_cast<int>(i * 64) + std::countr_zero(rest));
      }
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace ddpp::detail
