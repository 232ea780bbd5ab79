// SPDX-License-Identifier: BSL-1.0
#include "program.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace launcher {
namespace {

bool is_file(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

bool is_executable(const std::string& path) { return is_file(path) && ::access(path.c_str(), X_OK) == 0; }

bool is_on_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  for (std::string_view rest(path ? path : "/usr/bin:/bin"); !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (is_executable(std::string(folder.empty() ? "." : folder) + '/' + name)) return true;
    rest.remove_prefix(folder.size() == rest.size() ? folder.size() : folder.size() + 1);
  }
  return false;
}

void check(const std::string& program) {
  if (program.find('/') == program.npos) {
    if (is_on_path(program)) return;
    const bool is_here = is_file("./" + program);
    throw no_program("there is no program '" + program + "' on PATH" +
                         (is_here ? "; did you mean ./" + program + "?" : ""),
                     127);
  }
  if (is_executable(program)) return;
  struct stat found {};
  if (::stat(program.c_str(), &found) != 0)
    throw no_program("cannot run " + program + ": " + std::strerror(errno), errno == EACCES ? 126 : 127);
  throw no_program(
      "cannot run " + program + (S_ISREG(found.st_mode) ? ": it is not executable" : ": it is no file"), 126);
}

}  // namespace

std::vector<std::string> resolve_program(std::vector<std::string> command, bool module, bool python) {
  const std::string& program = command.front();
  const bool is_script = python && program.ends_with(".py") && is_file(program) && !is_executable(program);
  const bool bare_script =
      python && program.ends_with(".py") && program.find('/') == program.npos && is_file(program);
  if (module || is_script || bare_script) {
    const char* const interpreter = std::getenv("PYTHON_EXEC");
    std::vector<std::string> before{interpreter && *interpreter ? interpreter : "python3", "-u"};
    if (module) before.emplace_back("-m");
    command.insert(command.begin(), before.begin(), before.end());
  }
  check(command.front());
  return command;
}

}  // namespace launcher
