// SPDX-License-Identifier: BSL-1.0
// From names to addresses.
#pragma once

#include <ddpp/detail/address.hpp>
#include <ddpp/detail/network_interfaces.hpp>
#include <ddpp/detail/text.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace ddpp::detail {

/// Whether this host calls itself so, with or without its domain.
inline bool is_own_name(const std::string& host) {
  std::array<char, HOST_NAME_MAX + 1> own{};
  if (::gethostname(own.data(), own.size() - 1) != 0) return false;
  const auto label = [](std::string_view name) { return std::string(name.substr(0, name.find('.'))); };
  const std::string name = label(own.data());
  return name != "localhost" && ::strcasecmp(label(host).c_str(), name.c_str()) == 0;
}

/// Many a host's /etc/hosts has its own name for a loopback address, which no other host can reach. Then the
/// addresses come first that others may know that name by; the host's own processes find each other there,
/// too.
inline void put_outward_first(const std::string& host, std::vector<address>& addresses) {
  const auto is_loopback = [](const address& each) { return each.is_loopback(); };
  if (!std::all_of(addresses.begin(), addresses.end(), is_loopback) || !is_own_name(host)) return;
  const std::vector<address> outward = outward_addresses();
  addresses.insert(addresses.begin(), outward.begin(), outward.end());
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
  }
  ::freeaddrinfo(found);
  put_outward_first(host, result);
  for (address& each : result) each.set_port(port);
  if (result.empty()) why = "it has neither an IPv4 nor an IPv6 address";
  return result;
}

/// "host:port", with brackets around a numeric IPv6 address.
inline std::string host_and_port(const std::string& host, std::uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return text(is_v6 ? "[" : "", host, is_v6 ? "]:" : ":", port);
}

}  // namespace ddpp::detail
