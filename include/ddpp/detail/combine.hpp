// SPDX-License-Identifier: BSL-1.0
// The element loops of reductions: on vectors for the named operations of numbers, element by element for any
// other callable. Addresses need not be aligned for the former.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/vector_loops.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace ddpp::detail {

/// a[k] = op(a[k], b[k]), for as many elements as one vector register holds: unrolled, it becomes one vector
/// instruction at -O2 if the operation is straight arithmetic.
template <class T, class Op, std::size_t Count>
void combine_block(T (&a)[Count], const T (&b)[Count], const Op& op) {
#pragma GCC unroll 16
  for (std::size_t k = 0; k < Count; ++k) a[k] = op(a[k], b[k]);
}

/// `combine` for any callable. Blocks are copied into local arrays of fixed length, so that the compiler
/// needs no proof of aliasing or alignment.
template <class T, class Op>
void combine_elements(T* into, const T* first, const T* second, std::size_t count, const Op& op) {
  std::size_t i = 0;
  if constexpr (std::is_default_constructible_v<T>) {
    constexpr std::size_t block = sizeof(T) >= 16 ? 1 : 16 / sizeof(T);
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

/// `reduce_operands` for any callable and n >= 2.
template <class T, class Op>
void reduce_elements(T* into, const T* const* operands, int n, std::size_t count, const Op& op) {
  // Partial results stay in the innermost cache.
  constexpr std::size_t most_bytes = std::size_t{8} << 10;
  constexpr std::size_t most = sizeof(T) >= most_bytes ? 1 : most_bytes / sizeof(T);
  alignas(T) std::byte room[most * sizeof(T)];
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t length = std::min(most, count - at);
    T* partial = n == 2 ? into + at : reinterpret_cast<T*>(room);
    combine_elements(partial, operands[0] + at, operands[1] + at, length, op);
    for (int k = 2; k < n; ++k)
      combine_elements(k + 1 == n ? into + at : partial, partial, operands[k] + at, length, op);
  }
}

/// into[i] = op(... op(op(x0[i], x1[i]), x2[i]) ...) for the n >= 1 operands x. `into` is apart from them, or
/// one of them.
template <class T, class Op>
void reduce_operands(T* into, const T* const* operands, int n, std::size_t count, const Op& op) {
  if (n == 1) {
    copy_elements(std::span(operands[0], count), std::span(into, count));
  } else if constexpr (is_vector_operation<Op, T>) {
    calculate_elements(into, operands, n, count, fold<stored_as<T>, Op>());
  } else {
    reduce_elements(into, operands, n, count, op);
  }
}

/// into[i] = op(first[i], second[i]). `into` may be either operand.
template <class T, class Op>
void combine(T* into, const T* first, const T* second, std::size_t count, const Op& op) {
  const T* const operands[] = {first, second};
  reduce_operands(into, operands, 2, count, op);
}

/// into[i] = (x0[i] + x1[i] + ...) / divisor, added in float in this order and rounded once.
template <class T>
requires is_16_bit_float<T>
void sum_operands_in_float(T* into, const T* const* operands, int n, std::size_t count, int divisor) {
  calculate_elements(into, operands, n, count, quotient_of_sum<stored_as<T>>(divisor));
}

/// data[i] = data[i] / divisor: the last step of an average. Integers round toward zero.
template <number T>
void divide(T* data, std::size_t count, int divisor) {
  if constexpr (real_number<T>) {
    const T* const operand = data;
    calculate_elements(data, &operand, 1, count, quotient_of_sum<stored_as<T>>(divisor));
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
  const T* const operand = data;
  calculate_elements(data, &operand, 1, count,
                     product<stored_as<T>, stored_as<T>>{static_cast<arithmetic_t<T>>(factor)});
}

}  // namespace ddpp::detail
