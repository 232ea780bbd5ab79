// SPDX-License-Identifier: BSL-1.0
// Binomial trees: reduce and gather toward the root, broadcast and scatter away from it (as in Thakur,
// Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005). For small
// buffers, where the number of steps counts.
//
// n ranks, L = ceil(log2 n), B bytes (of gather and scatter: the root's whole buffer):
//
//                steps   bytes sent by the rank that sends most
//   broadcast    L       L * B
//   reduce       L       B
//   all_reduce   2 L     L * B: a reduction to rank 0 and a broadcast from it
//   gather       L       B / 2 at most: the largest subtree's blocks
//   scatter      L       (n - 1) / n * B
//
// Broadcasts and reductions of large buffers travel in segments, so that the levels of the tree work at the
// same time. Rounded at each hop in the element type.
#pragma once

#include <ddpp/detail/binomial_tree.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct tree {
  static constexpr std::string_view name = "tree";

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, const Op& op) const {
    reduce_into(comm, std::span<const T>(data), data, op, detail::binomial_tree(comm, 0));
    broadcast(comm, std::as_writable_bytes(data), 0);
  }

  /// `out` is the root's; it may be `in`, which the others keep.
  template <class Comm, class T, class Op>
  void reduce(Comm& comm, std::span<const T> in, std::span<T> out, const Op& op, int root) const {
    const detail::binomial_tree place(comm, root);
    detail::scratch<T> partial(place.is_root() || place.is_leaf() ? 0 : in.size());
    reduce_into(comm, in, place.is_root() ? out : partial.span(), op, place);
    if (comm.size() == 1) detail::copy_elements(in, out);
  }

  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const detail::binomial_tree place(comm, root);
    const std::size_t length = detail::segment_length<transport>(1);
    detail::send_window<Comm> sends(comm);
    for (std::size_t i = 0; i < detail::segments_in(data.size(), length); ++i) {
      const detail::segment s(i, length, data.size());
      const auto part = data.subspan(s.offset, s.count);
      if (!place.is_root()) detail::receive(comm, part, place.parent());
      place.each_child_downward([&](int child, int) { sends.send(part, place.rank_of(child)); });
    }
    sends.finish();
  }

  /// `in` is this rank's block; the root's may be its place in `out`.
  template <class Comm>
  void gather(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
              const detail::partition& blocks, int root) const {
    const detail::binomial_tree place(comm, root);
    if (place.is_leaf() && !place.is_root()) return detail::send_segments(comm, in, place.parent());
    // By number from this rank's on. Numbers are ranks where rank 0 is the root: there the result itself.
    const detail::rotated_partition by_number(blocks, root);
    const bool in_place = place.is_root() && root == 0;
    detail::scratch<std::byte> room(in_place ? 0 : by_number.size(place.number(), place.end()));
    const std::span<std::byte> collected = in_place ? out : room.span();
    detail::copy_elements(in, collected.first(in.size()));
    place.each_child_upward([&](int first, int end) {
      detail::receive_segments(
          comm, collected.subspan(by_number.size(place.number(), first), by_number.size(first, end)),
          place.rank_of(first));
    });
    if (!place.is_root())
      detail::send_segments(comm, std::span<const std::byte>(collected), place.parent());
    else if (!in_place)
      by_number.restore(std::span<const std::byte>(collected), out);
  }

  /// `out` receives this rank's block; the root has its own already.
  template <class Comm>
  void scatter(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
               const detail::partition& blocks, int root) const {
    const detail::binomial_tree place(comm, root);
    if (place.is_leaf() && !place.is_root()) return detail::receive_segments(comm, out, place.parent());
    const detail::rotated_partition by_number(blocks, root);
    const bool in_place = place.is_root() && root == 0;
    detail::scratch<std::byte> room(in_place ? 0 : by_number.size(place.number(), place.end()));
    if (!place.is_root())
      detail::receive_segments(comm, room.span(), place.parent());
    else if (!in_place)
      by_number.rotate(in, room.span());
    const std::span<const std::byte> held = in_place ? in : room.span();
    detail::hand_down(comm, place, by_number, held);
    if (!place.is_root()) detail::copy_elements(held.first(out.size()), out);
  }

 private:
  /// Each rank reduces what it and its children hold into `into`, segment by segment, and passes it up. A
  /// leaf passes `in`.
  template <class Comm, class T, class Op>
  static void reduce_into(Comm& comm, std::span<const T> in, std::span<T> into, const Op& op,
                          const detail::binomial_tree& place) {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const std::size_t length = detail::segment_length<transport>(sizeof(T));
    detail::send_window<Comm> sends(comm);
    for (std::size_t i = 0; i < detail::segments_in(in.size(), length); ++i) {
      const detail::segment s(i, length, in.size());
      std::span<const T> own = in.subspan(s.offset, s.count);
      place.each_child_upward([&](int child, int) {
        const int peer = place.rank_of(child);
        const std::span<T> result = into.subspan(s.offset, s.count);
        detail::receive_and_combine(comm, result, own, peer, detail::operand_from(comm, peer), op);
        own = result;
      });
      if (!place.is_root()) sends.send(std::as_bytes(own), place.parent());
    }
    sends.finish();
  }
};

}  // namespace ddpp::algorithms
