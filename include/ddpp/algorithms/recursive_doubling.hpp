// SPDX-License-Identifier: BSL-1.0
// Recursive doubling: partners at distance 1, 2, 4, ... exchange everything they have (Thakur, Rabenseifner
// and Gropp, "Optimization of collective communication operations in MPICH", 2005).
//
// n ranks, B bytes: log2 n steps, log2 n * B bytes sent per rank; two steps and B bytes more for some ranks
// when n is not a power of two. The least latency, for small buffers. Both partners compute the same
// expression, lower rank first, so all ranks hold the same bits. Rounded at each step in the element type.
#pragma once

#include <ddpp/detail/power_of_two.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace ddpp::algorithms {

struct recursive_doubling {
  static constexpr std::string_view name = "recursive_doubling";

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    const detail::power_of_two_group group(comm);
    group.fold(comm, data, op);
    if (group.takes_part()) exchange_with_partners(comm, group, data, op);
    group.unfold(comm, data);
  }

 private:
  // Each step reads one buffer, which is being sent too, and writes the other.
  template <class Comm, class T, class Op>
  static void exchange_with_partners(Comm& comm, const detail::power_of_two_group& group, std::span<T> data,
                                     const Op& op) {
    detail::scratch<T> other(data.size());
    std::span<T> from = data, into = other.span();
    for (int distance = 1; distance < group.size(); distance *= 2) {
      const int partner = group.rank_of(group.number() ^ distance);
      const auto theirs = detail::operand_from(comm, partner);
      const auto combine = [&](detail::segment s) {
        detail::receive_and_combine(comm, into.subspan(s.offset, s.count),
                                    std::span<const T>(from.subspan(s.offset, s.count)), partner, theirs, op);
      };
      detail::exchange_segments(comm, std::as_bytes(from), sizeof(T), partner, from.size(), combine);
      std::swap(from, into);
    }
    detail::copy_elements(std::span<const T>(from), data);
  }
};

}  // namespace ddpp::algorithms
