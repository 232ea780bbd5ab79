// SPDX-License-Identifier: BSL-1.0
// The binomial tree over ranks. The root has number 0, and the ranks after it 1, 2, ..., around the end.
// Number r hangs below r without its lowest set bit, and heads the subtree of the numbers from r to r + that
// bit: a consecutive range.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace ddpp::detail {

class binomial_tree {
 public:
  template <class Comm>
  binomial_tree(const Comm& comm, int root)
      : size_(comm.size()), root_(root), number_((comm.rank() - root + size_) % size_) {
    while (reach_ < size_ && (number_ & reach_) == 0) reach_ *= 2;
  }

  bool is_root() const noexcept { return number_ == 0; }
  bool is_leaf() const noexcept { return reach_ == 1 || number_ + 1 == size_; }
  int number() const noexcept { return number_; }
  /// One past the last number of this rank's subtree.
  int end() const noexcept { return std::min(number_ + reach_, size_); }
  int rank_of(int number) const noexcept { return (number + root_) % size_; }
  int parent() const noexcept { return rank_of(number_ - reach_); }

  /// f(first, end) for the subtree of each child, the smallest first: the order in which results come up.
  template <class F>
  void each_child_upward(F&& f) const {
    for (int distance = 1; distance < reach_ && number_ + distance < size_; distance *= 2)
      f(number_ + distance, std::min(number_ + 2 * distance, size_));
  }
  /// The largest first: the order in which data goes down.
  template <class F>
  void each_child_downward(F&& f) const {
    for (int distance = reach_ / 2; distance > 0; distance /= 2) {
      if (number_ + distance < size_) f(number_ + distance, std::min(number_ + 2 * distance, size_));
    }
  }

 private:
  int size_, root_, number_;
  int reach_ = 1;  // the lowest set bit of number_; for the root the first power of two that holds all
};

/// Sends each child the blocks of its subtree. `held` are those of this rank's, in the order of numbers;
/// blocks.offset(number) is where a number's block begins among all.
template <class Comm, class Blocks>
void hand_down(Comm& comm, const binomial_tree& tree, const Blocks& blocks, std::span<const std::byte> held) {
  const std::size_t start = blocks.offset(tree.number());
  tree.each_child_downward([&](int first, int end) {
    send_segments(comm, held.subspan(blocks.offset(first) - start, blocks.offset(end) - blocks.offset(first)),
                  tree.rank_of(first));
  });
}

}  // namespace ddpp::detail
