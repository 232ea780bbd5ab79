// SPDX-License-Identifier: BSL-1.0
// What the ranks execute.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace launcher {

/// The program cannot be run: `status` is a shell's, 127 for one that is not there and 126 for one that may
/// not be executed.
class no_program : public std::runtime_error {
 public:
  no_program(const std::string& what, int status_like_a_shell)
      : std::runtime_error(what), status(status_like_a_shell) {}
  int status;
};

/// The command as it is executed: with the Python interpreter ($PYTHON_EXEC, or python3) before it where it
/// is a module, or (with `python`) a file named *.py that is not executable. Throws `no_program`.
std::vector<std::string> resolve_program(std::vector<std::string> command, bool module, bool python);

}  // namespace launcher
