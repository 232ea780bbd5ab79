// SPDX-License-Identifier: BSL-1.0
// The collectives for torch::Tensor. The type of its elements is known at run time only: each call finds it
// out and goes on with a span. Tensors in one call have the same type; they are contiguous and in the host's
// memory; else `usage_error`. Everything else is as for other buffers.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/all_to_all.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/torch_tensor.hpp>
#include <ddpp/gather.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/reduce.hpp>
#include <ddpp/reduce_scatter.hpp>
#include <ddpp/scatter.hpp>
#include <ddpp/work.hpp>

#include <ATen/core/Tensor.h>
#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

/// Tensors become spans; a root, an operation, counts stay what they are.
template <class T, class X>
decltype(auto) elements_of(const X& argument) {
  if constexpr (std::derived_from<X, at::Tensor>)
    return tensor_span<T>(argument);
  else
    return (argument);
}

/// The call, once the type of its tensors is known.
template <class Result, class Call, class... Arguments>
struct call_with_elements {
  const char* operation;
  const Call& call;
  std::tuple<const Arguments&...> arguments;

  template <class T>
  Result operator()(std::type_identity<T>) const {
    if constexpr (std::is_invocable_v<const Call&,
                                      decltype(elements_of<T>(std::declval<const Arguments&>()))...>) {
      return std::apply([this](const auto&... each) { return call(elements_of<T>(each)...); }, arguments);
    } else {
      refuse(operation, {"tensors of ", name_of(dtype_of<T>), " and these arguments do not go together"});
    }
  }
};

template <class Result, class Call, class... More>
Result with_elements(const char* operation, const Call& call, const at::Tensor& first, const More&... more) {
  check(first.defined(), operation, "the tensor is undefined");
  return visit_scalar_type(first.scalar_type(), call_with_elements<Result, Call, at::Tensor, More...>{
                                                    operation, call, {first, more...}});
}

}  // namespace detail

#define DDPP_FOR_TENSORS(result, name)                                                                \
  template <detail::any_communicator C, class... More>                                                \
  result name(C& comm, const at::Tensor& first, const More&... more) {                                \
    const auto call = [&comm](const auto&... arguments) -> decltype(ddpp::name(comm, arguments...)) { \
      return ddpp::name(comm, arguments...);                                                          \
    };                                                                                                \
    return detail::with_elements<result>(#name, call, first, more...);                                \
  }

DDPP_FOR_TENSORS(void, all_reduce)
DDPP_FOR_TENSORS(work, all_reduce_async)
DDPP_FOR_TENSORS(void, broadcast)
DDPP_FOR_TENSORS(work, broadcast_async)
DDPP_FOR_TENSORS(void, reduce)
DDPP_FOR_TENSORS(work, reduce_async)
DDPP_FOR_TENSORS(void, all_gather)
DDPP_FOR_TENSORS(work, all_gather_async)
DDPP_FOR_TENSORS(void, all_gather_v)
DDPP_FOR_TENSORS(work, all_gather_v_async)
DDPP_FOR_TENSORS(void, reduce_scatter)
DDPP_FOR_TENSORS(work, reduce_scatter_async)
DDPP_FOR_TENSORS(void, reduce_scatter_v)
DDPP_FOR_TENSORS(work, reduce_scatter_v_async)
DDPP_FOR_TENSORS(void, gather)
DDPP_FOR_TENSORS(work, gather_async)
DDPP_FOR_TENSORS(void, gather_v)
DDPP_FOR_TENSORS(work, gather_v_async)
DDPP_FOR_TENSORS(void, scatter)
DDPP_FOR_TENSORS(work, scatter_async)
DDPP_FOR_TENSORS(void, scatter_v)
DDPP_FOR_TENSORS(work, scatter_v_async)
DDPP_FOR_TENSORS(void, all_to_all)
DDPP_FOR_TENSORS(work, all_to_all_async)
DDPP_FOR_TENSORS(void, all_to_all_v)
DDPP_FOR_TENSORS(work, all_to_all_v_async)
DDPP_FOR_TENSORS(void, send)
DDPP_FOR_TENSORS(void, recv)
DDPP_FOR_TENSORS(void, send_recv)
DDPP_FOR_TENSORS(work, isend)
DDPP_FOR_TENSORS(work, irecv)

#undef DDPP_FOR_TENSORS

}  // namespace ddpp
