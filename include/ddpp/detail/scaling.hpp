// SPDX-License-Identifier: BSL-1.0
// Copies, scales and converts gradients, in blocks that compilers turn into vector instructions at -O2.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

namespace ddpp::detail {

/// What arithmetic on T is done in.
template <class T>
using arithmetic_t = std::conditional_t<is_16_bit_float<T>, float, T>;

/// to[i] = T(f(from[i])), in two arrays that do not overlap.
template <class To, class From, class F>
void transform_into(To* __restrict to, const From* __restrict from, std::size_t count, F f) {
  constexpr std::size_t block = 16;
  std::size_t i = 0;
  for (; i + block <= count; i += block) {
    for (std::size_t j = 0; j < block; ++j) to[i + j] = To(f(from[i + j]));
  }
  for (; i < count; ++i) to[i] = To(f(from[i]));
}

template <class T>
void scale(std::span<T> values, double factor) {
  if (factor == 1.0) return;
  using number = arithmetic_t<T>;
  const auto by = static_cast<number>(factor);
  constexpr std::size_t block = 16;
  T* const data = values.data();
  std::size_t i = 0;
  for (; i + block <= values.size(); i += block) {
    for (std::size_t j = 0; j < block; ++j) data[i + j] = T(static_cast<number>(data[i + j]) * by);
  }
  for (; i < values.size(); ++i) data[i] = T(static_cast<number>(data[i]) * by);
}

template <class T>
void copy_scaled(T* to, const T* from, std::size_t count, double factor) {
  if (factor == 1.0) {
    copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), count * sizeof(T));
    return;
  }
  using number = arithmetic_t<T>;
  const auto by = static_cast<number>(factor);
  transform_into(to, from, count, [by](T value) { return static_cast<number>(value) * by; });
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
