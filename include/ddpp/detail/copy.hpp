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

inline constexpr std::size_t line_bytes = 64;

/// To whole cache lines.
constexpr std::size_t round_up_to_lines(std::size_t bytes) noexcept {
  return (bytes + line_bytes - 1) / line_bytes * line_bytes;
}

template <std::size_t VectorBytes>
[[gnu::always_inline]] inline void copy_line(std::byte* to, const std::byte* from) noexcept {
  using value = vector<long long, VectorBytes / sizeof(long long)>;
  constexpr std::size_t count = line_bytes / VectorBytes;
  value line[count];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < count; ++i)
    line[i] = reinterpret_cast<const typename unaligned<value>::type*>(from)[i];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<typename unaligned<value>::type*>(to)[i] = line[i];
}

/// The first 64 bytes and the last are copied as they lie; between them, overlapping with both, lines of the
/// destination. For at least 64 bytes.
template <std::size_t VectorBytes>
[[gnu::always_inline]] inline void copy_lines(std::byte* to, const std::byte* from,
                                              std::size_t bytes) noexcept {
  const std::byte* const last_from = from + bytes - line_bytes;
  std::byte* const last_to = to + bytes - line_bytes;
  copy_line<VectorBytes>(to, from);
  const std::size_t skew = line_bytes - reinterpret_cast<std::uintptr_t>(to) % line_bytes;
  for (to += skew, from += skew; to < last_to; to += line_bytes, from += line_bytes) {
    copy_line<VectorBytes>(to, from);
    asm volatile("" : : : "memory");  // keeps the compiler from making the loop one memcpy again
  }
  copy_line<VectorBytes>(last_to, last_from);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void copy_lines_avx2(std::byte* to, const std::byte* from,
                                                    std::size_t bytes) noexcept {
  copy_lines<32>(to, from, bytes);
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
  if (best_instruction_set() >= instruction_set::avx2) return copy_lines_avx2(to, from, bytes);
#endif
  copy_lines<16>(to, from, bytes);
}

/// `to` is either `from` or apart from it.
template <class T>
void copy_elements(std::span<const T> from, std::span<T> to) {
  if (from.data() == to.data()) return;
  copy_bytes(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from.data()),
             from.size_bytes());
}

}  // namespace ddpp::detail
