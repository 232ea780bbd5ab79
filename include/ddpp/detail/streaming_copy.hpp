// SPDX-License-Identifier: BSL-1.0
// Copies to memory that a core with other caches reads next. An ordinary store to a line that such a core
// still has waits until it has let go of it; streaming stores take the line to memory without waiting.
#pragma once

#include <ddpp/detail/copy.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddpp::detail {

#if defined(__x86_64__)

/// Copies `bytes` bytes past the caches; the blocks do not overlap. finish_streaming() must follow before
/// anyone is told of them.
inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t line = 64;
  const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(to) % line) % line;
  if (bytes < head + line) return copy_bytes(to, from, bytes);
  typedef long long vector __attribute__((vector_size(16)));
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + line <= bytes; at += line) {
    vector values[line / sizeof(vector)];
    std::memcpy(values, from + at, line);
    for (std::size_t i = 0; i < line / sizeof(vector); ++i) {
      auto* const place = reinterpret_cast<vector*>(to + at) + i;
      asm volatile("movntdq %1, %0" : "=m"(*place) : "x"(values[i]));
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
}

inline void finish_streaming() noexcept { asm volatile("sfence" : : : "memory"); }

#else

inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  copy_bytes(to, from, bytes);
}
inline void finish_streaming() noexcept {}

#endif

}  // namespace ddpp::detail
