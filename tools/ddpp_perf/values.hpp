// SPDX-License-Identifier: BSL-1.0
// What ranks put in, and what must come out: numbers so small that every reduction of them is exact.
#pragma once

#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace perf {

struct no_op {};  // of a collective that reduces nothing

template <class T>
T number(std::int64_t value) {
  if constexpr (ddpp::is_16_bit_float<T>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T, class Op>
struct values {
  int ranks;
  unsigned seed;

  /// Element `i` of what `rank` puts in, as a whole number.
  std::int64_t whole(int rank, std::size_t i) const {
    const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(ranks);
    if constexpr (std::same_as<Op, ddpp::prod_t>) {  // at most three ranks have another number than 1
      return (i + r + seed) % n < 3 ? 1 + static_cast<std::int64_t>((i / n + r) % 2) : 1;
    } else {
      constexpr std::size_t different = sizeof(T) <= 2 ? 3 : 7;
      return 1 + static_cast<std::int64_t>((3 * i + i / 1021 + 5 * r + seed) % different);
    }
  }

  T element(int rank, std::size_t i) const { return number<T>(whole(rank, i)); }

  /// Element `i` of the reduction over all ranks.
  T reduced(std::size_t i) const {
    std::int64_t total = whole(0, i);
    for (int rank = 1; rank < ranks; ++rank) {
      const std::int64_t x = whole(rank, i);
      if constexpr (std::same_as<Op, ddpp::prod_t>)
        total *= x;
      else if constexpr (std::same_as<Op, ddpp::min_t>)
        total = std::min(total, x);
      else if constexpr (std::same_as<Op, ddpp::max_t>)
        total = std::max(total, x);
      else
        total += x;
    }
    if constexpr (!std::same_as<Op, ddpp::avg_t>)
      return number<T>(total);
    else if constexpr (std::integral<T>)
      return static_cast<T>(total / ranks);
    else if constexpr (std::same_as<T, double>)
      return static_cast<double>(total) / ranks;
    else
      return T(static_cast<float>(total) / static_cast<float>(ranks));
  }
};

}  // namespace perf
