// SPDX-License-Identifier: BSL-1.0
// Reductions: the named ones of NCCL, c10d and MPI, and any callable T(T, T) that is associative and
// commutative.
#pragma once

#include <ddpp/dtype.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

/// FNV-1a, for names that travel in fingerprints. Never 0.
constexpr std::uint32_t hash_of_name(std::string_view name) noexcept {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash == 0 ? 1 : hash;
}

[[gnu::cold]] inline std::string hex(std::uint32_t value) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(value >> shift) & 15u];
  return text;
}

template <class T>
concept real_number = std::floating_point<T> || is_short_float<T>;

template <class T>
concept number = real_number<T> ||(std::integral<T> && !std::same_as<T, bool>);

/// Applies a binary function of wider numbers to T: short floats by way of float, integers modulo 2^n.
template <class T, class F>
constexpr T calculate(T a, T b, F f) noexcept {
  if constexpr (is_short_float<T>) {
    return T(f(static_cast<float>(a), static_cast<float>(b)));
  } else if constexpr (std::integral<T>) {
    using wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<wide>(a), static_cast<wide>(b)));
  } else {
    return f(a, b);
  }
}

/// The greater (or lesser) of two; NaN if one is NaN; of two zeros +0 is the greater, as IEEE 754's maximum.
template <bool Greater, class T>
constexpr T extreme(T a, T b) noexcept {
  if constexpr (is_short_float<T>) {
    return T(extreme<Greater>(static_cast<float>(a), static_cast<float>(b)));
  } else if constexpr (std::floating_point<T>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) {
      using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
      if constexpr (sizeof(T) == sizeof(bits)) {
        const auto x = std::bit_cast<bits>(a), y = std::bit_cast<bits>(b);
        return std::bit_cast<T>(Greater ? (x & y) : (x | y));
      }
    }
    return (Greater ? a > b : a < b) ? a : b;
  } else {
    return (Greater ? b < a : a < b) ? a : b;
  }
}

enum class reduction : std::uint32_t { none, sum, avg, prod, min, max, band, bor, bxor, premul_sum, custom };

}  // namespace detail

struct sum_t {
  static constexpr auto id = detail::reduction::sum;
  template <class T>
  requires detail::number<T> || requires(T a, T b) {
    { a + b } -> std::convertible_to<T>;
  }
  constexpr T operator()(T a, T b) const {
    if constexpr (detail::number<T>)
      return detail::calculate(a, b, [](auto x, auto y) { return x + y; });
    else
      return a + b;
  }
};

struct prod_t {
  static constexpr auto id = detail::reduction::prod;
  template <class T>
  requires detail::number<T> || requires(T a, T b) {
    { a* b } -> std::convertible_to<T>;
  }
  constexpr T operator()(T a, T b) const {
    if constexpr (detail::number<T>)
      return detail::calculate(a, b, [](auto x, auto y) { return x * y; });
    else
      return a * b;
  }
};

/// NaN wins, whichever rank has it; -0 is less than +0.
struct min_t {
  static constexpr auto id = detail::reduction::min;
  template <detail::number T>
  constexpr T operator()(T a, T b) const noexcept {
    return detail::extreme<false>(a, b);
  }
};

/// NaN wins, whichever rank has it; +0 is greater than -0.
struct max_t {
  static constexpr auto id = detail::reduction::max;
  template <detail::number T>
  constexpr T operator()(T a, T b) const noexcept {
    return detail::extreme<true>(a, b);
  }
};

struct band_t {
  static constexpr auto id = detail::reduction::band;
  template <std::integral T>
  constexpr T operator()(T a, T b) const noexcept {
    return static_cast<T>(a & b);
  }
};

struct bor_t {
  static constexpr auto id = detail::reduction::bor;
  template <std::integral T>
  constexpr T operator()(T a, T b) const noexcept {
    return static_cast<T>(a | b);
  }
};

struct bxor_t {
  static constexpr auto id = detail::reduction::bxor;
  template <std::integral T>
  constexpr T operator()(T a, T b) const noexcept {
    return static_cast<T>(a ^ b);
  }
};

/// The sum divided by the number of ranks, once, at the end. Integers round toward zero.
struct avg_t {
  static constexpr auto id = detail::reduction::avg;
};

/// Each rank's contribution times its factor, then the sum. Factors may differ from rank to rank. Integers
/// are multiplied by integers only, modulo 2^n as they are added.
template <class X>
struct premul_sum_t {
  static constexpr auto id = detail::reduction::premul_sum;
  X factor{};
};

inline constexpr sum_t sum{};
inline constexpr avg_t avg{};
inline constexpr prod_t prod{};
inline constexpr min_t min{};
inline constexpr max_t max{};
inline constexpr band_t band{};
inline constexpr bor_t bor{};
inline constexpr bxor_t bxor{};
template <class X>
constexpr premul_sum_t<X> premul_sum(X factor) {
  return {factor};
}

/// T(T, T), for any trivially copyable T. It must be associative and commutative; the operand from the lower
/// rank comes first. All that an algorithm ever sees.
template <class Op, class T>
concept binary_operation = std::copy_constructible<Op> && std::is_trivially_copyable_v<T> &&
    requires(const Op& op, const T& a, const T& b) {
  { op(a, b) } -> std::convertible_to<T>;
};

namespace detail {

template <class Op>
inline constexpr bool is_premul_sum = false;
template <class X>
inline constexpr bool is_premul_sum<premul_sum_t<X>> = true;

/// A factor that would be rounded to an integer, 0.5 to 0, is refused.
template <class Op, class T>
inline constexpr bool can_scale = std::same_as<Op, avg_t>;
template <class X, class T>
inline constexpr bool can_scale<premul_sum_t<X>, T> = real_number<T> || std::integral<X>;

template <class Op, class T>
concept scaled_sum = number<T> && can_scale<Op, T>;

/// What stands for the operation in fingerprints: custom ones by their member `name`, if they have it.
template <class Op>
constexpr std::uint32_t reduction_code() {
  if constexpr (requires {
                  { Op::id } -> std::convertible_to<reduction>;
                })
    return static_cast<std::uint32_t>(Op::id);
  else if constexpr (requires { std::string_view(Op::name); })
    return hash_of_name(Op::name) | 0x80000000u;
  else
    return static_cast<std::uint32_t>(reduction::custom);
}

[[gnu::cold]] inline std::string reduction_name(std::uint32_t code) {
  constexpr const char* names[] = {
      "none", "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum", "custom operation"};
  if (code < std::size(names)) return names[code];
  return text("custom operation ", hex(code));
}

}  // namespace detail

/// What may be passed as a reduction of elements T.
template <class Op, class T>
concept reduction_op = binary_operation<Op, T> || detail::scaled_sum<Op, T>;

}  // namespace ddpp
