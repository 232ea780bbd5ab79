// SPDX-License-Identifier: BSL-1.0
// What failed the ranks of one host, told to those of all hosts, and the other way round.
//
// Inside a host ranks have other numbers than in the whole group. A cause found inside speaks of those. One
// that comes from the whole group is handed to the host's ranks with its rank's number raised beyond theirs.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace ddpp::detail {

inline failure told_inside(failure cause, std::size_t members) {
  cause.rank += static_cast<int>(members) + 1;
  return cause;
}
inline bool was_told_inside(const failure& cause, std::size_t members) {
  return cause.rank >= static_cast<int>(members);
}

/// "rank 1" becomes "rank 5" if that is the member numbered 1.
[[gnu::cold]] inline std::string with_ranks_of(std::string_view text, std::span<const int> members) {
  static constexpr std::string_view rank = "rank ";
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t number = std::min(text.find(rank, at), text.size() - rank.size()) + rank.size();
    int local = -1;
    const auto [end, error] = std::from_chars(text.data() + number, text.data() + text.size(), local);
    result += text.substr(at, number - at);
    at = number;
    if (error != std::errc() || local < 0 || local >= static_cast<int>(members.size())) continue;
    append_text(result, members[static_cast<std::size_t>(local)]);
    at = static_cast<std::size_t>(end - text.data());
  }
  return result;
}

/// As the whole group says it.
[[gnu::cold]] inline failure told_outside(failure cause, std::span<const int> members) {
  if (was_told_inside(cause, members.size())) {
    cause.rank -= static_cast<int>(members.size()) + 1;
    return cause;
  }
  if (cause.rank >= 0) cause.rank = members[static_cast<std::size_t>(cause.rank)];
  cause.text = with_ranks_of(cause.text, members);
  return cause;
}

}  // namespace ddpp::detail
