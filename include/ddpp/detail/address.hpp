// SPDX-License-Identifier: BSL-1.0
// Socket addresses: IPv4 and IPv6 alike, their text, and which of them are on this host.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <arpa/inet.h>
#include <cstdint>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

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

/// All addresses of a host name or a numeric address, in the resolver's order. Empty when there are none;
/// then `why` says why. A name may cost the time of a name service.
inline std::vector<address> resolve(const std::string& host, std::uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<address> result;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0) {
    why = ::gai_strerror(code);
    return result;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    result.emplace_back(each->ai_addr, each->ai_addrlen);
    result.back().set_port(port);
  }
  ::freeaddrinfo(found);
  if (result.empty()) why = "it has neither an IPv4 nor an IPv6 address";
  return result;
}

/// "host:port", with brackets around a numeric IPv6 address.
inline std::string host_and_port(const std::string& host, std::uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return text(is_v6 ? "[" : "", host, is_v6 ? "]:" : ":", port);
}

}  // namespace ddpp::detail
