// SPDX-License-Identifier: BSL-1.0
// barrier: no rank leaves before all have come.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/work.hpp>

namespace ddpp {
namespace detail {

template <class C>
struct barrier_call {
  static constexpr fingerprint print() { return {.op = collective::barrier}; }
  void operator()(C& inside) const {
    if constexpr (has_barrier<typename C::transport_type>)
      inside.transport().barrier(inside.deadline());
    else
      algorithms::automatic{}.barrier(inside);
  }
};

}  // namespace detail

/// Blocks until all ranks have called it. A `timeout_error` names those that have not.
template <detail::any_communicator C>
void barrier(C& comm) {
  comm.run(detail::barrier_call<C>::print(), detail::barrier_call<C>{});
}

/// Returns at once; the work is done when all ranks have called it.
template <detail::any_communicator C>
work barrier_async(C& comm) {
  return comm.start(detail::barrier_call<C>::print(), detail::barrier_call<C>{});
}

}  // namespace ddpp
