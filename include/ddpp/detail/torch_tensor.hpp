// SPDX-License-Identifier: BSL-1.0
// What a transport must know of a torch::Tensor: the type of its elements, and where they lie without gaps in
// the memory that it moves.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>

#include <ATen/core/Tensor.h>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <torch/version.h>
#include <type_traits>

namespace ddpp {
namespace detail {

/// f(std::type_identity<T>{}) for the type that ddpp has for a tensor's elements. Throws `usage_error` where
/// it has none.
template <class F>
decltype(auto) visit_scalar_type(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kByte:
      return f(std::type_identity<std::uint8_t>{});
    case at::kChar:
      return f(std::type_identity<std::int8_t>{});
    case at::kShort:
      return f(std::type_identity<std::int16_t>{});
    case at::kInt:
      return f(std::type_identity<std::int32_t>{});
    case at::kLong:
      return f(std::type_identity<std::int64_t>{});
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 203
    case at::kUInt16:
      return f(std::type_identity<std::uint16_t>{});
    case at::kUInt32:
      return f(std::type_identity<std::uint32_t>{});
    case at::kUInt64:
      return f(std::type_identity<std::uint64_t>{});
#endif
    case at::kHalf:
      return f(std::type_identity<half>{});
    case at::kBFloat16:
      return f(std::type_identity<bfloat16>{});
    case at::kFloat:
      return f(std::type_identity<float>{});
    case at::kDouble:
      return f(std::type_identity<double>{});
    default:
      throw usage_error(text("ddpp moves no tensors of ", at::toString(type),
                             ": view it as another type (complex ones with view_as_real), or convert it"));
  }
}

/// Why the elements are no plain memory of the kind asked for; empty if they are. In whatever order of
/// dimensions.
[[gnu::cold]] inline std::string objection_to_memory(const at::Tensor& tensor, memory_space where) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided) return "is not dense: a transport moves plain memory";
  if (where == memory_space::host && !tensor.device().is_cpu()) {
    return text("is on ", tensor.device().str(),
                ", and this transport moves the host's memory: copy it there with cpu() first");
  }
  if (where == memory_space::device && !tensor.device().is_cuda()) {
    return text(
        "is on ", tensor.device().str(),
        ", and this transport moves a CUDA device's memory: move it there with to(torch::kCUDA) first");
  }
  if (tensor.is_conj() || tensor.is_neg())
    return "is a lazily conjugated or negated view: resolve_conj() or resolve_neg() makes a plain one";
  if (!tensor.is_non_overlapping_and_dense()) return "has gaps between its elements, or several in one place";
  return {};
}

/// The elements in the order of memory. Throws `usage_error` that begins with `name`.
template <class T>
std::span<T> elements_in_memory(const at::Tensor& tensor, std::string_view name, memory_space where) {
  if (const std::string objection = objection_to_memory(tensor, where); !objection.empty())
    throw usage_error(text(name, " ", objection));
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace detail

/// A tensor's elements, to be passed wherever a buffer is. Valid as long as the tensor's storage. T is the
/// type of the same name, half and bfloat16 being ddpp's. `where` is the memory that the communicator's
/// transport moves: with memory_space::device they are a CUDA device's. Throws `usage_error` for another
/// type, a tensor elsewhere, and one that is not contiguous. Autograd does not see what is done to them.
template <class T>
std::span<T> tensor_span(const at::Tensor& tensor, memory_space where = memory_space::host) {
  const auto elements = detail::elements_in_memory<T>(tensor, "the tensor", where);
  const bool same = detail::visit_scalar_type(
      tensor.scalar_type(), []<class U>(std::type_identity<U>) { return std::is_same_v<U, T>; });
  if (!same) {
    throw usage_error(detail::text("a tensor of ", at::toString(tensor.scalar_type()), " was asked for as ",
                                   name_of(dtype_of<T>)));
  }
  if (!tensor.is_contiguous())
    throw usage_error("a tensor that is not contiguous is not a buffer: contiguous() makes a copy that is");
  return elements;
}

}  // namespace ddpp
