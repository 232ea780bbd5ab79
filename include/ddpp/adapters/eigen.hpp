// SPDX-License-Identifier: BSL-1.0
// Eigen's matrices, arrays and vectors as buffers: plain objects, and maps and references whose elements are
// contiguous. Strided ones (a block, a row of a column-major matrix, a map with strides) are refused: at
// compile time where the type says so, by `usage_error` where only its values do. Elements are in the order
// of storage. Eigen's half and bfloat16 have the same bits as ddpp's, and ranks may mix them.
#pragma once

#include <ddpp/buffer.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>

#include <Eigen/Core>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

template <class X>
concept eigen_plain = std::derived_from<X, Eigen::PlainObjectBase<X>>;

/// Views that refer to their elements directly, and whose type does not say that they are strided: a map (of
/// a plain type, without strides), or a Ref (whose inner stride is 1 by default, the outer one known at run
/// time).
template <class X>
inline constexpr bool is_eigen_view = false;
template <class Plain, int Options>
inline constexpr bool is_eigen_view<Eigen::Map<Plain, Options, Eigen::Stride<0, 0>>> = true;
template <class Plain, int Options, int Outer, int Inner>
inline constexpr bool is_eigen_view<Eigen::Ref<Plain, Options, Eigen::Stride<Outer, Inner>>> =
    Inner == 0 || Inner == 1;
template <class Plain, int Options, int Outer>
inline constexpr bool is_eigen_view<Eigen::Ref<Plain, Options, Eigen::OuterStride<Outer>>> = true;
template <class Plain, int Options>
inline constexpr bool is_eigen_view<Eigen::Ref<Plain, Options, Eigen::InnerStride<1>>> = true;

template <class X>
void require_contiguous(const X& view) {
  const bool contiguous = view.innerSize() <= 1 || view.innerStride() == 1;
  const bool adjacent = view.outerSize() <= 1 || view.outerStride() == view.innerSize();
  if (!contiguous || !adjacent) {
    throw usage_error(
        "an Eigen expression with gaps between its elements is not a buffer: copy it to a matrix first");
  }
}

}  // namespace detail

template <>
struct dtype_trait<Eigen::half> {
  static constexpr dtype value = dtype::float16;
};
template <>
struct dtype_trait<Eigen::bfloat16> {
  static constexpr dtype value = dtype::bfloat16;
};

template <detail::eigen_plain X>
struct buffer_traits<X> {
  using scalar = typename X::Scalar;
  static std::span<scalar> span(X& x) { return {x.data(), static_cast<std::size_t>(x.size())}; }
  static std::span<const scalar> span(const X& x) { return {x.data(), static_cast<std::size_t>(x.size())}; }
};

template <class X>
requires detail::is_eigen_view<X>
struct buffer_traits<X> {
  // A Ref to const elements may hold a copy of its own.
  static constexpr bool borrowed =
      !std::is_const_v<std::remove_pointer_t<decltype(std::declval<X&>().data())>>;
  static auto span(const X& x) {
    detail::require_contiguous(x);
    auto* const data = const_cast<X&>(x).data();
    return std::span(data, static_cast<std::size_t>(x.size()));
  }
};

}  // namespace ddpp
