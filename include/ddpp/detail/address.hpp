// SPDX-License-Identifier: BSL-1.0
// Socket addresses: IPv4 and IPv6 alike, their text, and which of them are on this host.
#pragma once

#include <ddpp/detail/text.hpp>

#include <arpa/inet.h>
#include <cstdint>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>

namespace ddpp::detail {

class address {
 public:
  address() = default;
  address(const sockaddr* from, socklen_t length) : length_(length) { std::memcpy(&storage_, from, length); }

  /// The local end of a socket.
  static address local_of(int fd) {
    address result;
    result.length_ = sizeof(storage_);
    if (::getsockname(fd, result.data(), &result.length_) != 0) result.length_ = 0;
    return result;
  }

  /// The far end of a socket; empty when it is not connected any more.
  static address peer_of(int fd) {
    address result;
    result.length_ = sizeof(storage_);
    if (::getpeername(fd, result.data(), &result.length_) != 0) result.length_ = 0;
    return result;
  }

  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  sockaddr* data() noexcept { return reinterpret_cast<sockaddr*>(&storage_); }
  socklen_t length() const noexcept { return length_; }
  int family() const noexcept { return length_ == 0 ? AF_UNSPEC : storage_.ss_family; }

  std::uint16_t port() const noexcept {
    if (family() == AF_INET) return ntohs(v4().sin_port);
    if (family() == AF_INET6) return ntohs(v6().sin6_port);
    return 0;
  }

  void set_port(std::uint16_t port) noexcept {
    if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
    if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
  }

  /// "127.0.0.1", "fe80::1%eth0": what `resolve` takes.
  std::string host() const {
    char text[NI_MAXHOST];
    if (length_ == 0 || ::getnameinfo(data(), length_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
      return "an unknown address";
    }
    return text;
  }

  /// "127.0.0.1:80", "[::1]:80".
  std::string text() const {
    if (length_ == 0) return host();
    const bool is_v6 = family() == AF_INET6;
    return detail::text(is_v6 ? "[" : "", host(), is_v6 ? "]:" : ":", port());
  }

  bool is_loopback() const noexcept {
    if (family() == AF_INET) return (ntohl(v4().sin_addr.s_addr) >> 24) == 127;
    if (family() != AF_INET6) return false;
    if (IN6_IS_ADDR_V4MAPPED(&v6().sin6_addr)) return v6().sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6().sin6_addr);
  }

  /// Known to one link only: others need to be told through which interface.
  bool is_link_local() const noexcept {
    return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6().sin6_addr);
  }

  bool is_wildcard() const noexcept {
    if (family() == AF_INET) return v4().sin_addr.s_addr == htonl(INADDR_ANY);
    if (family() != AF_INET6) return false;
    return IN6_IS_ADDR_UNSPECIFIED(&v6().sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6().sin6_addr) &&
            std::memcmp(&v6().sin6_addr.s6_addr[12], "\0\0\0\0", 4) == 0);
  }

  /// The same interface address, whatever the ports.
  bool same_host(const address& other) const noexcept {
    if (family() != other.family()) return false;
    if (family() == AF_INET) return v4().sin_addr.s_addr == other.v4().sin_addr.s_addr;
    if (family() != AF_INET6) return false;
    return std::memcmp(&v6().sin6_addr, &other.v6().sin6_addr, sizeof(in6_addr)) == 0 &&
           v6().sin6_scope_id == other.v6().sin6_scope_id;
  }

 private:
  const sockaddr_in& v4() const noexcept { return *reinterpret_cast<const sockaddr_in*>(&storage_); }
  const sockaddr_in6& v6() const noexcept { return *reinterpret_cast<const sockaddr_in6*>(&storage_); }

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Whether a connected socket stays on this host: over loopback, or from one of its own addresses to the same
/// (the kernel drops packets from outside that claim such a source). So does one that has been reset: it has
/// no peer any more, and its next use says so.
inline bool stays_on_this_host(int fd) {
  const address peer = address::peer_of(fd);
  return peer.length() == 0 || peer.is_loopback() || peer.same_host(address::local_of(fd));
}

}  // namespace ddpp::detail
