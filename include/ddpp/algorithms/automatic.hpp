// SPDX-License-Identifier: BSL-1.0
// The default: for each collective the algorithm that a table of transports and sizes names.
#pragma once

#include <ddpp/algorithms/direct.hpp>
#include <ddpp/algorithms/dissemination.hpp>
#include <ddpp/algorithms/halving_doubling.hpp>
#include <ddpp/algorithms/recursive_doubling.hpp>
#include <ddpp/algorithms/reproducible.hpp>
#include <ddpp/algorithms/ring.hpp>
#include <ddpp/algorithms/tree.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace ddpp::algorithms {

struct automatic {
  static constexpr std::string_view name = "automatic";

  enum class choice : std::uint8_t { recursive_doubling, halving_doubling, ring, tree };

  /// For buffers of up to so many bytes on this transport ("" stands for any other); the first row that fits
  /// counts.
  struct row {
    std::string_view transport;
    std::size_t largest;
    choice algorithm;
  };
  static constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
  static constexpr row all_reduce_table[] = {
      {"threads", 16 << 10, choice::recursive_doubling},
      {"threads", 256 << 10, choice::halving_doubling},
      {"threads", any, choice::ring},
      {"shm", 16 << 10, choice::recursive_doubling},
      {"shm", 256 << 10, choice::halving_doubling},
      {"shm", any, choice::ring},
      {"tcp", 32 << 10, choice::recursive_doubling},
      {"tcp", 512 << 10, choice::halving_doubling},
      {"tcp", any, choice::ring},
      {"", 16 << 10, choice::recursive_doubling},
      {"", any, choice::ring},
  };
  static constexpr row broadcast_table[] = {
      {"", 1 << 20, choice::tree},
      {"", any, choice::ring},
  };

  template <std::size_t Rows>
  static constexpr choice choose(const row (&table)[Rows], std::string_view transport,
                                 std::size_t bytes) noexcept {
    for (const row& r : table) {
      if ((r.transport.empty() || r.transport == transport) && bytes <= r.largest) return r.algorithm;
    }
    return table[Rows - 1].algorithm;
  }

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    switch (choose(all_reduce_table, Comm::transport_type::name, data.size_bytes())) {
      case choice::recursive_doubling:
        return recursive_doubling{}.all_reduce(comm, data, op);
      case choice::halving_doubling:
        return halving_doubling{}.all_reduce(comm, data, op);
      case choice::tree:
        return tree{}.all_reduce(comm, data, op);
      case choice::ring:
        return ring{}.all_reduce(comm, data, op);
    }
  }

  template <class Comm, class T, class Op>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      Op op) const {
    ring{}.reduce_scatter(comm, in, out, blocks, op);
  }

  template <class Comm, class T, class Op>
  void reduce(Comm& comm, std::span<const T> in, std::span<T> out, const Op& op, int root) const {
    tree{}.reduce(comm, in, out, op, root);
  }

  template <class Comm>
  void gather(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
              const detail::partition& blocks, int root) const {
    direct{}.gather(comm, in, out, blocks, root);
  }

  template <class Comm>
  void scatter(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
               const detail::partition& blocks, int root) const {
    direct{}.scatter(comm, in, out, blocks, root);
  }

  template <class Comm>
  void all_to_all(Comm& comm, std::span<const std::byte> in, const detail::partition& sent,
                  std::span<std::byte> out, const detail::partition& received) const {
    direct{}.all_to_all(comm, in, sent, out, received);
  }

  template <class Comm>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks) const {
    ring{}.all_gather(comm, data, blocks);
  }

  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    if (choose(broadcast_table, Comm::transport_type::name, data.size()) == choice::ring)
      ring{}.broadcast(comm, data, root);
    else
      tree{}.broadcast(comm, data, root);
  }

  template <class Comm>
  void barrier(Comm& comm) const {
    dissemination{}.barrier(comm);
  }
};

}  // namespace ddpp::algorithms
