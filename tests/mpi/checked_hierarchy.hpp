// SPDX-License-Identifier: BSL-1.0
// Ranks on up to three hosts, or so they say: shared memory inside each, MPI across.
#pragma once

#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/backends/shm.hpp>

#include <string_view>

#include "checked_mpi.hpp"

namespace support {

class checked_hierarchy : public ddpp::hierarchical<ddpp::shm, checked_mpi> {
 public:
  checked_hierarchy(const ddpp::bootstrap& boot, const options& settings)
      : hierarchical(boot, on_host(boot.rank, settings)) {}

 private:
  static options on_host(int rank, options settings) {
    static constexpr std::string_view hosts = "abaabcbba";
    settings.host = hosts[static_cast<std::size_t>(rank) % hosts.size()];
    return settings;
  }
};

}  // namespace support
