// SPDX-License-Identifier: BSL-1.0
// Where tests can listen.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

namespace support {

/// A port that is free now.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  const bool good = fd >= 0 && ::bind(fd, general, length) == 0 && ::getsockname(fd, general, &length) == 0;
  ::close(fd);
  if (!good) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

}  // namespace support
