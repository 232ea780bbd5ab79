// SPDX-License-Identifier: BSL-1.0
// Where the ranks of a group diverged.
#pragma once

#include <string>

#include "dump.hpp"

namespace ddpp_explain {

/// The verdict in a sentence or two, then a line per rank.
std::string explain(const group_dumps& group);

}  // namespace ddpp_explain
