// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "plan.hpp"

namespace perf {

/// Throws bad_input for anything that cannot be done as asked. Prints the help and exits when that is asked
/// for.
plan parse_command_line(int argc, char** argv);

/// The sizes of the plan, as bytes and counts. Throws bad_input when there is none.
std::vector<row> rows_of(const plan& todo);

}  // namespace perf
