// SPDX-License-Identifier: BSL-1.0
// Where a rank listens, as ranks tell each other.
#pragma once

#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/small_file.hpp>
#include <ddpp/error.hpp>

#include <arpa/inet.h>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::detail {

/// The same for all processes of one running system, and different between systems. Empty when the system
/// does not say.
inline std::string host_id() {
  const std::string id = read_small_file("/proc/sys/kernel/random/boot_id");
  return id.substr(0, id.find('\n'));
}

struct tcp_endpoint {
  std::string host = {};  ///< numeric
  std::uint16_t port = 0;
  std::string system = {};  ///< its host_id()

  /// "127.0.0.1 29500 0c6f...".
  std::string text() const { return host + " " + std::to_string(port) + " " + system; }

  /// Throws init_error for what no rank would have said.
  static tcp_endpoint from(std::string_view text) {
    const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
    tcp_endpoint result;
    if (first == 0 || second == std::string_view::npos || text.size() > 512) throw_unreadable();
    result.host = text.substr(0, first);
    const auto port = text.substr(first + 1, second - first - 1);
    const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), result.port);
    if (problem != std::errc() || end != port.data() + port.size() || result.port == 0) throw_unreadable();
    if (!is_numeric(result.host)) throw_unreadable();  // nobody is to ask a name service for it
    result.system = text.substr(second + 1);
    return result;
  }

 private:
  /// "127.0.0.1", "::1", "fe80::1%eth0", whether or not this host has such an interface.
  static bool is_numeric(const std::string& host) {
    const std::string bare = host.substr(0, host.find('%'));
    in6_addr unused{};
    return ::inet_pton(AF_INET, bare.c_str(), &unused) == 1 ||
           ::inet_pton(AF_INET6, bare.c_str(), &unused) == 1;
  }

  [[noreturn]] static void throw_unreadable() {
    throw init_error("a rank published an address that is none");
  }
};

inline std::string hexadecimal(const group_id& id) {
  std::string text;
  for (const std::byte each : id) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(each) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(each) & 15u];
  }
  return text;
}

/// The reverse. Throws init_error.
inline group_id group_id_from(std::string_view text) {
  group_id id;
  if (text.size() != 2 * id.size()) throw init_error("rank 0 published a group id that is none");
  for (std::size_t i = 0; i < id.size(); ++i) {
    unsigned value = 0;
    const auto [end, problem] = std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    if (problem != std::errc() || end != text.data() + 2 * i + 2) {
      throw init_error("rank 0 published a group id that is none");
    }
    id[i] = std::byte(value);
  }
  return id;
}

}  // namespace ddpp::detail
