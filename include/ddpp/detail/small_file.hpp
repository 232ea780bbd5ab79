// SPDX-License-Identifier: BSL-1.0
// Reads a file of a few bytes, as the system and people keep their settings in.
#pragma once

#include <ddpp/detail/socket.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace ddpp::detail {

/// What the file holds, at most 64 KiB of it; empty when it cannot be read.
inline std::string read_small_file(const char* path) {
  constexpr std::size_t most = std::size_t{64} << 10;
  std::string content;
  const descriptor file = descriptor::open([=] { return ::open(path, O_RDONLY | O_CLOEXEC); });
  while (file && content.size() < most) {
    std::array<char, 4096> buffer;
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    content.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return content;
}

}  // namespace ddpp::detail
