// SPDX-License-Identifier: BSL-1.0
// Ring algorithms (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009).
//
// Terms: n ranks in a ring, each sends only to the next and receives only from the previous one. The buffer
// is cut into n blocks, one per rank; a block travels as one or more segments, each a message. Long blocks
// are cut into slices, and all steps are made with the first slice of each block, then with the second: so
// what a rank has received or reduced is still in its cache when it sends it on.
//
//                   steps       bytes sent per rank, of a buffer of B bytes
//   all_reduce      2 (n - 1)   2 (n - 1) / n * B
//   reduce_scatter  n - 1       (n - 1) / n * B      (B: the whole input)
//   all_gather      n - 1       (n - 1) / n * B      (B: the whole output)
//   broadcast       n - 1       B (0 for the last): a chain, whose segments follow each other
//
// Reductions are rounded at each hop in the element type.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

namespace ddpp {
namespace detail {

/// f(slice of all blocks), in order.
template <class Comm, class F>
void for_each_slice(const Comm& comm, const partition& blocks, std::size_t element_size, F&& f) {
  using transport = std::remove_cvref_t<decltype(comm.transport())>;
  constexpr std::size_t segments_per_slice = 2;
  const std::size_t length = segments_per_slice * segment_length<transport>(element_size);
  const std::size_t slices = segments_in(longest_block(blocks), length);
  for (std::size_t i = 0; i < slices; ++i) f(partition_slice(blocks, i, length));
}

/// n - 1 steps around the ring: in step s a rank sends block (first - s) and receives block (first - s - 1),
/// which is the one it sends in the next step. `outgoing(step, offset, count)` are the elements to send
/// (offset and count are in elements); `incoming(step, offset, count)` receives from the previous rank and
/// reduces or copies. A step's sends are over before the next begins.
template <class Comm>
void ring_pass(
    Comm& comm, const partition_slice& blocks, std::size_t element_size, int first,
    function_ref<std::span<const std::byte>(int step, std::size_t offset, std::size_t count)> outgoing,
    function_ref<void(int step, std::size_t offset, std::size_t count)> incoming) {
  using transport = std::remove_cvref_t<decltype(comm.transport())>;
  const int n = comm.size(), next = (comm.rank() + 1) % n;
  const std::size_t length = segment_length<transport>(element_size);
  send_window<Comm> sends(comm);
  for (int step = 0; step < n - 1; ++step) {
    const int sent = ((first - step) % n + n) % n, received = (sent + n - 1) % n;
    const std::size_t rounds =
        std::max(segments_in(blocks.size(sent), length), segments_in(blocks.size(received), length));
    for (std::size_t i = 0; i < rounds; ++i) {
      if (const segment s(i, length, blocks.size(sent)); s.count > 0) {
        sends.send(outgoing(step, blocks.offset(sent) + s.offset, s.count), next);
      }
      if (const segment s(i, length, blocks.size(received)); s.count > 0) {
        incoming(step, blocks.offset(received) + s.offset, s.count);
      }
    }
    sends.finish();
  }
}

/// The received partial result holds the ranks before this one, so it comes first; at rank 0, which the ring
/// enters again from its end, it holds the higher ranks and comes second.
template <class Comm>
operand ring_operand(const Comm& comm) {
  return comm.rank() == 0 ? operand::second : operand::first;
}

}  // namespace detail

namespace algorithms {

struct ring {
  static constexpr std::string_view name = "ring";

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    const int n = comm.size(), previous = (comm.rank() + n - 1) % n;
    const detail::partition all(data.size(), n);
    detail::for_each_slice(comm, all, sizeof(T), [&](const detail::partition_slice& blocks) {
      detail::ring_pass(
          comm, blocks, sizeof(T), comm.rank(),
          [&](int, std::size_t offset, std::size_t count) {
            return std::as_bytes(data.subspan(offset, count));
          },
          [&](int, std::size_t offset, std::size_t count) {
            const auto own = data.subspan(offset, count);
            detail::receive_and_combine(comm, own, std::span<const T>(own), previous,
                                        detail::ring_operand(comm), op);
          });
      gather_slice(comm, std::as_writable_bytes(data), blocks, (comm.rank() + 1) % n, sizeof(T));
    });
  }

  /// `in` holds one block per rank, `out` receives this rank's. `out` may be its place in `in`.
  template <class Comm, class T, class Op>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      Op op) const {
    if (comm.size() == 1) return detail::copy_elements(in, out);
    detail::for_each_slice(comm, blocks, sizeof(T), [&](const detail::partition_slice& slice) {
      reduce_slice(comm, in, out.subspan(slice.offset(comm.rank()) - blocks.offset(comm.rank())), slice, op);
    });
  }

  /// Each rank's block stands in its place in `data`; afterwards all do.
  template <class Comm>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks) const {
    all_gather(comm, data, blocks, comm.rank());
  }

  /// The same where this rank has block `first`, the one after it the next block, and so on around the ring.
  template <class Comm>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks, int first) const {
    detail::for_each_slice(comm, blocks, 1, [&](const detail::partition_slice& slice) {
      gather_slice(comm, data, slice, first, 1);
    });
  }

  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    using transport = std::remove_cvref_t<decltype(comm.transport())>;
    const int n = comm.size(), next = (comm.rank() + 1) % n, previous = (comm.rank() + n - 1) % n;
    const std::size_t length = detail::segment_length<transport>(1);
    detail::send_window<Comm> sends(comm);
    for (std::size_t i = 0; i < detail::segments_in(data.size(), length); ++i) {
      const detail::segment s(i, length, data.size());
      if (comm.rank() != root) detail::receive(comm, data.subspan(s.offset, s.count), previous);
      if (next != root) sends.send(data.subspan(s.offset, s.count), next);
    }
    sends.finish();
  }

 private:
  /// `out` begins where this rank's part of the slice belongs.
  template <class Comm, class T, class Op>
  static void reduce_slice(Comm& comm, std::span<const T> in, std::span<T> out,
                           const detail::partition_slice& blocks, Op op) {
    const int n = comm.size(), previous = (comm.rank() + n - 1) % n;
    const std::size_t longest = detail::longest_block(blocks);
    // Partial results alternate between two scratch blocks: one is sent while the next is made in the other.
    detail::scratch<T> partial(2 * longest);
    const auto made_in = [&](int step, std::size_t at, std::size_t count) {
      return partial.span().subspan(static_cast<std::size_t>(step & 1) * longest + at, count);
    };
    const auto block_start = [&](int step) { return blocks.offset(((comm.rank() - 2 - step) % n + n) % n); };
    detail::ring_pass(
        comm, blocks, sizeof(T), previous,
        [&](int step, std::size_t offset, std::size_t count) {
          return std::as_bytes(step == 0 ? in.subspan(offset, count)
                                         : made_in(step - 1, offset - block_start(step - 1), count));
        },
        [&](int step, std::size_t offset, std::size_t count) {
          const std::size_t at = offset - block_start(step);
          const auto into = step == n - 2 ? out.subspan(at, count) : made_in(step, at, count);
          detail::receive_and_combine(comm, into, in.subspan(offset, count), previous,
                                      detail::ring_operand(comm), op);
        });
  }

  /// `blocks` counts elements, of `element_size` bytes each.
  template <class Comm>
  static void gather_slice(Comm& comm, std::span<std::byte> data, const detail::partition_slice& blocks,
                           int first, std::size_t element_size) {
    const int n = comm.size(), previous = (comm.rank() + n - 1) % n;
    const auto part = [&](std::size_t offset, std::size_t count) {
      return data.subspan(offset * element_size, count * element_size);
    };
    detail::ring_pass(
        comm, blocks, element_size, first,
        [&](int, std::size_t offset, std::size_t count) { return part(offset, count); },
        [&](int, std::size_t offset, std::size_t count) {
          detail::receive(comm, part(offset, count), previous);
        });
  }
};

}  // namespace algorithms
}  // namespace ddpp
