// SPDX-License-Identifier: BSL-1.0
// Many pieces of memory, broadcast in few messages.
#pragma once

#include <ddpp/broadcast.hpp>
#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/device_collective.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddpp::detail {

/// Collective; blocks. Every rank's pieces get what root's hold; all ranks have as many, of the same sizes.
/// Small pieces travel together through a staging buffer, large ones from where they are. On a device all
/// travel from where they are, as one group that the program's stream follows; it blocks as collectives
/// there.
class coalesced_broadcast {
 public:
  template <class C>
  void operator()(C& comm, std::span<const std::span<std::byte>> pieces, int root) {
    if (comm.size() == 1) return;
    if constexpr (is_on_device<C>)
      broadcast_group(comm, pieces, root);
    else
      broadcast_staged(comm, pieces, root);
  }

 private:
  static constexpr std::size_t large_piece = std::size_t{1} << 18, staging_limit = std::size_t{1} << 22,
                               most_in_group = 1024;  // NCCL takes up to 2048

  template <class C>
  static void broadcast_group(C& comm, std::span<const std::span<std::byte>> pieces, int root) {
    for (std::size_t first = 0; first < pieces.size(); first += most_in_group) {
      const auto together = pieces.subspan(first, std::min(most_in_group, pieces.size() - first));
      std::size_t bytes = 0;
      for (const auto& piece : together) bytes += piece.size();
      comm.run(fingerprint_of<std::byte>(collective::broadcast, bytes, root), [&](C& inside) {
        inside.transport().group([&] {
          for (const auto& piece : together) inside.transport().broadcast(piece, root, inside.deadline());
        });
      });
    }
  }

  template <class C>
  void broadcast_staged(C& comm, std::span<const std::span<std::byte>> pieces, int root) {
    const bool sending = comm.rank() == root;
    std::size_t first = 0, staged = 0;
    for (std::size_t i = 0; i <= pieces.size(); ++i) {
      const bool large = i < pieces.size() && pieces[i].size() >= large_piece;
      if (i == pieces.size() || large || staged + pieces[i].size() > staging_limit) {
        flush(comm, pieces.subspan(first, i - first), staged, sending, root);
        first = i + (large ? 1 : 0);
        staged = 0;
      }
      if (large)
        ddpp::broadcast(comm, as_numbers(pieces[i]), root);
      else if (i < pieces.size())
        staged += pieces[i].size();
    }
  }

  static std::span<std::uint8_t> as_numbers(std::span<std::byte> bytes) {
    return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  }

  template <class C>
  void flush(C& comm, std::span<const std::span<std::byte>> pieces, std::size_t bytes, bool sending,
             int root) {
    if (bytes == 0) return;
    if (staging_.size() < bytes) staging_.resize(bytes);
    std::byte* at = staging_.data();
    for (const auto& piece : pieces) {
      if (sending) copy_bytes(at, piece.data(), piece.size());
      at += piece.size();
    }
    ddpp::broadcast(comm, as_numbers(std::span(staging_).first(bytes)), root);
    at = staging_.data();
    for (const auto& piece : pieces) {
      if (!sending) copy_bytes(piece.data(), at, piece.size());
      at += piece.size();
    }
  }

  std::vector<std::byte> staging_;
};

}  // namespace ddpp::detail
