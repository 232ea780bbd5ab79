// SPDX-License-Identifier: BSL-1.0
// broadcast: every rank gets the root's buffer.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>

namespace ddpp {
namespace detail {

template <class C, class T, class Alg>
struct broadcast_call {
  std::span<T> data;
  int root;
  Alg algorithm;

  fingerprint print() const {
    return fingerprint_of<T>(collective::broadcast, data.size(), root, 0, algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C, Alg>) {
      refuse_algorithm<Alg>();
      inside.transport().broadcast(data, root, inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    using chosen = chosen_algorithm<C, Alg>;
    const auto bytes = std::as_writable_bytes(data);
    if (inside.size() == 1) return;
    if constexpr (prefers_native<C, Alg> && has_broadcast<typename C::transport_type, T>) {
      inside.transport().broadcast(data, root, inside.deadline());
    } else if constexpr (requires(const chosen& a) { a.broadcast(inside, bytes, root); }) {
      algorithm_object<C>(algorithm).broadcast(inside, bytes, root);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no broadcast(communicator, span of bytes, root)");
      algorithms::automatic{}.broadcast(inside, bytes, root);
    }
  }
};

template <class C, class B, class Alg>
auto make_broadcast(const C& comm, B&& data, int root, Alg algorithm) {
  check_peer(comm, root, "broadcast", "root");
  check_memory<Alg>(comm, as_span(data), "broadcast");
  return broadcast_call<C, element_t<B>, Alg>{as_span(data), root, algorithm};
}

}  // namespace detail

/// Copies the root's buffer to all ranks. All bring the same number of elements of the same type and name the
/// same root. Blocks until this rank's part is done: a root may return before the others have the data.
/// Throws `peer_lost`, `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, mutable_buffer B, class Alg = the_communicators>
void broadcast(C& comm, B&& data, int root = 0, Alg algorithm = {}) {
  const auto call = detail::make_broadcast(comm, data, root, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffer belongs to the operation until the work is done.
template <detail::any_communicator C, mutable_buffer B, class Alg = the_communicators>
work broadcast_async(C& comm, B&& data, int root = 0, Alg algorithm = {}) {
  detail::require_lasting<B>();
  const auto call = detail::make_broadcast(comm, data, root, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
