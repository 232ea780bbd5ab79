// SPDX-License-Identifier: BSL-1.0
// Element loops on vectors, of the widest kind that the processor has. All kinds give the same bits, those of
// the scalar code here (of two NaNs, either one may be the result of a sum or a product: compilers swap
// operands). Addresses need no alignment. Where the result goes may be an operand, or apart from them.
#pragma once

#include <ddpp/detail/instruction_set.hpp>
#include <ddpp/detail/vector.hpp>
#include <ddpp/op.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace ddpp::detail {

/// What arithmetic on T is done in.
template <class T>
using arithmetic_t = std::conditional_t<is_short_float<T>, float, T>;

template <class Op, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<Op, Others> || ...);

/// What the bits of a T are for an operation: short floats of other libraries are the same as ours, and
/// integers wrap around, which only unsigned ones may.
template <class T, class Op>
constexpr auto operand_type() {
  if constexpr (dtype_of<T> == dtype::float16)
    return std::type_identity<half>();
  else if constexpr (dtype_of<T> == dtype::bfloat16)
    return std::type_identity<bfloat16>();
  else if constexpr (dtype_of<T> == dtype::float8_e4m3)
    return std::type_identity<float8_e4m3>();
  else if constexpr (dtype_of<T> == dtype::float8_e5m2)
    return std::type_identity<float8_e5m2>();
  else if constexpr (std::is_integral_v<T> && !is_one_of<Op, min_t, max_t>)
    return std::make_unsigned<T>();
  else
    return std::type_identity<T>();
}
template <class T, class Op>
using operand_t = typename decltype(operand_type<T, Op>())::type;

/// Whether the loops know the operation and the type.
template <class Op, class T>
inline constexpr bool is_vector_operation = dtype_of<T> != dtype::custom &&
                                            (is_one_of<Op, sum_t, prod_t, min_t, max_t> ||
                                             (std::is_integral_v<T> && is_one_of<Op, band_t, bor_t, bxor_t>));

template <class E, class T>
E element(const T* from, std::size_t i) {
  E e;
  std::memcpy(static_cast<void*>(&e), from + i, sizeof e);
  return e;
}

// What is to be calculated of n >= 1 operands: `scalar` does it for one element; for vectors `operation`
// joins them, then comes `finish`.

/// op(... op(op(x0, x1), x2) ...), rounded to E at each step.
template <class E, class Op>
struct fold {
  using from = E;
  using to = E;
  using operation = Op;
  static constexpr bool rounds_each_step = true;

  template <class T>
  E scalar(const T* const* operands, int n, std::size_t i) const {
    E a = element<E>(operands[0], i);
    for (int k = 1; k < n; ++k) a = Op()(a, element<E>(operands[k], i));
    return a;
  }
  template <class V>
  [[gnu::always_inline]] void finish(V&) const {}
};

/// (x0 + x1 + ...) / divisor; 16-bit floats are added as floats, and rounded once.
template <class E>
struct quotient_of_sum {
  using from = E;
  using to = E;
  using operation = sum_t;
  using number = arithmetic_t<E>;
  static constexpr bool rounds_each_step = false;

  number divisor, reciprocal;  ///< the latter is 0 where it would be rounded

  explicit quotient_of_sum(int by)
      : divisor(static_cast<number>(by)), reciprocal((by & (by - 1)) == 0 ? 1 / divisor : 0) {}

  template <class T>
  E scalar(const T* const* operands, int n, std::size_t i) const {
    auto a = static_cast<number>(element<E>(operands[0], i));
    for (int k = 1; k < n; ++k) a += static_cast<number>(element<E>(operands[k], i));
    return E(a / divisor);
  }
  template <class V>
  [[gnu::always_inline]] void finish(V& a) const {
    a = reciprocal != 0 ? a * reciprocal : a / divisor;
  }
};

/// x0 * factor, where n is 1.
template <class From, class To>
struct product {
  using from = From;
  using to = To;
  using operation = void;
  using number = arithmetic_t<From>;

  number factor;

  template <class T>
  To scalar(const T* const* operands, int, std::size_t i) const {
    return To(prod_t()(static_cast<number>(element<From>(operands[0], i)), factor));
  }
  template <class V>
  [[gnu::always_inline]] void finish(V& a) const {
    a *= factor;
  }
};

/// x0, where n is 1.
template <class From, class To>
struct conversion {
  using from = From;
  using to = To;
  using operation = void;

  template <class T>
  To scalar(const T* const* operands, int, std::size_t i) const {
    return To(static_cast<arithmetic_t<From>>(element<From>(operands[0], i)));
  }
  template <class V>
  [[gnu::always_inline]] void finish(V&) const {}
};

#if defined(__x86_64__)

template <class V>
using lane_of = std::remove_cvref_t<decltype(std::declval<V>()[0])>;

namespace sse2 {
inline constexpr std::size_t register_bytes = 16;
#define DDPP_TARGET
#define DDPP_INLINE [[gnu::always_inline]] inline

DDPP_INLINE vector<std::uint32_t, 4> widen_words(vector<std::uint16_t, 4> words) {
  return __builtin_convertvector(words, vector<std::uint32_t, 4>);
}

/// As half_to_float.
DDPP_INLINE vector<float, 4> widen_half(vector<std::uint16_t, 4> halves) {
  using bits = vector<std::uint32_t, 4>;
  using floats = vector<float, 4>;
  using mask = vector<std::int32_t, 4>;
  const bits x = __builtin_convertvector(halves, bits), sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
  const bits shifted = magnitude << 13, normal = shifted + 0x38000000u;
  const bits subnormal = (bits)((floats)(shifted + 0x38800000u) - 0x1p-14f);
  const bits special = shifted + 0x70000000u;
  const mask m = (mask)magnitude;
  return (floats)(sign | (m < 0x400     ? subnormal
                          : m < 0x7c00  ? normal
                          : m == 0x7c00 ? special
                                        : special | 0x400000u));
}

/// As float_to_half.
DDPP_INLINE vector<std::uint16_t, 4> narrow_to_half(vector<float, 4> v) {
  using bits = vector<std::uint32_t, 4>;
  using floats = vector<float, 4>;
  using mask = vector<std::int32_t, 4>;
  const bits x = (bits)v, magnitude = x & 0x7fffffffu, sign = (x >> 16) & 0x8000u;
  const bits normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const bits subnormal = (bits)((floats)magnitude + 0.5f) - 0x3f000000u;
  const bits nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  const mask m = (mask)magnitude;
  const bits result = m < 0x38800000    ? subnormal
                      : m < 0x47800000  ? normal
                      : m <= 0x7f800000 ? bits{} + 0x7c00u
                                        : nan;
  return __builtin_convertvector(sign | result, vector<std::uint16_t, 4>);
}

#include <ddpp/detail/vector_loops.inc>
#undef DDPP_TARGET
#undef DDPP_INLINE
}  // namespace sse2

namespace avx2 {
inline constexpr std::size_t register_bytes = 32;
#define DDPP_TARGET [[gnu::target("avx2,f16c")]]
#define DDPP_INLINE [[gnu::always_inline, gnu::target("avx2,f16c")]] inline

DDPP_INLINE vector<std::uint32_t, 8> widen_words(vector<std::uint16_t, 8> words) {
#if defined(__clang__)
  return __builtin_convertvector(words, vector<std::uint32_t, 8>);
#else  // which makes it three instructions
  return (vector<std::uint32_t, 8>)__builtin_ia32_pmovzxwd256((vector<short, 8>)words);
#endif
}

DDPP_INLINE vector<float, 8> widen_half(vector<std::uint16_t, 8> halves) {
  vector<float, 8> floats = __builtin_ia32_vcvtph2ps256((vector<short, 8>)halves);
  // Or clang compares halves instead, for which there is no instruction, one by one.
  asm("" : "+x"(floats));
  return floats;
}

DDPP_INLINE vector<std::uint16_t, 8> narrow_to_half(vector<float, 8> v) {
  return (vector<std::uint16_t, 8>)__builtin_ia32_vcvtps2ph256(v, 0);  // to nearest, ties to even
}

#include <ddpp/detail/vector_loops.inc>
#undef DDPP_TARGET
#undef DDPP_INLINE
}  // namespace avx2

#endif

/// into[c][i] = what `how` makes of element i of the n >= 1 operands, for all c, with at most the
/// instructions of `limit`. Any `into` may be one of the operands.
template <class How, class To, class T>
void calculate_elements_with(instruction_set limit, To* const* into, int copies, const T* const* operands,
                             int n, std::size_t count, const How& how) {
  using from = typename How::from;
  using to = typename How::to;
  static_assert(sizeof(T) == sizeof(from) && sizeof(To) == sizeof(to));
#if defined(__x86_64__)
  if constexpr (dtype_of<from> != dtype::custom && !is_8_bit_float<from> && !is_8_bit_float<to>) {
    if (limit >= instruction_set::avx2 && count >= avx2::width_of<How>)
      return avx2::calculate_all(into, copies, operands, n, count, how);
    if (limit >= instruction_set::sse2 && count >= sse2::width_of<How>)
      return sse2::calculate_all(into, copies, operands, n, count, how);
  }
#else
  static_cast<void>(limit);
#endif
  for (std::size_t i = 0; i < count; ++i) {
    const to result = how.scalar(operands, n, i);
    for (int c = 0; c < copies; ++c) std::memcpy(static_cast<void*>(into[c] + i), &result, sizeof result);
  }
}

template <class How, class To, class T>
void calculate_elements_with(instruction_set limit, To* into, const T* const* operands, int n,
                             std::size_t count, const How& how) {
  calculate_elements_with(limit, &into, 1, operands, n, count, how);
}
template <class How, class To, class T>
void calculate_elements(To* into, const T* const* operands, int n, std::size_t count, const How& how) {
  calculate_elements_with(best_instruction_set(), &into, 1, operands, n, count, how);
}
template <class How, class To, class T>
void calculate_copies(To* const* into, int copies, const T* const* operands, int n, std::size_t count,
                      const How& how) {
  calculate_elements_with(best_instruction_set(), into, copies, operands, n, count, how);
}

}  // namespace ddpp::detail
