// SPDX-License-Identifier: BSL-1.0
// The collectives for torch::Tensor. The type of its elements is known at run time only: each call finds it
// out and goes on with a span. Tensors in one call have the same type; they are contiguous and in the memory
// that the transport moves; else `usage_error`. Everything else is as for other buffers.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/all_to_all.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
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
decltype(auto) elements_of(const X& argument, memory_space where) {
  if constexpr (std::derived_from<X, at::Tensor>)
    return tensor_span<T>(argument, where);
  else
    return (argument);
}

template <class C, class... Arguments>
inline constexpr bool can_move = true;

/// Whether C's transport reduces elements of the first argument with the operation among the others, or a
/// sum. A device's does so for some types only, and which the tensors are of is known at run time.
template <class C, class First, class... More>
inline constexpr bool can_reduce = [] {
  using T = element_t<First>;
  using transport = typename C::transport_type;
  return !is_on_device<C> || has_all_reduce<transport, T, sum_t> ||
         (has_all_reduce<transport, T, std::remove_cvref_t<More>> || ...);
}();

/// The call, once the type of its tensors is known.
template <class Result, class Call, class... Arguments>
struct call_with_elements {
  const char* operation;
  memory_space where;
  const Call& call;
  std::tuple<const Arguments&...> arguments;

  template <class T>
  Result operator()(std::type_identity<T>) const {
    if constexpr (std::is_invocable_v<const Call&,
                                      decltype(elements_of<T>(std::declval<const Arguments&>(), where))...>) {
      return std::apply([this](const auto&... each) { return call(elements_of<T>(each, where)...); },
                        arguments);
    } else {
      refuse(operation, {"tensors of ", name_of(dtype_of<T>), " and these arguments do not go together"});
    }
  }
};

template <class Result, class Call, class... More>
Result with_elements(const char* operation, memory_space where, const Call& call, const at::Tensor& first,
                     const More&... more) {
  check(first.defined(), operation, "the tensor is undefined");
  return visit_scalar_type(first.scalar_type(), call_with_elements<Result, Call, at::Tensor, More...>{
                                                    operation, where, call, {first, more...}});
}

}  // namespace detail

#define DDPP_FOR_TENSORS(result, name, possible)                                                           \
  template <detail::any_communicator C, class... More>                                                     \
  result name(C& comm, const at::Tensor& first, const More&... more) {                                     \
    const auto call = [&comm](const auto&... arguments)                                                    \
        -> decltype(ddpp::name(comm, arguments...)) requires detail::possible<C, decltype(arguments)...> { \
      return ddpp::name(comm, arguments...);                                                               \
    };                                                                                                     \
    return detail::with_elements<result>(#name, C::transport_type::memory, call, first, more...);          \
  }

DDPP_FOR_TENSORS(void, all_reduce, can_reduce)
DDPP_FOR_TENSORS(work, all_reduce_async, can_reduce)
DDPP_FOR_TENSORS(void, broadcast, can_move)
DDPP_FOR_TENSORS(work, broadcast_async, can_move)
DDPP_FOR_TENSORS(void, reduce, can_reduce)
DDPP_FOR_TENSORS(work, reduce_async, can_reduce)
DDPP_FOR_TENSORS(void, all_gather, can_move)
DDPP_FOR_TENSORS(work, all_gather_async, can_move)
DDPP_FOR_TENSORS(void, all_gather_v, can_move)
DDPP_FOR_TENSORS(work, all_gather_v_async, can_move)
DDPP_FOR_TENSORS(void, reduce_scatter, can_reduce)
DDPP_FOR_TENSORS(work, reduce_scatter_async, can_reduce)
DDPP_FOR_TENSORS(void, reduce_scatter_v, can_reduce)
DDPP_FOR_TENSORS(work, reduce_scatter_v_async, can_reduce)
DDPP_FOR_TENSORS(void, gather, can_move)
DDPP_FOR_TENSORS(work, gather_async, can_move)
DDPP_FOR_TENSORS(void, gather_v, can_move)
DDPP_FOR_TENSORS(work, gather_v_async, can_move)
DDPP_FOR_TENSORS(void, scatter, can_move)
DDPP_FOR_TENSORS(work, scatter_async, can_move)
DDPP_FOR_TENSORS(void, scatter_v, can_move)
DDPP_FOR_TENSORS(work, scatter_v_async, can_move)
DDPP_FOR_TENSORS(void, all_to_all, can_move)
DDPP_FOR_TENSORS(work, all_to_all_async, can_move)
DDPP_FOR_TENSORS(void, all_to_all_v, can_move)
DDPP_FOR_TENSORS(work, all_to_all_v_async, can_move)
DDPP_FOR_TENSORS(void, send, can_move)
DDPP_FOR_TENSORS(void, recv, can_move)
DDPP_FOR_TENSORS(void, send_recv, can_move)
DDPP_FOR_TENSORS(work, isend, can_move)
DDPP_FOR_TENSORS(work, irecv, can_move)

#undef DDPP_FOR_TENSORS

}  // namespace ddpp
