// SPDX-License-Identifier: BSL-1.0
// Direct algorithms: each rank sends straight to those who need its data. The fewest bytes; for large
// buffers, and for sums of 16-bit floats with one rounding: each rank gets everyone's raw piece of its own
// block, adds them in rank order in float, divides where an average is asked, and rounds once.
//
// n ranks, n - 1 steps, B bytes (the whole buffer of the root, or of each rank):
//
//                                   bytes sent by the rank that sends most
//   gather                          B / n; the root receives the rest
//   scatter                         (n - 1) / n * B
//   all_to_all: pairwise exchange   (n - 1) / n * B
//   16-bit reduce_scatter           (n - 1) / n * B
//   16-bit reduce                   B, and n - 1 steps more: a reduce_scatter and a gather
//   16-bit all_reduce               2 (n - 1) / n * B, and n - 1 steps more: a reduce_scatter and a ring's
//                                   all_gather
#pragma once

#include <ddpp/algorithms/ring.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct direct {
  static constexpr std::string_view name = "direct";

  /// data = (sum over ranks of data) / divisor, rounded once.
  template <class Comm, class T>
  requires is_short_float<T>
  void sum_in_float(Comm& comm, std::span<T> data, int divisor) const {
    const int n = comm.size();
    const detail::partition blocks(data.size(), n);
    reduce_block(comm, std::span<const T>(data),
                 data.subspan(blocks.offset(comm.rank()), blocks.size(comm.rank())), blocks, divisor);
    ring{}.all_gather(comm, std::as_writable_bytes(data), blocks.scaled(sizeof(T)));
  }

  /// The root's out = (sum over ranks of in) / divisor, rounded once.
  template <class Comm, class T>
  requires is_short_float<T>
  void reduce_in_float(Comm& comm, std::span<const T> in, std::span<T> out, int divisor, int root) const {
    const detail::partition blocks(in.size(), comm.size());
    detail::scratch<T> own(blocks.size(comm.rank()));
    reduce_block(comm, in, own.span(), blocks, divisor);
    if (comm.rank() == root) {
      std::copy_n(own.data(), own.span().size(),
                  out.begin() + static_cast<std::ptrdiff_t>(blocks.offset(root)));
    }
    gather(comm, std::as_bytes(own.span()), std::as_writable_bytes(out), blocks.scaled(sizeof(T)), root);
  }

  /// Everyone sends to the root, which has its own piece in place.
  template <class Comm>
  void gather(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
              const detail::partition& blocks, int root) const {
    if (comm.rank() != root) return detail::send_segments(comm, in, root);
    for (int distance = 1; distance < comm.size(); ++distance) {
      const int peer = (root + distance) % comm.size();
      detail::receive_segments(comm, out.subspan(blocks.offset(peer), blocks.size(peer)), peer);
    }
  }

  /// The root sends to everyone, and has its own piece in place.
  template <class Comm>
  void scatter(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
               const detail::partition& blocks, int root) const {
    if (comm.rank() != root) return detail::receive_segments(comm, out, root);
    for (int distance = 1; distance < comm.size(); ++distance) {
      const int peer = (root + distance) % comm.size();
      detail::send_segments(comm, in.subspan(blocks.offset(peer), blocks.size(peer)), peer);
    }
  }

  /// Pairwise exchange: n - 1 steps; in each a rank sends to the one so far after it and receives from the
  /// one as far before it. Each has its own piece in place.
  template <class Comm>
  void all_to_all(Comm& comm, std::span<const std::byte> in, const detail::partition& sent,
                  std::span<std::byte> out, const detail::partition& received) const {
    const int n = comm.size();
    for (int distance = 1; distance < n; ++distance) {
      const int to = (comm.rank() + distance) % n, from = (comm.rank() + n - distance) % n;
      detail::exchange(comm, in.subspan(sent.offset(to), sent.size(to)), to,
                       out.subspan(received.offset(from), received.size(from)), from);
    }
  }

  /// out = this rank's block of it. `out` may be its place in `in`.
  template <class Comm, class T>
  requires is_short_float<T>
  void reduce_block(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                    int divisor) const {
    const int n = comm.size(), rank = comm.rank();
    const std::size_t own = blocks.size(rank);
    detail::scratch<T> received(own * static_cast<std::size_t>(n - 1));
    detail::scratch<const T*> operands(static_cast<std::size_t>(n));
    operands.data()[rank] = in.data() + blocks.offset(rank);
    for (int distance = 1; distance < n; ++distance) {
      const int to = (rank + distance) % n, from = (rank - distance + n) % n;
      const auto piece = received.span().subspan(own * static_cast<std::size_t>(distance - 1), own);
      detail::exchange(comm, in.subspan(blocks.offset(to), blocks.size(to)), to, piece, from);
      operands.data()[from] = piece.data();
    }
    detail::sum_operands_in_float(out.data(), operands.data(), n, own, divisor);
  }
};

}  // namespace ddpp::algorithms
