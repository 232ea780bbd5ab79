// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "plan.hpp"

namespace launcher {

/// Throws `bad_input`; ends the process itself after --help and --version.
plan parse_command_line(int argc, char** argv);

}  // namespace launcher
