// SPDX-License-Identifier: BSL-1.0
// "env://", "tcp://host:port?rank=0&world_size=2", "file:///path": the strings that say where ranks meet.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddpp::detail {

struct init_method {
  enum class kind : std::uint8_t { env, tcp, file };
  kind is = kind::env;
  std::string host = {};
  std::uint16_t port = 0;
  std::string path = {};
  int rank = -1;  ///< -1: the string does not say
  int world_size = -1;
};

class init_method_parser {
 public:
  explicit init_method_parser(std::string_view text) : text_(text) {}

  /// Throws `init_error` that shows the string and says what is wrong with it.
  init_method parse() {
    const auto scheme_end = text_.find("://");
    if (scheme_end == text_.npos) fail("it has no scheme; use env://, tcp://host:port or file:///path");
    const std::string_view scheme = text_.substr(0, scheme_end);
    std::string_view rest = text_.substr(scheme_end + 3);
    if (const auto query = rest.find('?'); query != rest.npos) {
      parse_query(rest.substr(query + 1));
      rest = rest.substr(0, query);
    }
    if (scheme == "env")
      parse_env(rest);
    else if (scheme == "tcp")
      parse_tcp(rest);
    else if (scheme == "file")
      parse_file(rest);
    else
      fail(detail::text("there is no scheme ", scheme, "://; use env://, tcp://host:port or file:///path"));
    return result_;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw init_error(detail::text("the init method \"", text_, "\" cannot be used: ", why));
  }

  int number(std::string_view what, std::string_view text, int most) const {
    int value = 0;
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || stop != text.data() + text.size() || value < 0 || value > most) {
      fail(detail::text("its ", what, " \"", text, "\" is no number from 0 to ", most));
    }
    return value;
  }

  void parse_query(std::string_view query) {
    while (!query.empty()) {
      const std::string_view item = query.substr(0, query.find('&'));
      query.remove_prefix(item.size() == query.size() ? query.size() : item.size() + 1);
      const auto equals = item.find('=');
      const std::string_view name = item.substr(0, equals);
      int* const target = name == "rank"         ? &result_.rank
                          : name == "world_size" ? &result_.world_size
                                                 : nullptr;
      if (!target) fail(detail::text("there is no \"", name, "\"; use ?rank=0&world_size=2"));
      if (*target >= 0) fail(detail::text("it says ", name, " twice"));
      *target = number(name, equals == item.npos ? std::string_view() : item.substr(equals + 1), 2147483647);
    }
  }

  void parse_env(std::string_view rest) {
    if (!rest.empty()) fail("nothing can follow env://");
    result_.is = init_method::kind::env;
  }

  void parse_tcp(std::string_view rest) {
    result_.is = init_method::kind::tcp;
    const auto colon = rest.rfind(':');
    if (colon == rest.npos || rest.substr(colon).find(']') != rest.npos) fail("it has no port");
    std::string_view host = rest.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']'))
      host = host.substr(1, host.size() - 2);
    else if (host.find(':') != host.npos)
      fail("an IPv6 address needs brackets: tcp://[::1]:29500");
    if (host.empty()) fail("it has no host");
    result_.host = host;
    result_.port = static_cast<std::uint16_t>(number("port", rest.substr(colon + 1), 65535));
    if (result_.port == 0) fail("port 0 is no place to meet");
  }

  void parse_file(std::string_view rest) {
    result_.is = init_method::kind::file;
    if (!rest.starts_with('/')) fail("the path must be absolute: file:///path");
    result_.path = rest;
  }

  std::string_view text_;
  init_method result_;
};

}  // namespace ddpp::detail
