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

  int parts() const noexcept { return static_cast<int>(parts_); }
  std::size_t total() const noexcept { return scale_ * total_; }
  /// Whether a count common to all blocks made them, rather than one for each.
  bool even() const noexcept { return offsets_ == nullptr; }

 private:
  std::size_t total_, parts_, scale_ = 1;
  const std::size_t* offsets_ = nullptr;
};

/// The blocks of a partition in the order first, first + 1, ..., around the end, one after the other.
class rotated_partition {
 public:
  rotated_partition(const partition& blocks, int first) noexcept : blocks_(blocks), first_(first) {}

  /// Where the block in this place begins; places count from 0 up to the number of blocks, where all end.
  std::size_t offset(int place) const noexcept {
    const int block = first_ + place;
    const std::size_t start = blocks_.offset(first_);
    if (block <= blocks_.parts()) return blocks_.offset(block) - start;
    return blocks_.total() - start + blocks_.offset(block - blocks_.parts());
  }
  std::size_t size(int first_place, int last_place) const noexcept {
    return offset(last_place) - offset(first_place);
  }
  std::size_t total() const noexcept { return blocks_.total(); }

  template <class T>
  void rotate(std::span<const T> ordered, std::span<T> rotated) const {
    const auto start = static_cast<std::ptrdiff_t>(blocks_.offset(first_));
    std::rotate_copy(ordered.begin(), ordered.begin() + start, ordered.end(), rotated.begin());
  }
  template <class T>
  void restore(std::span<const T> rotated, std::span<T> ordered) const {
    const auto start = static_cast<std::ptrdiff_t>(blocks_.offset(first_));
    std::rotate_copy(rotated.begin(), rotated.end() - start, rotated.end(), ordered.begin());
  }

 private:
  partition blocks_;
  int first_;
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

/// Of each block of a partition the elements from index * length on, `length` at most.
class partition_slice {
 public:
  partition_slice(const partition& blocks, std::size_t index, std::size_t length) noexcept
      : blocks_(blocks), index_(index), length_(length) {}

  std::size_t offset(int block) const noexcept { return blocks_.offset(block) + part_of(block).offset; }
  std::size_t size(int block) const noexcept { return part_of(block).count; }
  int parts() const noexcept { return blocks_.parts(); }

 private:
  segment part_of(int block) const noexcept { return {index_, length_, blocks_.size(block)}; }

  partition blocks_;
  std::size_t index_, length_;
};

/// Elements in the longest block of a partition or of a slice.
template <class Blocks>
std::size_t longest_block(const Blocks& blocks) noexcept {
  std::size_t longest = 0;
  for (int block = 0; block < blocks.parts(); ++block) longest = std::max(longest, blocks.size(block));
  return longest;
}

inline std::size_t segments_in(std::size_t block_size, std::size_t length) noexcept {
  return block_size / length + (block_size % length != 0);
}

}  // namespace ddpp::detail
