// SPDX-License-Identifier: BSL-1.0
// Whether all ranks are about to train the same model.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::detail {

/// 64-bit FNV-1a.
inline std::uint64_t digest_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

/// Each rank's lines, of which text[r] is the concatenation with a newline after each.
inline std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    lines.push_back(text.substr(0, end));
  }
  return lines;
}

/// "a on rank 0, rank 2; b on rank 1", if not all ranks have the same in line `at`; else empty.
inline std::string difference_in_line(const std::vector<std::vector<std::string_view>>& ranks,
                                      std::size_t at) {
  std::vector<std::string_view> versions;
  std::vector<std::string> holders;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string_view line = at < ranks[r].size() ? ranks[r][at] : std::string_view("nothing more");
    const auto known =
        static_cast<std::size_t>(std::find(versions.begin(), versions.end(), line) - versions.begin());
    if (known == versions.size()) {
      versions.push_back(line);
      holders.emplace_back();
    }
    holders[known] += (holders[known].empty() ? "rank " : ", rank ") + std::to_string(r);
  }
  if (versions.size() == 1) return {};
  std::string text;
  for (std::size_t v = 0; v < versions.size(); ++v) {
    text += (v == 0 ? "" : "; ") + std::string(versions[v]) + " on " + holders[v];
  }
  return text;
}

/// Collective; blocks. Throws `reducer_error` on all ranks, naming the first difference and the ranks, unless
/// all give the same lines. On success 16 bytes per rank travel.
template <class C>
void verify_alike(C& comm, const std::vector<std::string>& lines) {
  if (comm.size() == 1) return;
  std::string text;
  for (std::string line : lines) {
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += line + '\n';
  }
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::array<std::uint64_t, 2> mine = {digest_of(text), text.size()};
  std::vector<std::uint64_t> all(2 * ranks);
  ddpp::all_gather(comm, mine, all, in_host_memory<C>);
  std::size_t longest = 0;
  bool alike = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    alike = alike && all[2 * r] == mine[0] && all[2 * r + 1] == mine[1];
    longest = std::max(longest, static_cast<std::size_t>(all[2 * r + 1]));
  }
  if (alike) return;

  text.resize(longest);
  std::string texts(longest * ranks, '\0');
  ddpp::all_gather(comm, text, texts, in_host_memory<C>);
  std::vector<std::vector<std::string_view>> split;
  for (std::size_t r = 0; r < ranks; ++r) {
    split.push_back(
        split_lines(std::string_view(texts).substr(r * longest, static_cast<std::size_t>(all[2 * r + 1]))));
  }
  std::string found;
  for (std::size_t at = 0; at <= lines.size(); ++at) {
    const std::string difference = difference_in_line(split, at);
    if (difference.empty()) continue;
    found += (found.empty() ? "" : ". First of them: ") + difference;
    if (at > 0) break;  // the first line only says how many there are: go on to which
  }
  throw reducer_error("the ranks do not have the same model: " + found);
}

}  // namespace ddpp::detail
