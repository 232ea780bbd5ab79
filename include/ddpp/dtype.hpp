// SPDX-License-Identifier: BSL-1.0
// Element types: a number for each that ddpp knows by name, and storage types for the two 16-bit floats.
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
  float64
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

/// Which dtype T is. Specialise it for a 16-bit float of another library that has the same bits.
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

/// 16-bit floats are summed in float and rounded once where an algorithm allows.
template <class T>
inline constexpr bool is_16_bit_float = dtype_of<T> == dtype::float16 || dtype_of<T> == dtype::bfloat16;

constexpr const char* name_of(dtype type) noexcept {
  constexpr const char* names[] = {"custom", "int8",   "uint8",   "int16",    "uint16", "int32", "uint32",
                                   "int64",  "uint64", "float16", "bfloat16", "float",  "double"};
  return names[static_cast<std::uint8_t>(type)];
}

namespace detail {

[[gnu::cold]] inline std::string type_name(std::uint8_t type, std::uint16_t element_size) {
  if (type == 0 || type > static_cast<std::uint8_t>(dtype::float64)) {
    return text("elements of ", element_size, " bytes");
  }
  return name_of(static_cast<dtype>(type));
}

}  // namespace detail
}  // namespace ddpp
