// SPDX-License-Identifier: BSL-1.0
// What a rank says of where it is, so that others know whether they can share memory with it.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/named_file.hpp>
#include <ddpp/detail/shared_file.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/stat.h>
#include <type_traits>
#include <unistd.h>

namespace ddpp::detail {

/// The same bytes for all ranks, so that they can be gathered as they are.
struct host_identity {
  std::array<char, 64> name = {};  ///< that the user gave; ranks of different names are apart
  std::array<char, 40> boot = {};  ///< of which boot of which kernel; empty if that is not to be found out
  std::uint64_t processes = 0;     ///< which table of processes `process` is a number in
  std::uint64_t users = 0;         ///< which name space the user is of
  std::uint64_t files = 0;         ///< which /dev/shm
  std::int64_t process = 0;
  std::uint64_t user = 0;

  /// Throws `usage_error` if the name is too long, `resource_error` if no file can be opened.
  [[gnu::cold]] static host_identity here(const std::string& name) {
    host_identity mine;
    if (name.size() > mine.name.size()) {
      throw usage_error(text("hierarchical: the host's name has ", name.size(), " characters, at most ",
                             mine.name.size(), " are allowed"));
    }
    std::copy(name.begin(), name.end(), mine.name.begin());
    const shared_file_address address = shared_file_address::here();
    if (address.host.size() > 1 && address.host.size() <= mine.boot.size())
      std::copy(address.host.begin(), address.host.end(), mine.boot.begin());
    const std::string& number = address.process;
    std::from_chars(number.data(), number.data() + number.size(), mine.process);
    mine.processes = device_of("/proc");
    mine.users = number_of("/proc/self/ns/user");
    mine.files = device_of(named_file_folder.data());
    mine.user = ::geteuid();
    return mine;
  }

  bool is_on_host_of(const host_identity& other) const {
    return name == other.name && boot == other.boot && boot.front() != 0 && user == other.user;
  }
  /// Whether each can open what the other has open.
  bool sees_process_of(const host_identity& other) const {
    return is_on_host_of(other) && processes != 0 && processes == other.processes && users == other.users;
  }
  /// Whether they have a folder in common for files in memory.
  bool sees_files_of(const host_identity& other) const {
    return is_on_host_of(other) && files != 0 && files == other.files;
  }
  bool is_same_process(const host_identity& other) const {
    return sees_process_of(other) && process == other.process;
  }

 private:
  static std::uint64_t device_of(const char* path) {
    struct stat found {};
    return ::stat(path, &found) == 0 ? found.st_dev : 0;
  }
  static std::uint64_t number_of(const char* path) {
    struct stat found {};
    return ::stat(path, &found) == 0 ? found.st_ino : 0;
  }
};
static_assert(std::is_trivially_copyable_v<host_identity>);

}  // namespace ddpp::detail
