// SPDX-License-Identifier: BSL-1.0
// Copies. Large blocks are copied with vector moves: `memcpy` of some tens of kilobytes becomes `rep movsb`,
// which on some processors is 20 times slower when the destination's offset within its page is just ahead of
// the source's.
#pragma once

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

/// Copies `bytes` bytes; the blocks do not overlap.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t block = 64;
  constexpr std::size_t small = 1024;  // below this memcpy uses vector moves itself
  if (bytes < small) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  struct line {
    unsigned char bytes[block];
  };
  const std::byte* const last_from = from + bytes - block;
  std::byte* const last_to = to + bytes - block;
  const std::size_t skew = block - reinterpret_cast<std::uintptr_t>(to) % block;  // then `to` is aligned
  std::memcpy(to, from, sizeof(line));
  to += skew;
  from += skew;
  for (; to < last_to; to += block, from += block) {
    std::memcpy(to, from, sizeof(line));
    asm volatile("" : : : "memory");  // keeps the compiler from making the loop one memcpy again
  }
  std::memcpy(last_to, last_from, sizeof(line));
}

}  // namespace ddpp::detail
