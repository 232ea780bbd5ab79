// SPDX-License-Identifier: BSL-1.0
#include "replaced_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>

#include "plan.hpp"

namespace perf {

replaced_file::replaced_file(std::string name)
    : name_(std::move(name)), temporary_(name_ + ".new." + std::to_string(::getpid())) {}

replaced_file::~replaced_file() { std::remove(temporary_.c_str()); }

void replaced_file::check() const {
  if (std::filesystem::is_directory(name_)) throw bad_input(name_ + " is a directory");
  if (!std::ofstream(temporary_)) refuse();
  std::remove(temporary_.c_str());
}

void replaced_file::keep() {
  if (std::rename(temporary_.c_str(), name_.c_str()) != 0) refuse();
}

void replaced_file::refuse() const { throw bad_input("cannot write " + name_ + ": " + std::strerror(errno)); }

}  // namespace perf
