// SPDX-License-Identifier: BSL-1.0
// How a process becomes a rank, as PyTorch's init_process_group.
#pragma once

#include <ddpp/communicator.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/rendezvous.hpp>
#include <ddpp/environment.hpp>

namespace ddpp {

/// Collective. Blocks until all ranks have come, at most init_timeout (or `timeout`), and returns the group
/// that they form. Several calls make independent groups.
///
/// Rank and world size come from the options, the init method or the launcher's environment (see
/// environment.hpp), the first that has them; none at all is a world of one. Under "env://" the ranks meet at
/// MASTER_ADDR:MASTER_PORT. At a tcp address rank 0 serves the store if nobody does yet, as long as one of
/// its groups lives.
///
/// Throws `timeout_error` naming the ranks that did not come; `peer_lost` when one that had come has died or
/// given up, where the store can tell (a tcp and a file store can); `init_error` for a bad address, half an
/// environment, a rank that two processes have; `authentication_error` when they have different secrets;
/// `usage_error` for options that contradict each other.
template <transport T, class A = algorithms::automatic>
communicator<T, A> init(const init_options& options = {}, const typename T::options& transport_options = {}) {
  const detail::gathering group = detail::come_together(options);
  communicator<T, A> made(group.boot, transport_options);
  detail::settle(group, [&] {
    if constexpr (has_control_plane<T>)
      return made.transport().failed();
    else
      return false;
  });
  return made;
}

}  // namespace ddpp
