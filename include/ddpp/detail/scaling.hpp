// SPDX-License-Identifier: BSL-1.0
// Copies, scales and converts gradients.
#pragma once

#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/vector_loops.hpp>
#include <ddpp/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

namespace ddpp::detail {

/// values[i] = values[i] * factor
template <class T>
void scale(std::span<T> values, double factor) {
  if (factor == 1.0) return;
  multiply(values.data(), values.size(), factor);
}

/// to[i] = from[i] * factor, in two arrays that do not overlap.
template <class T>
void copy_scaled(T* to, const T* from, std::size_t count, double factor) {
  if (factor == 1.0) {
    copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), count * sizeof(T));
    return;
  }
  multiply_into(to, from, count, factor);
}

/// Doubles on their way to 16 bits and back are floats in between, so many that they stay in the innermost
/// cache.
inline constexpr std::size_t converted_at_once = 512;

/// to[i] = Narrow(from[i] * factor): float and double to 16 bits.
template <class Narrow, class T>
void narrow_scaled(Narrow* to, const T* from, std::size_t count, T factor) {
  if constexpr (std::is_same_v<T, float>) {
    calculate_elements(to, &from, 1, count, product<float, operand_t<Narrow, prod_t>>{factor});
  } else {
    float block[converted_at_once];
    const float* const operand = block;
    for (std::size_t at = 0; at < count; at += converted_at_once) {
      const std::size_t length = std::min(converted_at_once, count - at);
      for (std::size_t i = 0; i < length; ++i) block[i] = static_cast<float>(from[at + i] * factor);
      calculate_elements(to + at, &operand, 1, length, conversion<float, operand_t<Narrow, prod_t>>());
    }
  }
}

/// to[i] = from[i]: 16 bits to float and double.
template <class T, class Narrow>
void widen(T* to, const Narrow* from, std::size_t count) {
  if constexpr (std::is_same_v<T, float>) {
    calculate_elements(to, &from, 1, count, conversion<operand_t<Narrow, prod_t>, float>());
  } else {
    float block[converted_at_once];
    for (std::size_t at = 0; at < count; at += converted_at_once) {
      const std::size_t length = std::min(converted_at_once, count - at);
      widen(block, from + at, length);
      for (std::size_t i = 0; i < length; ++i) to[at + i] = static_cast<T>(block[i]);
    }
  }
}

/// f(std::type_identity<T>{}) for the type of a gradient.
template <class F>
decltype(auto) visit_gradient_type(dtype type, F&& f) {
  switch (type) {
    case dtype::float16:
      return f(std::type_identity<half>{});
    case dtype::bfloat16:
      return f(std::type_identity<bfloat16>{});
    case dtype::float64:
      return f(std::type_identity<double>{});
    default:
      return f(std::type_identity<float>{});
  }
}

}  // namespace ddpp::detail
