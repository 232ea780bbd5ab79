// SPDX-License-Identifier: BSL-1.0
// This host's interfaces, and which of them DDPP_SOCKET_IFNAME chooses for what ranks say to each other.
#pragma once

#include <ddpp/detail/address.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace ddpp::detail {

struct interface_address {
  std::string interface = {};
  address at = {};
};

/// Of the interfaces that are up, in the system's order. Throws resource_error.
inline std::vector<interface_address> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw resource_error(text("getifaddrs: ", std::generic_category().message(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
  std::vector<interface_address> result;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto length =
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    result.push_back({each->ifa_name, address(each->ifa_addr, length)});
  }
  return result;
}

/// What DDPP_SOCKET_IFNAME says: names with commas between them, each exactly an interface's ("b0" is not
/// "b0.1"), the preferred one first; after a '^' the names of those that are not to be used.
class interface_choice {
 public:
  explicit interface_choice(std::string_view said) : said_(said) {
    if (said.starts_with('^')) {
      excludes_ = true;
      said.remove_prefix(1);
    }
    for (std::size_t comma = 0; comma != std::string_view::npos;) {
      comma = said.find(',');
      if (comma != 0 && !said.empty()) names_.emplace_back(said.substr(0, comma));
      said.remove_prefix(comma == std::string_view::npos ? said.size() : comma + 1);
    }
  }

  /// The chosen addresses, the preferred one first. Loopback and IPv6's link-local ones only of interfaces
  /// that are named.
  std::vector<address> of(const std::vector<interface_address>& all) const {
    std::vector<address> result;
    for (const std::string& name : names_) {
      for (const interface_address& each : all) {
        if (!excludes_ && each.interface == name) result.push_back(each.at);
      }
    }
    for (const interface_address& each : all) {
      const bool is_excluded = std::find(names_.begin(), names_.end(), each.interface) != names_.end();
      if (excludes_ && !is_excluded && !each.at.is_loopback() && !each.at.is_link_local()) {
        result.push_back(each.at);
      }
    }
    return result;
  }

  /// Where this rank listens, given its end of a connection to where the ranks meet: that one if it is among
  /// the chosen, else the first of its kind, else the first. Throws init_error when nothing is chosen.
  address nearest(const address& reached, const std::vector<interface_address>& all) const {
    const std::vector<address> chosen = of(all);
    if (chosen.empty()) throw_none(all);
    const auto first = [&](auto is_right) {
      const auto found = std::find_if(chosen.begin(), chosen.end(), is_right);
      return found == chosen.end() ? address() : *found;
    };
    if (const address same = first([&](const address& each) { return each.same_host(reached); });
        same.length() != 0) {
      return same;
    }
    const address alike = first([&](const address& each) { return each.family() == reached.family(); });
    return alike.length() != 0 ? alike : chosen.front();
  }

 private:
  [[noreturn, gnu::cold]] void throw_none(const std::vector<interface_address>& all) const {
    std::string there;
    for (const interface_address& each : all) {
      append_text(there, there.empty() ? "" : ", ", each.interface, " (", each.at.host(), ")");
    }
    throw init_error(
        text("DDPP_SOCKET_IFNAME is \"", said_, "\", which chooses none of this host's interfaces: ", there));
  }

  std::string said_;
  bool excludes_ = false;
  std::vector<std::string> names_;
};

/// DDPP_SOCKET_IFNAME's address for ranks to listen at and to call from, see `nearest`; empty when it is not
/// set. Throws init_error.
[[gnu::cold]] inline address chosen_address(const address& reached) {
  const char* const said = variable("DDPP_SOCKET_IFNAME");
  return said ? interface_choice(said).nearest(reached, interface_addresses()) : address();
}

/// This host's end of the way to everywhere else; empty where there is none. Sends nothing.
inline address default_source(const char* elsewhere, int family) {
  sockaddr_storage storage{};
  const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  storage.ss_family = static_cast<sa_family_t>(family);
  void* const place = family == AF_INET
                          ? static_cast<void*>(&reinterpret_cast<sockaddr_in*>(&storage)->sin_addr)
                          : static_cast<void*>(&reinterpret_cast<sockaddr_in6*>(&storage)->sin6_addr);
  ::inet_pton(family, elsewhere, place);
  address to(reinterpret_cast<const sockaddr*>(&storage), length), result;
  to.set_port(9);
  const int fd = ::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return result;
  if (::connect(fd, to.data(), to.length()) == 0) result = address::local_of(fd);
  ::close(fd);
  result.set_port(0);
  return result;
}

/// By which other hosts may reach this one, the likeliest first: those that DDPP_SOCKET_IFNAME chooses;
/// without it, that of the default route before the others.
[[gnu::cold]] inline std::vector<address> outward_addresses() {
  const char* const said = variable("DDPP_SOCKET_IFNAME");
  std::vector<address> result = interface_choice(said ? said : "^").of(interface_addresses());
  if (said) return result;
  // Networks that are reserved for documentation.
  for (const address& best :
       {default_source("2001:db8::1", AF_INET6), default_source("192.0.2.1", AF_INET)}) {
    const auto found =
        std::find_if(result.begin(), result.end(), [&](const address& each) { return each.same_host(best); });
    if (found != result.end()) std::rotate(result.begin(), found, found + 1);
  }
  return result;
}

}  // namespace ddpp::detail
