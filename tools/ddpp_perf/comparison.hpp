// SPDX-License-Identifier: BSL-1.0
// Several tables side by side: a row for each size, a column for each transport and algorithm.
#pragma once

#include <string>
#include <vector>

#include "plan.hpp"

namespace perf {

/// The out-of-place form, or the in-place one where a collective has no other.
const result& representative(const row& row);

/// The index of the table that was fastest in this row.
std::size_t fastest(const std::vector<table>& tables, std::size_t row);

/// Microseconds, the fastest of each row marked. Transports stand beside each other where the lines stay
/// short.
void print_comparison(const plan& todo, const std::vector<table>& tables);

}  // namespace perf
