// SPDX-License-Identifier: BSL-1.0
// Copies. Large blocks are copied with vector moves: `memcpy` of some tens of kilobytes becomes `rep movsb`,
// which on some processors is 20 times slower when the destination's offset within its page is just ahead of
// the source's.
#pragma once

#include <ddpp/detail/instruction_set.hpp>
#include <ddpp/detail/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace ddpp::detail {

/// `to` is either `from` or apart from it.
template <class T>
void copy_elements(std::span<const T> from, std::span<T> to) {
  if (!from.empty() && from.data() != to.data())
    std::memcpy(static_cast<void*>(to.data()), from.data(), from.size_bytes());
}

template <std::size_t Bytes>
[[gnu::always_inline]] inline void copy_four_vectors(std::byte* to, const std::byte* from) noexcept {
  using chunk = typename unaligned<vector<long long, Bytes / sizeof(long long)>>::type;
  const auto* const source = reinterpret_cast<const chunk*>(from);
  const auto a = source[0], b = source[1], c = source[2], d = source[3];
  auto* const destination = reinterpret_cast<chunk*>(to);
  destination[0] = a, destination[1] = b, destination[2] = c, destination[3] = d;
}

/// The first block and the last are copied as they lie; between them, overlapping with both, blocks at which
/// the destination is aligned. For at least one block.
template <std::size_t VectorBytes>
[[gnu::always_inline]] inline void copy_blocks(std::byte* to, const std::byte* from,
                                               std::size_t bytes) noexcept {
  constexpr std::size_t block = 4 * VectorBytes;
  const std::byte* const last_from = from + bytes - block;
  std::byte* const last_to = to + bytes - block;
  copy_four_vectors<VectorBytes>(to, from);
  const std::size_t skew = block - reinterpret_cast<std::uintptr_t>(to) % block;
  for (to += skew, from += skew; to < last_to; to += block, from += block) {
    copy_four_vectors<VectorBytes>(to, from);
    asm volatile("" : : : "memory");  // keeps the compiler from making the loop one memcpy again
  }
  copy_four_vectors<VectorBytes>(last_to, last_from);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void copy_blocks_avx2(std::byte* to, const std::byte* from,
                                                     std::size_t bytes) noexcept {
  copy_blocks<32>(to, from, bytes);
}
#endif

/// Copies `bytes` bytes; the blocks do not overlap.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t small = 1024;  // below this memcpy uses vector moves itself
  if (bytes < small) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
#if defined(__x86_64__)
  if (best_instruction_set() >= instruction_set::avx2) return copy_blocks_avx2(to, from, bytes);
#endif
  copy_blocks<16>(to, from, bytes);
}

}  // namespace ddpp::detail
