// SPDX-License-Identifier: BSL-1.0
// Element types: a number for each that ddpp knows by name, and storage types for floats of 16 and 8 bits.
#pragma once

#include <ddpp/detail/text.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace ddpp {

enum class dtype : std::uint8_t {
  custom,  ///< known by its size alone
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  float8_e4m3,
  float8_e5m2
};

namespace detail {

/// Exact. NaN becomes a quiet one, as conversions of IEEE 754 are to make it.
constexpr float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu;
  std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | mantissa << 13);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal: exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

/// Round to nearest, ties to even; overflow to infinity; NaN stays NaN.
constexpr std::uint16_t float_to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal in half: let a float addition do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

constexpr float bfloat16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t(bits) << 16);
}

constexpr std::uint16_t float_to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A float of a sign, 7 - Mantissa bits of exponent and Mantissa bits. Exact.
template <int Mantissa>
constexpr float float8_to_float(std::uint8_t bits) noexcept {
  constexpr std::uint32_t bias = (1u << (6 - Mantissa)) - 1;
  const std::uint32_t sign = std::uint32_t(bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  const std::uint32_t least_normal = (128 - bias) << 23;
  if (magnitude >> Mantissa == 0) {
    const float unit = std::bit_cast<float>(least_normal - (std::uint32_t{Mantissa} << 23));
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * unit));
  }
  return std::bit_cast<float>(sign | ((magnitude << (23 - Mantissa)) + ((127 - bias) << 23)));
}

/// Round to nearest, ties to even; what is larger than `largest`, infinity too, becomes that. Not for NaN.
template <int Mantissa>
constexpr std::uint8_t float_to_float8(float value, std::uint32_t largest) noexcept {
  constexpr std::uint32_t bias = (1u << (6 - Mantissa)) - 1, least_normal = (128 - bias) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude < least_normal) {  // subnormal there: let a float addition do the rounding
    constexpr std::uint32_t shift = least_normal + (std::uint32_t{23 - Mantissa} << 23);
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(shift);
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - shift));
  }
  const std::uint32_t odd = (magnitude >> (23 - Mantissa)) & 1u;
  const std::uint32_t rounded = magnitude + ((1u << (22 - Mantissa)) - 1) + odd;
  const std::uint32_t narrow = (rounded - ((127 - bias) << 23)) >> (23 - Mantissa);
  return static_cast<std::uint8_t>(sign | (narrow < largest ? narrow : largest));
}

constexpr float float8_e4m3_to_float(std::uint8_t bits) noexcept {
  if ((bits & 0x7fu) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  return float8_to_float<3>(bits);
}
constexpr std::uint8_t float_to_float8_e4m3(float value) noexcept {
  return value != value ? std::uint8_t{0x7f} : float_to_float8<3>(value, 0x7e);
}
constexpr float float8_e5m2_to_float(std::uint8_t bits) noexcept {
  return half_to_float(static_cast<std::uint16_t>(bits << 8));  // of which it is the upper half
}
constexpr std::uint8_t float_to_float8_e5m2(float value) noexcept {
  return value != value ? std::uint8_t{0x7e} : float_to_float8<2>(value, 0x7b);
}

}  // namespace detail

/// IEEE 754 binary16. Storage and conversion; arithmetic goes through float.
struct half {
  std::uint16_t bits = 0;

  half() = default;
  constexpr explicit half(float value) noexcept : bits(detail::float_to_half(value)) {}
  constexpr operator float() const noexcept { return detail::half_to_float(bits); }
};

/// The upper half of a float. Storage and conversion; arithmetic goes through float.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  constexpr explicit bfloat16(float value) noexcept : bits(detail::float_to_bfloat16(value)) {}
  constexpr operator float() const noexcept { return detail::bfloat16_to_float(bits); }
};

/// OCP's 8-bit float of 4 bits of exponent and 3 of mantissa, without infinities. Storage and conversion;
/// what is beyond the largest number, 448, becomes that, as NVIDIA has it. Arithmetic goes through float.
struct float8_e4m3 {
  std::uint8_t bits = 0;

  float8_e4m3() = default;
  constexpr explicit float8_e4m3(float value) noexcept : bits(detail::float_to_float8_e4m3(value)) {}
  constexpr operator float() const noexcept { return detail::float8_e4m3_to_float(bits); }
};

/// The same with 5 and 2 bits. It has infinities, but conversion makes the largest number, 57344, of them.
struct float8_e5m2 {
  std::uint8_t bits = 0;

  float8_e5m2() = default;
  constexpr explicit float8_e5m2(float value) noexcept : bits(detail::float_to_float8_e5m2(value)) {}
  constexpr operator float() const noexcept { return detail::float8_e5m2_to_float(bits); }
};

/// Which dtype T is. Specialise it for a short float of another library that has the same bits.
template <class T>
struct dtype_trait {
  static constexpr dtype value = [] {
    if constexpr (std::is_same_v<T, bool>)
      return dtype::custom;
    else if constexpr (std::is_integral_v<T>) {
      constexpr bool is_signed = std::is_signed_v<T>;
      if constexpr (sizeof(T) == 1)
        return is_signed ? dtype::int8 : dtype::uint8;
      else if constexpr (sizeof(T) == 2)
        return is_signed ? dtype::int16 : dtype::uint16;
      else if constexpr (sizeof(T) == 4)
        return is_signed ? dtype::int32 : dtype::uint32;
      else if constexpr (sizeof(T) == 8)
        return is_signed ? dtype::int64 : dtype::uint64;
      else
        return dtype::custom;
    } else if constexpr (std::is_same_v<T, half>)
      return dtype::float16;
    else if constexpr (std::is_same_v<T, bfloat16>)
      return dtype::bfloat16;
    else if constexpr (std::is_same_v<T, float8_e4m3>)
      return dtype::float8_e4m3;
    else if constexpr (std::is_same_v<T, float8_e5m2>)
      return dtype::float8_e5m2;
    else if constexpr (std::is_same_v<T, float>)
      return dtype::float32;
    else if constexpr (std::is_same_v<T, double>)
      return dtype::float64;
    else
      return dtype::custom;
  }();
};

template <class T>
inline constexpr dtype dtype_of = dtype_trait<std::remove_cv_t<T>>::value;

template <class T>
inline constexpr bool is_16_bit_float = dtype_of<T> == dtype::float16 || dtype_of<T> == dtype::bfloat16;
template <class T>
inline constexpr bool is_8_bit_float = dtype_of<T> == dtype::float8_e4m3 || dtype_of<T> == dtype::float8_e5m2;
/// Those that are summed in float and rounded once where an algorithm allows.
template <class T>
inline constexpr bool is_short_float = is_16_bit_float<T> || is_8_bit_float<T>;

constexpr const char* name_of(dtype type) noexcept {
  constexpr const char* names[] = {"custom",   "int8",   "uint8",  "int16",       "uint16",
                                   "int32",    "uint32", "int64",  "uint64",      "float16",
                                   "bfloat16", "float",  "double", "float8_e4m3", "float8_e5m2"};
  return names[static_cast<std::uint8_t>(type)];
}

namespace detail {

[[gnu::cold]] inline std::string type_name(std::uint8_t type, std::uint16_t element_size) {
  if (type == 0 || type > static_cast<std::uint8_t>(dtype::float8_e5m2)) {
    return text("elements of ", element_size, " bytes");
  }
  return name_of(static_cast<dtype>(type));
}

}  // namespace detail
}  // namespace ddpp
