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

}  // namespace support
