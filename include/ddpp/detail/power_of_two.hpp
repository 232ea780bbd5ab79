// SPDX-License-Identifier: BSL-1.0
// Algorithms that pair ranks bit by bit need a power of two of them. The first 2 * extra ranks come in pairs,
// of which only the even one takes part: the odd one hands its data over before and gets the result
// afterwards.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <bit>

namespace ddpp::detail {

class power_of_two_group {
 public:
  template <class Comm>
  explicit power_of_two_group(const Comm& comm)
      : rank_(comm.rank()),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(comm.size())))),
        extra_(comm.size() - size_) {}

  int size() const noexcept { return size_; }
  /// Whether this rank is one of a pair.
  bool folds() const noexcept { return rank_ < 2 * extra_; }
  bool takes_part() const noexcept { return !folds() || rank_ % 2 == 0; }
  /// This rank's number among those that take part, in the order of ranks.
  int number() const noexcept { return folds() ? rank_ / 2 : rank_ - extra_; }
  /// For number = size() the number of all ranks: so many follow the last.
  int rank_of(int number) const noexcept { return number < extra_ ? 2 * number : number + extra_; }

  template <class Comm, class T, class Op>
  void fold(Comm& comm, std::span<T> data, const Op& op) const {
    if (!folds()) return;
    if (rank_ % 2 == 0)
      receive_and_combine_segments(comm, data, rank_ + 1, operand::second, op);
    else
      send_segments(comm, std::span<const T>(data), rank_ - 1);
  }

  template <class Comm, class T>
  void unfold(Comm& comm, std::span<T> data) const {
    if (!folds()) return;
    if (rank_ % 2 == 0)
      send_segments(comm, std::span<const T>(data), rank_ + 1);
    else
      receive_segments(comm, data, rank_ - 1);
  }

 private:
  int rank_, size_, extra_;
};

}  // namespace ddpp::detail
