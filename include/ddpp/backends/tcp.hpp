// SPDX-License-Identifier: BSL-1.0
// Ranks that are processes on any hosts (or threads, or anything else: nothing is shared), over TCP.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/tcp_transport.hpp>
#include <ddpp/security.hpp>

#include <cstddef>
#include <string_view>

namespace ddpp {

/// `Security` is security::authenticated or security::none.
template <class Security = security::authenticated>
class basic_tcp : public detail::tcp_transport {
 public:
  struct options {};

  static constexpr std::string_view name = "tcp";
  static constexpr memory_space memory = memory_space::host;
  static constexpr launch_kind launch = launch_kind::processes;
  static constexpr std::size_t preferred_segment = std::size_t{512} << 10;

  /// Collective over all ranks of `boot`. Listens on boot.host, any free port; connects to rank 0 now and to
  /// other peers when there is something to send to or to receive from them. Blocks until all have come,
  /// until boot.deadline at most: timeout_error names who is missing; authentication_error where the secrets
  /// differ; init_error where a rank gives up or can only be reached from its own host. The destructor waits
  /// for sends that were dropped half-way, boot.timeout at most, says goodbye, and returns within two seconds
  /// more. What was sent before still arrives.
  basic_tcp(const bootstrap& boot, const options&) : tcp_transport(boot, Security::open) {}
};

using tcp = basic_tcp<>;

static_assert(transport<tcp>);
static_assert(has_control_plane<tcp>);
static_assert(has_agreement<tcp>);
static_assert(has_receive_view<tcp>);
static_assert(!has_shared_slots<tcp>);
static_assert(!has_symmetric_memory<tcp>);
static_assert(has_background_progress<tcp>);
static_assert(has_failure_listener<tcp>);
static_assert(transport<basic_tcp<security::none>>);
static_assert(!has_barrier<tcp>);
static_assert(!has_broadcast<tcp, float>);
static_assert(!has_all_gather<tcp, float>);

}  // namespace ddpp
