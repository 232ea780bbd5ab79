// SPDX-License-Identifier: BSL-1.0
// The element loops of reductions.
#pragma once

#include <ddpp/op.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace ddpp::detail {

/// a[k] = op(a[k], b[k]), for as many elements as one vector register holds: unrolled, it becomes one vector
/// instruction at -O2. Minima and maxima of floats are no straight line of arithmetic, and better off as a
/// loop.
template <class T, class Op, std::size_t Count>
void combine_block(T (&a)[Count], const T (&b)[Count], const Op& op) {
  if constexpr (Count * sizeof(T) > 16) {
    for (std::size_t k = 0; k < Count; ++k) a[k] = op(a[k], b[k]);
  } else {
#pragma GCC unroll 16
    for (std::size_t k = 0; k < Count; ++k) a[k] = op(a[k], b[k]);
  }
}

/// into[i] = op(first[i], second[i]). `into` may be either operand. Blocks are copied into local arrays of
/// fixed length, so that the compiler needs no proof of aliasing or alignment.
template <class T, class Op>
void combine(T* into, const T* first, const T* second, std::size_t count, const Op& op) {
  std::size_t i = 0;
  if constexpr (std::is_default_constructible_v<T>) {
    constexpr bool compares_floats =
        std::is_floating_point_v<T> && (std::is_same_v<Op, min_t> || std::is_same_v<Op, max_t>);
    constexpr std::size_t bytes = compares_floats ? 64 : 16;
    constexpr std::size_t block = sizeof(T) >= bytes ? 1 : bytes / sizeof(T);
    for (; i + block <= count; i += block) {
      T a[block], b[block];
      std::memcpy(a, first + i, sizeof a);
      std::memcpy(b, second + i, sizeof b);
      combine_block(a, b, op);
      std::memcpy(static_cast<void*>(into + i), a, sizeof a);
    }
  }
  for (; i < count; ++i) into[i] = op(first[i], second[i]);
}

/// into[i] = op(... op(op(x0[i], x1[i]), x2[i]) ...) for the n >= 1 operands x. `into` is apart from them, or
/// one of them.
template <class T, class Op>
void reduce_operands(T* into, const T* const* operands, int n, std::size_t count, const Op& op) {
  // Partial results stay in the innermost cache.
  constexpr std::size_t most_bytes = std::size_t{8} << 10;
  constexpr std::size_t most = sizeof(T) >= most_bytes ? 1 : most_bytes / sizeof(T);
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t length = std::min(most, count - at);
    if (n == 1) {
      if (into != operands[0])
        std::memcpy(static_cast<void*>(into + at), operands[0] + at, length * sizeof(T));
      continue;
    }
    alignas(T) std::byte partial[most * sizeof(T)];  // T need not be default constructible
    T* const to = n == 2 ? into + at : reinterpret_cast<T*>(partial);
    combine(to, operands[0] + at, operands[1] + at, length, op);
    for (int k = 2; k < n; ++k) combine(k + 1 == n ? into + at : to, to, operands[k] + at, length, op);
  }
}

/// into[i] = (x0[i] + x1[i] + ...) / divisor, added in float in this order and rounded once.
template <class T>
requires is_16_bit_float<T>
void sum_operands_in_float(T* into, const T* const* operands, int n, std::size_t count, int divisor) {
  constexpr std::size_t block = 256;
  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t length = std::min(block, count - done);
    float total[block];
    for (std::size_t i = 0; i < length; ++i) total[i] = static_cast<float>(operands[0][done + i]);
    for (int k = 1; k < n; ++k) {
      for (std::size_t i = 0; i < length; ++i) total[i] += static_cast<float>(operands[k][done + i]);
    }
    for (std::size_t i = 0; i < length; ++i) into[done + i] = T(total[i] / static_cast<float>(divisor));
  }
}

/// data[i] = data[i] / divisor: the last step of an average.
template <number T>
void divide(T* data, std::size_t count, int divisor) {
  if constexpr (is_16_bit_float<T>) {
    for (std::size_t i = 0; i < count; ++i)
      data[i] = T(static_cast<float>(data[i]) / static_cast<float>(divisor));
  } else if constexpr (std::floating_point<T>) {
    for (std::size_t i = 0; i < count; ++i) data[i] /= static_cast<T>(divisor);
  } else {
    // In 64 bits: the number of ranks need not fit into T.
    using wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    for (std::size_t i = 0; i < count; ++i)
      data[i] = static_cast<T>(static_cast<wide>(data[i]) / static_cast<wide>(divisor));
  }
}

/// data[i] = data[i] * factor: the first step of a pre-multiplied sum.
template <number T, class X>
void multiply(T* data, std::size_t count, X factor) {
  if constexpr (is_16_bit_float<T>) {
    for (std::size_t i = 0; i < count; ++i)
      data[i] = T(static_cast<float>(data[i]) * static_cast<float>(factor));
  } else {
    const auto by = static_cast<T>(factor);
    for (std::size_t i = 0; i < count; ++i)
      data[i] = calculate(data[i], by, [](auto x, auto y) { return x * y; });
  }
}

}  // namespace ddpp::detail
