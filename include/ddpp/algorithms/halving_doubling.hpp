// SPDX-License-Identifier: BSL-1.0
// Recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", 2004):
// partners at distance 1, 2, 4, ... each hand over the half of their range that the other keeps, until each
// has its part of the result; for all_reduce then the same way back, gathering.
//
// n ranks, l = floor(log2 n), B bytes:
//
//                    steps     bytes sent by the rank that sends most
//   all_reduce       2 l       2 (n - 1) / n * B
//   reduce_scatter   l         (n - 1) / n * B
//
// when n is a power of two: fewer steps than a ring and as few bytes. Otherwise, with p = 2^l ranks taking
// part, two steps more, and 2 (p - 1) / p * B + B bytes for an all_reduce and B for a reduce_scatter.
//
// all_reduce reduces each element along the same tree over ranks as recursive doubling, whatever the size:
// the two give the same bits.
#pragma once

#include <ddpp/detail/power_of_two.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct halving_doubling {
  static constexpr std::string_view name = "halving_doubling";

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    const detail::power_of_two_group group(comm);
    group.fold(comm, data, op);
    if (group.takes_part()) halve_and_double(comm, group, data, op);
    group.unfold(comm, data);
  }

  /// `in` holds one block per rank, `out` receives this rank's. `out` may be its place in `in`.
  template <class Comm, class T, class Op>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      const Op& op) const {
    const detail::power_of_two_group group(comm);
    detail::scratch<T> room(in.size());
    const std::span<T> data = room.span();
    detail::copy_elements(in, data);
    group.fold(comm, data, op);
    if (group.takes_part()) halve_to_own_blocks(comm, group, data, blocks, op);
    const auto block_of = [&](int rank) { return data.subspan(blocks.offset(rank), blocks.size(rank)); };
    if (group.folds()) group.unfold(comm, group.takes_part() ? block_of(comm.rank() + 1) : out);
    if (group.takes_part()) detail::copy_elements(std::span<const T>(block_of(comm.rank())), out);
  }

 private:
  /// Of the blocks of the numbers [first, last) half remain after each step. The distances shrink, so that
  /// they are one range. A number stands for one rank, or for the two of a pair.
  template <class Comm, class T, class Op>
  static void halve_to_own_blocks(Comm& comm, const detail::power_of_two_group& group, std::span<T> data,
                                  const detail::partition& blocks, const Op& op) {
    const auto start = [&](int number) { return blocks.offset(group.rank_of(number)); };
    int first = 0, last = group.size();
    for (int distance = group.size() / 2; distance > 0; distance /= 2) {
      const int partner = group.rank_of(group.number() ^ distance), middle = first + distance;
      const auto lower = data.subspan(start(first), start(middle) - start(first));
      const auto upper = data.subspan(start(middle), start(last) - start(middle));
      const bool keeps_lower = comm.rank() < partner;
      detail::exchange_and_combine(comm, std::span<const T>(keeps_lower ? upper : lower),
                                   keeps_lower ? lower : upper, partner, detail::operand_from(comm, partner),
                                   op);
      (keeps_lower ? last : first) = middle;
    }
  }

  template <class Comm, class T, class Op>
  static void halve_and_double(Comm& comm, const detail::power_of_two_group& group, std::span<T> data,
                               const Op& op) {
    std::array<std::span<T>, 32> kept, given;  // by step
    std::size_t steps = 0;
    std::span<T> range = data;
    for (int distance = 1; distance < group.size(); distance *= 2, ++steps) {
      const int partner = group.rank_of(group.number() ^ distance);
      const auto lower = range.first(range.size() / 2), upper = range.subspan(range.size() / 2);
      const bool keeps_lower = comm.rank() < partner;
      kept[steps] = keeps_lower ? lower : upper;
      given[steps] = keeps_lower ? upper : lower;
      detail::exchange_and_combine(comm, std::span<const T>(given[steps]), kept[steps], partner,
                                   detail::operand_from(comm, partner), op);
      range = kept[steps];
    }
    for (int distance = group.size() / 2; distance > 0; distance /= 2) {
      --steps;
      const int partner = group.rank_of(group.number() ^ distance);
      detail::exchange(comm, std::span<const T>(kept[steps]), partner, given[steps], partner);
    }
  }
};

}  // namespace ddpp::algorithms
