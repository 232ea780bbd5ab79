// SPDX-License-Identifier: BSL-1.0
// Eigen's matrices, arrays and vectors as buffers and parameters: plain objects of any size, and what refers
// to contiguous elements of one: maps, whole columns of a column-major matrix (rows of a row-major one),
// segments of vectors, and references (Ref). Strided ones (other blocks, a row of a column-major matrix, a
// map with strides) are refused: at compile time where the type says so, by `usage_error` where only its
// values do. Elements are in the order of storage. Eigen's half and bfloat16 have the same bits as ddpp's,
// and ranks may mix them.
#pragma once

#include <ddpp/buffer.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>

#include <Eigen/Core>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

namespace ddpp {
namespace detail {

template <class X>
concept eigen_plain = std::derived_from<X, Eigen::PlainObjectBase<X>>;

/// Views that refer to their elements directly, and whose type does not say that there are gaps between them.
template <class X>
inline constexpr bool is_eigen_view = false;

/// What may be viewed: plain objects, constant ones too, and such views.
template <class X>
concept eigen_dense = eigen_plain<std::remove_const_t<X>> || is_eigen_view<std::remove_const_t<X>>;

template <class Stride>
inline constexpr bool has_unit_inner_stride =
    Stride::InnerStrideAtCompileTime == 0 || Stride::InnerStrideAtCompileTime == 1;

template <class Plain, int Options, class Stride>
inline constexpr bool is_eigen_view<Eigen::Map<Plain, Options, Stride>> =
    has_unit_inner_stride<Stride>&& Stride::OuterStrideAtCompileTime == 0;

// The outer stride is known at run time.
template <class Plain, int Options, class Stride>
inline constexpr bool is_eigen_view<Eigen::Ref<Plain, Options, Stride>> = has_unit_inner_stride<Stride>;

// `Whole`: columns of a column-major matrix or rows of a row-major one, in their full length.
template <eigen_dense X, int Rows, int Columns, bool Whole>
inline constexpr bool is_eigen_view<Eigen::Block<X, Rows, Columns, Whole>> =
    Whole || (Eigen::Block<X, Rows, Columns, Whole>::IsVectorAtCompileTime &&
              Eigen::Block<X, Rows, Columns, Whole>::InnerStrideAtCompileTime == 1);

template <eigen_dense X, int Size>
inline constexpr bool is_eigen_view<Eigen::VectorBlock<X, Size>> = true;

/// Such a Ref holds a copy of its own where it was given something with another layout.
template <class X>
inline constexpr bool may_own_a_copy = false;
template <class Plain, int Options, class Stride>
inline constexpr bool may_own_a_copy<Eigen::Ref<const Plain, Options, Stride>> = true;

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
  static constexpr bool borrowed = !detail::may_own_a_copy<X>;
  static auto span(const X& x) {
    detail::require_contiguous(x);
    auto* const data = const_cast<X&>(x).data();
    return std::span(data, static_cast<std::size_t>(x.size()));
  }
};

}  // namespace ddpp
