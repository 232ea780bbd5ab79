// SPDX-License-Identifier: BSL-1.0
// Binomial trees: reduce toward the root, broadcast away from it.
//
// n ranks, B bytes: broadcast takes ceil(log2 n) steps, the root sends ceil(log2 n) * B bytes, others less;
// all_reduce is a reduction to rank 0 and a broadcast from it, twice the steps. Large buffers travel in
// segments, so that the levels of the tree work at the same time. Rounded at each hop in the element type.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct tree {
  static constexpr std::string_view name = "tree";

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const std::size_t length = detail::segment_length<transport>(sizeof(T));
    {
      // Rank r collects from r + 1, r + 2, r + 4, ... up to its lowest set bit, and then hands on to r
      // without that bit.
      detail::send_window<Comm> sends(comm);
      for (std::size_t i = 0; i < detail::segments_in(data.size(), length); ++i) {
        const detail::segment s(i, length, data.size());
        const auto part = data.subspan(s.offset, s.count);
        int distance = 1;
        for (; distance < comm.size() && (comm.rank() & distance) == 0; distance *= 2) {
          if (comm.rank() + distance >= comm.size()) continue;
          detail::receive_and_combine(comm, part, std::span<const T>(part), comm.rank() + distance,
                                      detail::operand::second, op);
        }
        if (comm.rank() != 0) sends.send(std::as_bytes(part), comm.rank() - distance);
      }
      sends.finish();
    }
    broadcast(comm, std::as_writable_bytes(data), 0);
  }

  /// `out` is the root's; it may be `in`, which the others keep.
  template <class Comm, class T, class Op>
  void reduce(Comm& comm, std::span<const T> in, std::span<T> out, const Op& op, int root) const {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const int n = comm.size(), number = (comm.rank() - root + n) % n;  // the root has number 0
    const auto rank_of = [&](int other) { return (other + root) % n; };
    const bool collects = number % 2 == 0 && number + 1 < n;
    detail::scratch<T> partial(number != 0 && collects ? in.size() : 0);
    const std::span<T> into = number == 0 ? out : partial.span();
    const std::size_t length = detail::segment_length<transport>(sizeof(T));
    detail::send_window<Comm> sends(comm);
    for (std::size_t i = 0; i < detail::segments_in(in.size(), length); ++i) {
      const detail::segment s(i, length, in.size());
      std::span<const T> own = in.subspan(s.offset, s.count);
      int distance = 1;
      for (; distance < n && (number & distance) == 0; distance *= 2) {
        if (number + distance >= n) continue;
        const int peer = rank_of(number + distance);
        detail::receive_and_combine(comm, into.subspan(s.offset, s.count), own, peer,
                                    peer < comm.rank() ? detail::operand::first : detail::operand::second,
                                    op);
        own = into.subspan(s.offset, s.count);
      }
      if (number != 0) sends.send(std::as_bytes(own), rank_of(number - distance));
    }
    sends.finish();
    if (n == 1 && in.data() != out.data() && !in.empty())
      std::memcpy(static_cast<void*>(out.data()), in.data(), in.size_bytes());
  }

  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const int n = comm.size(), number = (comm.rank() - root + n) % n;  // the root has number 0
    const std::size_t length = detail::segment_length<transport>(1);
    int lowest_bit = 1;
    while (lowest_bit < n && (number & lowest_bit) == 0) lowest_bit *= 2;
    detail::send_window<Comm> sends(comm);
    for (std::size_t i = 0; i < detail::segments_in(data.size(), length); ++i) {
      const detail::segment s(i, length, data.size());
      const auto part = data.subspan(s.offset, s.count);
      if (number != 0) detail::receive(comm, part, (number - lowest_bit + root) % n);
      for (int distance = lowest_bit / 2; distance > 0; distance /= 2) {
        if (number + distance < n) sends.send(part, (number + distance + root) % n);
      }
    }
    sends.finish();
  }
};

}  // namespace ddpp::algorithms
