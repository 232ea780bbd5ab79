// SPDX-License-Identifier: BSL-1.0
// Where each rank's elements stand in a buffer that holds everyone's: all the same number, or as the counts
// of a _v collective say.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/text.hpp>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::detail {

class layout {
 public:
  /// `count` elements from each rank.
  layout(std::size_t count, int ranks) noexcept
      : total_(count * static_cast<std::size_t>(ranks)), ranks_(ranks) {}

  /// counts[r] elements from rank r.
  layout(std::span<const std::size_t> counts, int ranks, const char* operation)
      : ranks_(ranks), offsets_(1, 0) {
    check(counts.size() == static_cast<std::size_t>(ranks), operation, counts.size(),
          " counts were given for ", ranks, " ranks");
    for (const std::size_t count : counts) {
      check(count <= std::numeric_limits<std::size_t>::max() - offsets_.back(), operation,
            "the counts add up to more than there can be");
      offsets_.push_back(offsets_.back() + count);
    }
    total_ = offsets_.back();
  }

  std::size_t total() const noexcept { return total_; }
  partition blocks() const noexcept {
    return offsets_.empty() ? partition(total_, ranks_) : partition(offsets_);
  }

  template <class T>
  std::span<T> block(std::span<T> data, int rank) const {
    return data.subspan(blocks().offset(rank), blocks().size(rank));
  }

  /// Stands for the counts in fingerprints; 0 where all ranks have the same number.
  std::uint32_t hash() const noexcept {
    if (offsets_.empty()) return 0;
    return hash_of_name(
        {reinterpret_cast<const char*>(offsets_.data()), offsets_.size() * sizeof(std::size_t)});
  }

 private:
  std::size_t total_ = 0;
  int ranks_;
  std::vector<std::size_t> offsets_;
};

inline void check_total(std::size_t have, const layout& wanted, const char* operation, const char* buffer) {
  check(have == wanted.total(), operation, "the ", buffer, " has ", have,
        " elements; all ranks' pieces make ", wanted.total());
}

inline void check_piece(std::size_t have, const layout& wanted, int rank, const char* operation,
                        const char* buffer) {
  const std::size_t need = wanted.blocks().size(rank);
  check(have == need, operation, "the ", buffer, " of rank ", rank, " has ", have,
        " elements; its piece has ", need);
}

}  // namespace ddpp::detail
