// SPDX-License-Identifier: BSL-1.0
// What can be sent, received and reduced: contiguous elements of a trivially copyable type.
#pragma once

#include <ddpp/dtype.hpp>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace ddpp {

/// Specialise it for a tensor of your own:
///     template <> struct ddpp::buffer_traits<my_tensor> {
///       static std::span<float> span(my_tensor& t) { return {t.values(), t.count()}; }
///     };
/// `span` may throw `usage_error` when the tensor turns out not to be contiguous. Add an overload for
/// `const my_tensor&` that returns a span of const elements if constant tensors are to be sent, and
/// `static constexpr bool borrowed = true` if a copy of the tensor refers to the same elements.
template <class X>
struct buffer_traits {};

namespace detail {

template <class B>
concept has_buffer_traits = requires(B& b) {
  std::span(buffer_traits<std::remove_cv_t<B>>::span(b));
};

// std::span's deduction guides accept exactly the contiguous sized ranges and arrays: a strided view, which
// also has data() and size(), is not among them.
template <class B>
concept contiguous = requires(B& b) {
  std::span(b);
};

}  // namespace detail

/// The elements of a buffer. Throws what its buffer_traits throws.
template <class B>
requires detail::has_buffer_traits<std::remove_reference_t<B>> ||
    detail::contiguous<std::remove_reference_t<B>>
constexpr auto as_span(B&& b) {
  using X = std::remove_reference_t<B>;
  if constexpr (detail::has_buffer_traits<X>) {
    const std::span elements(buffer_traits<std::remove_cv_t<X>>::span(b));
    return std::span<typename decltype(elements)::element_type>(elements);
  } else {
    const std::span elements(b);
    return std::span<typename decltype(elements)::element_type>(elements);
  }
}

/// The type of a buffer's elements, without const.
template <class B>
using element_t = typename decltype(as_span(std::declval<B>()))::value_type;

/// Contiguous elements that can be copied byte by byte.
template <class B>
concept buffer = requires(B&& b) {
  as_span(b);
}
&&std::is_trivially_copyable_v<element_t<B>>;

/// A buffer that can be written to.
template <class B>
concept mutable_buffer =
    buffer<B> && !std::is_const_v<typename decltype(as_span(std::declval<B>()))::element_type>;

namespace detail {

template <class X>
inline constexpr bool is_borrowed = requires {
  requires buffer_traits<X>::borrowed;
};
template <class T, std::size_t N>
inline constexpr bool is_borrowed<std::span<T, N>> = true;

/// An asynchronous operation may keep a span of B: the elements outlive the expression.
template <class B>
inline constexpr bool outlives_the_call =
    std::is_lvalue_reference_v<B> || is_borrowed<std::remove_cvref_t<B>>;

}  // namespace detail
}  // namespace ddpp
