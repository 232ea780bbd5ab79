// SPDX-License-Identifier: BSL-1.0
// Recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", 2004):
// partners at distance 1, 2, 4, ... each hand over the half of their range that the other keeps, until each
// has 1/n of the result; then the same way back, gathering.
//
// n ranks, B bytes: 2 log2 n steps, 2 (n - 1) / n * B bytes sent per rank; when n is not a power of two, two
// steps and B bytes more for some ranks. Fewer steps than a ring and as few bytes, for n a power of two. Each
// element is reduced along the same tree over ranks as in recursive doubling, whatever the size: the two give
// the same bits.
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

 private:
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
                                   keeps_lower ? detail::operand::second : detail::operand::first, op);
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
