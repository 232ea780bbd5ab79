// SPDX-License-Identifier: BSL-1.0
// The backend `mpi` with every collective compared, as all other transports do.
#pragma once

#include <ddpp/backends/mpi.hpp>

namespace support {

/// Beginning MPI waits for all processes, and not all are in the first group that is made.
inline const auto& begun = ddpp::detail::mpi_runtime::instance();

class checked_mpi : public ddpp::mpi {
 public:
  checked_mpi(const ddpp::bootstrap& boot, const options&) : mpi(boot, {ddpp::mpi_checks::always}) {}
};

}  // namespace support
