// SPDX-License-Identifier: BSL-1.0
// How elements are spread over ranks: as many on each, or, for the forms with counts, more on each than on
// the one before it.
#pragma once

#include <cstddef>
#include <vector>

namespace perf {

/// Where a rank stands in an operation. `count`: elements of each rank, or the mean of those with counts.
struct place {
  std::size_t count;
  int rank, ranks, root;
};

struct even {
  static constexpr bool has_counts = false;
  static constexpr std::size_t offset(const place& at, std::size_t rank) { return at.count * rank; }
};

/// Rank r's share is in proportion to r + 1.
struct growing {
  static constexpr bool has_counts = true;
  static constexpr std::size_t offset(const place& at, std::size_t rank) {
    return at.count * rank * (rank + 1) / (static_cast<std::size_t>(at.ranks) + 1);
  }
};

/// The pieces of all ranks, one after the other.
template <class Spread>
struct pieces {
  place at;

  std::size_t offset(int rank) const { return Spread::offset(at, static_cast<std::size_t>(rank)); }
  std::size_t size(int rank) const { return offset(rank + 1) - offset(rank); }
  std::size_t total() const { return offset(at.ranks); }
  std::size_t own_offset() const { return offset(at.rank); }
  std::size_t own_size() const { return size(at.rank); }

  /// Whose piece element i is in.
  int owner(std::size_t i) const {
    if constexpr (!Spread::has_counts) return static_cast<int>(i / at.count);
    int rank = 0;
    while (i >= offset(rank + 1)) ++rank;
    return rank;
  }
  std::vector<std::size_t> counts() const {
    std::vector<std::size_t> all;
    for (int rank = 0; rank < at.ranks; ++rank) all.push_back(size(rank));
    return all;
  }
};

}  // namespace perf
