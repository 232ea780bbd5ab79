// SPDX-License-Identifier: BSL-1.0
// Bruck's algorithms (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997): as few steps as there can be, for any number
// of ranks. For small buffers.
//
// n ranks, L = ceil(log2 n), B bytes (the whole output of all_gather, a rank's whole input of all_to_all):
//
//                steps   bytes sent per rank
//   all_gather   L       (n - 1) / n * B, the same as a ring
//   all_to_all   L       about L / 2 * B: a block travels once for each set bit of its distance
//
// An all_to_all whose counts differ sends the sizes of the blocks before the blocks, in messages of their
// own, since the ranks on the way do not know them.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::algorithms {

struct bruck {
  static constexpr std::string_view name = "bruck";

  /// Each rank's block stands in its place in `data`; afterwards all do. A rank that holds its own block and
  /// those of the next ones gets as many more from the rank after them.
  template <class Comm>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks) const {
    const int n = comm.size(), rank = comm.rank();
    const detail::rotated_partition from_own(blocks, rank);
    detail::scratch<std::byte> room(from_own.total());
    const std::span<std::byte> held = room.span();
    detail::copy_elements(std::span<const std::byte>(data.subspan(blocks.offset(rank), blocks.size(rank))),
                          held.first(blocks.size(rank)));
    for (int have = 1; have < n; have *= 2) {
      const int more = std::min(have, n - have);
      detail::exchange(
          comm, std::span<const std::byte>(held.first(from_own.offset(more))), (rank + n - have) % n,
          held.subspan(from_own.offset(have), from_own.size(have, have + more)), (rank + have) % n);
    }
    from_own.restore(std::span<const std::byte>(held), data);
  }

  /// A block whose destination is d ranks away travels the distances 1, 2, 4, ... that d consists of,
  /// together with all others that travel the same one. Each rank has its own block in place.
  template <class Comm>
  void all_to_all(Comm& comm, std::span<const std::byte> in, const detail::partition& sent,
                  std::span<std::byte> out, const detail::partition& received) const {
    const int n = comm.size(), rank = comm.rank();
    std::vector<std::span<const std::byte>> block;  // by the distance that it travels in all
    for (int d = 0; d < n; ++d) {
      const int to = (rank + d) % n;
      block.push_back(in.subspan(sent.offset(to), sent.size(to)));
    }
    std::vector<std::vector<std::byte>> arrived;  // by step: what blocks that are on their way lie in
    for (int distance = 1; distance < n; distance *= 2) {
      const int to = (rank + distance) % n, from = (rank + n - distance) % n;
      std::vector<std::byte> leaving;
      std::vector<std::size_t> sizes;
      each_travelling(n, distance, [&](std::size_t d) {
        leaving.insert(leaving.end(), block[d].begin(), block[d].end());
        sizes.push_back(block[d].size());
      });
      if (!sent.even()) {
        std::vector<std::size_t> theirs(sizes.size());
        detail::exchange(comm, std::span<const std::size_t>(sizes), to, std::span(theirs), from);
        sizes = theirs;
      }
      arrived.emplace_back(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
      detail::exchange(comm, std::span<const std::byte>(leaving), to, std::span(arrived.back()), from);
      std::span<const std::byte> rest = arrived.back();
      auto size = sizes.begin();
      each_travelling(n, distance, [&](std::size_t d) {
        block[d] = rest.first(*size);
        rest = rest.subspan(*size++);
      });
    }
    for (int d = 1; d < n; ++d) {
      const int from = (rank + n - d) % n;
      take(comm, block[static_cast<std::size_t>(d)], out.subspan(received.offset(from), received.size(from)),
           from);
    }
  }

 private:
  template <class F>
  static void each_travelling(int ranks, int distance, F&& f) {
    for (int d = distance; d < ranks; ++d) {
      if ((d & distance) != 0) f(static_cast<std::size_t>(d));
    }
  }

  // No message has the size of one block, so the transport cannot tell that counts do not agree.
  template <class Comm>
  static void take(Comm& comm, std::span<const std::byte> block, std::span<std::byte> into, int from) {
    if (block.size() != into.size()) {
      const failure cause{failure_kind::mismatch, from,
                          "rank " + std::to_string(from) + " sent " + std::to_string(block.size()) +
                              " bytes to rank " + std::to_string(comm.rank()) + ", which receives " +
                              std::to_string(into.size()) + " bytes from it (all_to_all_v)"};
      comm.transport().abort(cause);
      throw group_failed(cause);
    }
    detail::copy_elements(block, into);
  }
};

}  // namespace ddpp::algorithms
