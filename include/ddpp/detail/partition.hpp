// SPDX-License-Identifier: BSL-1.0
// How a buffer is cut into one block per rank, and a block into segments that travel as messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace ddpp::detail {

/// `parts` consecutive blocks. Even ones differ by one element at most, the larger first.
class partition {
 public:
  partition(std::size_t total, int parts) noexcept : total_(total), parts_(static_cast<std::size_t>(parts)) {}

  /// Block i is [offsets[i], offsets[i + 1]). The offsets must outlive the partition.
  explicit partition(std::span<const std::size_t> offsets) noexcept
      : total_(offsets.back()), parts_(offsets.size() - 1), offsets_(offsets.data()) {}

  /// The same blocks, counted in units of which `factor` make an element: bytes, say.
  partition scaled(std::size_t factor) const noexcept {
    partition result = *this;
    result.scale_ *= factor;
    return result;
  }

  std::size_t offset(int block) const noexcept {
    const auto i = static_cast<std::size_t>(block);
    return scale_ * (offsets_ ? offsets_[i] : total_ / parts_ * i + std::min(i, total_ % parts_));
  }
  std::size_t size(int block) const noexcept { return offset(block + 1) - offset(block); }

 private:
  std::size_t total_, parts_, scale_ = 1;
  const std::size_t* offsets_ = nullptr;
};

/// Elements per segment: as many as the transport moves best in one message, at least one.
template <class Transport>
constexpr std::size_t segment_length(std::size_t element_size) noexcept {
  std::size_t bytes = std::size_t{64} * 1024;
  if constexpr (requires { Transport::preferred_segment; }) bytes = Transport::preferred_segment;
  return std::max<std::size_t>(1, bytes / element_size);
}

/// Segment `index` of a block of `count` elements; empty beyond the last.
struct segment {
  std::size_t offset, count;

  segment(std::size_t index, std::size_t length, std::size_t block_size) noexcept
      : offset(std::min(index * length, block_size)), count(std::min(length, block_size - offset)) {}
};

inline std::size_t segments_in(std::size_t block_size, std::size_t length) noexcept {
  return block_size / length + (block_size % length != 0);
}

}  // namespace ddpp::detail
