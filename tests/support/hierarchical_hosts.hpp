// SPDX-License-Identifier: BSL-1.0
// A hierarchy whose ranks say that they are on up to three hosts, with different numbers of ranks, and not
// next to each other.
#pragma once

#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>

#include <string>
#include <string_view>

namespace support {

class hierarchical_hosts : public ddpp::hierarchical<ddpp::shm, ddpp::tcp> {
 public:
  hierarchical_hosts(const ddpp::bootstrap& boot, const options& settings)
      : hierarchical(boot, on_host(boot.rank, settings)) {}

 private:
  static options on_host(int rank, options settings) {
    static constexpr std::string_view hosts = "abaabcbba";
    settings.host = hosts[static_cast<std::size_t>(rank) % hosts.size()];
    return settings;
  }
};

static_assert(ddpp::transport<hierarchical_hosts>);
static_assert(ddpp::has_control_plane<hierarchical_hosts>);
static_assert(ddpp::has_agreement<hierarchical_hosts>);
static_assert(ddpp::has_receive_view<hierarchical_hosts>);
static_assert(!ddpp::has_shared_slots<hierarchical_hosts>);
static_assert(!ddpp::has_symmetric_memory<hierarchical_hosts>);
static_assert(ddpp::has_background_progress<hierarchical_hosts>);
static_assert(ddpp::has_barrier<hierarchical_hosts>);
static_assert(ddpp::has_broadcast<hierarchical_hosts, float>);
static_assert(ddpp::has_all_gather<hierarchical_hosts, float>);
static_assert(ddpp::has_all_reduce<hierarchical_hosts, float, ddpp::sum_t>);
static_assert(!ddpp::has_all_reduce<hierarchical_hosts, ddpp::half, ddpp::sum_t>);
static_assert(ddpp::has_reduce_scatter<hierarchical_hosts, float, ddpp::sum_t>);
static_assert(!ddpp::has_reduce_scatter<hierarchical_hosts, ddpp::bfloat16, ddpp::sum_t>);
static_assert(ddpp::has_sums_in_float<hierarchical_hosts, ddpp::half>);
static_assert(ddpp::has_sums_in_float<hierarchical_hosts, ddpp::bfloat16>);
static_assert(!ddpp::has_sums_in_float<hierarchical_hosts, float>);

}  // namespace support
