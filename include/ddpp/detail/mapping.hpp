// SPDX-License-Identifier: BSL-1.0
// Memory mapped into this process, and unmapped.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <cerrno>
#include <cstddef>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <utility>

namespace ddpp::detail {

class mapping {
 public:
  /// Zeroed memory of this process, given by the system page by page as it is touched.
  static mapping of_this_process(std::size_t bytes) {
    return mapping(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  }
  /// A file's first bytes, shared with whoever else maps it.
  static mapping of_file(int fd, std::size_t bytes) { return mapping(bytes, MAP_SHARED, fd); }

  mapping(mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  mapping& operator=(mapping&&) = delete;
  ~mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  mapping(std::size_t bytes, int flags, int fd)
      : data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0)), bytes_(bytes) {
    if (data_ == MAP_FAILED) {
      throw resource_error(
          text("cannot map ", bytes, " bytes of memory: ", std::generic_category().message(errno)));
    }
  }

  void* data_;
  std::size_t bytes_;
};

}  // namespace ddpp::detail
