// SPDX-License-Identifier: BSL-1.0
// Broadcasts and reductions of large buffers in two phases, between which each rank holds one block:
//
//   broadcast = scatter + all_gather (van de Geijn; Barnett et al., "Interprocessor collective communication
//     library", 1994): a binomial tree, then a ring;
//   reduce = reduce_scatter + gather (Rabenseifner, "Optimization of collective reduction operations", 2004):
//     a ring, then directly.
//
// n ranks, L = ceil(log2 n), B bytes:
//
//               steps         bytes sent by the rank that sends most
//   broadcast   L + n - 1     2 (n - 1) / n * B
//   reduce      2 (n - 1)     B; the root receives 2 (n - 1) / n * B, instead of a tree's L * B
#pragma once

#include <ddpp/algorithms/direct.hpp>
#include <ddpp/algorithms/ring.hpp>
#include <ddpp/detail/binomial_tree.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct scatter_gather {
  static constexpr std::string_view name = "scatter_gather";

  /// Blocks belong to numbers in the tree, so that a subtree's are one piece of `data`.
  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    const detail::binomial_tree place(comm, root);
    const detail::partition blocks(data.size(), comm.size());
    const std::size_t start = blocks.offset(place.number());
    const std::span<std::byte> held = data.subspan(start, blocks.offset(place.end()) - start);
    if (!place.is_root()) detail::receive_segments(comm, held, place.parent());
    detail::hand_down(comm, place, blocks, held);
    ring{}.all_gather(comm, data, blocks, place.number());
  }

  /// `out` is the root's; it may be `in`, which the others keep.
  template <class Comm, class T, class Op>
  void reduce(Comm& comm, std::span<const T> in, std::span<T> out, const Op& op, int root) const {
    const int rank = comm.rank();
    const detail::partition blocks(in.size(), comm.size());
    detail::scratch<T> room(rank == root ? 0 : blocks.size(rank));
    const std::span<T> own = rank == root ? out.subspan(blocks.offset(rank), blocks.size(rank)) : room.span();
    ring{}.reduce_scatter(comm, in, own, blocks, op);
    direct{}.gather(comm, std::as_bytes(own), std::as_writable_bytes(out), blocks.scaled(sizeof(T)), root);
  }
};

}  // namespace ddpp::algorithms
