// SPDX-License-Identifier: BSL-1.0
// The same bits for the same inputs by rank: whatever the transport, the size, the segments, the hosts or the
// compiler's flags, each element is reduced along one fixed tree over ranks, that of recursive doubling,
// which halving and doubling follows too. So it costs what those two cost; what it gives up is the ring,
// which needs fewer bytes than either when the number of ranks is not a power of two, and the wider
// accumulation of 16-bit sums.
#pragma once

#include <ddpp/algorithms/halving_doubling.hpp>
#include <ddpp/algorithms/recursive_doubling.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct reproducible {
  static constexpr std::string_view name = "reproducible";
  static constexpr std::size_t largest_doubled = 8192;  ///< bytes

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    if (data.size_bytes() <= largest_doubled)
      recursive_doubling{}.all_reduce(comm, data, op);
    else
      halving_doubling{}.all_reduce(comm, data, op);
  }
};

}  // namespace ddpp::algorithms
