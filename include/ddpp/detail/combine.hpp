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
  std::size_t in_blocks = 0;
  if constexpr (std::is_default_constructible_v<T>) {
    constexpr std::size_t block = sizeof(T) >= 16 ? 1 : 16 / sizeof(T);
    in_blocks = count - count % block;
    for (std::size_t i = 0; i < in_blocks; i += block) {
      T a[block], b[block];
      std::memcpy(a, first + i, sizeof a);
      std::memcpy(b, second + i, sizeof b);
      combine_block(a, b, op);
      std::memcpy(static_cast<void*>(into + i), a, sizeof a);
    }
  }
  for (std::size_t i = in_blocks; i < count; ++i) into[i] = op(first[i], second[i]);
}

/// Calls pass(to, some operands, their number, count, whether they are the last ones) with up to `Most`
/// operands, so that what the first ones make is the first operand of the next call. More arrays than a few
/// at a time are more than processors fetch ahead from. Partial results stay in the inner caches.
template <int Most, class T, class Pass>
void reduce_in_passes(T* into, const T* const* operands, int n, std::size_t count, Pass pass) {
  if (n <= Most) return pass(into, operands, n, count, true);
  constexpr std::size_t most_bytes = std::size_t{16} << 10;
  constexpr std::size_t most = sizeof(T) >= most_bytes ? 1 : most_bytes / sizeof(T);
  alignas(T) std::byte room[most * sizeof(T)];  // T need not be default constructible
  T* const partial = reinterpret_cast<T*>(room);
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t length = std::min(most, count - at);
    for (int k = 0; k < n;) {
      const T* some[Most] = {};
      int taken = 0;
      if (k > 0) some[taken++] = partial;
      while (taken < Most && k < n) some[taken++] = operands[k++] + at;
      pass(k == n ? into + at : partial, some, taken, length, k == n);
    }
  }
}

inline constexpr int most_operands_at_once = 8;

/// into[i] = op(... op(op(x0[i], x1[i]), x2[i]) ...) for the n >= 1 operands x. `into` is apart from them, or
/// one of them.
template <class T, class Op>
void reduce_operands(T* into, const T* const* operands, int n, std::size_t count, const Op& op) {
  if (n == 1) {
    copy_elements(std::span(operands[0], count), std::span(into, count));
  } else if constexpr (is_vector_operation<Op, T>) {
    reduce_in_passes<most_operands_at_once>(
        into, operands, n, count, [](T* to, const T* const* some, int taken, std::size_t length, bool) {
          calculate_elements(to, some, taken, length, fold<operand_t<T, Op>, Op>());
        });
  } else {
    reduce_in_passes<2>(into, operands, n, count,
                        [&op](T* to, const T* const* some, int, std::size_t length, bool) {
                          combine_elements(to, some[0], some[1], length, op);
                        });
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
requires is_short_float<T>
void sum_operands_in_float(T* into, const T* const* operands, int n, std::size_t count, int divisor) {
  calculate_elements(into, operands, n, count, quotient_of_sum<operand_t<T, sum_t>>(divisor));
}

/// data[i] = data[i] / divisor: the last step of an average. Integers round toward zero.
template <number T>
void divide(T* data, std::size_t count, int divisor) {
  if constexpr (real_number<T>) {
    const T* const operand = data;
    calculate_elements(data, &operand, 1, count, quotient_of_sum<operand_t<T, sum_t>>(divisor));
  } else {
    // In 64 bits: the number of ranks need not fit into T.
    using wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    for (std::size_t i = 0; i < count; ++i) {
      const auto quotient =
          static_cast<T>(static_cast<wide>(element<T>(data, i)) / static_cast<wide>(divisor));
      std::memcpy(data + i, &quotient, sizeof quotient);
    }
  }
}

/// into[i] = (x0[i] + x1[i] + ...) / divisor: an average, in one pass where numbers are real, of which those
/// of 16 bits are added in float and rounded once. Integers round toward zero.
template <number T>
void sum_and_divide(T* into, const T* const* operands, int n, std::size_t count, int divisor) {
  if constexpr (is_short_float<T>) {
    sum_operands_in_float(into, operands, n, count, divisor);
  } else if constexpr (real_number<T>) {
    reduce_in_passes<most_operands_at_once>(
        into, operands, n, count,
        [divisor](T* to, const T* const* some, int taken, std::size_t length, bool last) {
          calculate_elements(to, some, taken, length, quotient_of_sum<T>(last ? divisor : 1));
        });
  } else {
    reduce_operands(into, operands, n, count, sum);
    if (divisor != 1) divide(into, count, divisor);
  }
}

/// Makes into[0] with make(into[0]), and copies it to the other places.
template <class T, class Make>
void make_copies(T* const* into, int copies, std::size_t count, Make make) {
  make(into[0]);
  for (int c = 1; c < copies; ++c)
    copy_elements(std::span<const T>(into[0], count), std::span(into[c], count));
}

/// reduce_operands, sum_and_divide: the result goes to several places, of which each may be one of the
/// operands.
template <class T, class Op>
void reduce_operands_into_all(T* const* into, int copies, const T* const* operands, int n, std::size_t count,
                              const Op& op) {
  if constexpr (is_vector_operation<Op, T>) {
    if (n > 1 && n <= most_operands_at_once)
      return calculate_copies(into, copies, operands, n, count, fold<operand_t<T, Op>, Op>());
  }
  make_copies(into, copies, count, [&](T* first) { reduce_operands(first, operands, n, count, op); });
}
template <number T>
void sum_and_divide_into_all(T* const* into, int copies, const T* const* operands, int n, std::size_t count,
                             int divisor) {
  if constexpr (real_number<T>) {
    if (n <= most_operands_at_once) {
      return calculate_copies(into, copies, operands, n, count,
                              quotient_of_sum<operand_t<T, sum_t>>(divisor));
    }
  }
  make_copies(into, copies, count, [&](T* first) { sum_and_divide(first, operands, n, count, divisor); });
}

/// to[i] = from[i] * factor, in one array or two that do not overlap.
template <number T, class X>
void multiply_into(T* to, const T* from, std::size_t count, X factor) {
  using E = operand_t<T, prod_t>;
  calculate_elements(to, &from, 1, count,
                     product<E, E>{static_cast<arithmetic_t<E>>(static_cast<arithmetic_t<T>>(factor))});
}

/// data[i] = data[i] * factor: the first step of a pre-multiplied sum.
template <number T, class X>
void multiply(T* data, std::size_t count, X factor) {
  multiply_into(data, data, count, factor);
}

}  // namespace ddpp::detail
