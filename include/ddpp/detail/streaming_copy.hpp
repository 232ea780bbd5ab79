// SPDX-License-Identifier: BSL-1.0
// Copies to memory that a core with other caches reads next. An ordinary store to a line that such a core
// still has waits until it has let go of it; streaming stores take the line to memory without waiting.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddpp::detail {

#if defined(__x86_64__)

/// Copies `bytes` bytes past the caches; the blocks do not overlap. finish_streaming() must follow before
/// anyone is told of them.
inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  using value = vector<long long, 2>;
  const std::size_t head = (line_bytes - reinterpret_cast<std::uintptr_t>(to) % line_bytes) % line_bytes;
  if (bytes < head + line_bytes) return copy_bytes(to, from, bytes);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + line_bytes <= bytes; at += line_bytes) {
    value line[line_bytes / sizeof(value)];
    std::memcpy(line, from + at, line_bytes);
    for (std::size_t i = 0; i < line_bytes / sizeof(value); ++i) {
      auto* const place = reinterpret_cast<value*>(to + at) + i;
      asm volatile("movntdq %1, %0" : "=m"(*place) : "x"(line[i]));
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
