// SPDX-License-Identifier: BSL-1.0
// Each transport is a unit of its own, so that they compile side by side.
#pragma once

#include <span>
#include <string>

#include "plan.hpp"

namespace perf {

/// Fills the rows of one table. The header and the rows are printed by rank 0. When the ranks were launched
/// by somebody else, only rank 0's rows are filled.
void run_on_threads(const plan& todo, const std::string& algorithm, std::span<row> rows);
void run_on_shm(const plan& todo, const std::string& algorithm, std::span<row> rows);
void run_on_tcp(const plan& todo, const std::string& algorithm, std::span<row> rows);

}  // namespace perf
