// SPDX-License-Identifier: BSL-1.0
// Which ranks are on which host. Ranks of a host are numbered from 0 in their own order, and hosts in the
// order of their first ranks.
//
// Rail j joins the ranks that are number j on their hosts. There are as many rails as the host with the
// fewest ranks has ranks, so that each rail touches all hosts.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/host_identity.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace ddpp::detail {

class host_layout {
 public:
  /// `host_of_rank` holds any number for each host.
  explicit host_layout(const std::vector<int>& host_of_rank) : places_(host_of_rank.size()) {
    std::vector<int> names;
    for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
      const auto known = std::find(names.begin(), names.end(), host_of_rank[rank]);
      const auto host = static_cast<std::size_t>(known - names.begin());
      if (known == names.end()) {
        names.push_back(host_of_rank[rank]);
        members_.emplace_back();
      }
      places_[rank] = {static_cast<int>(host), static_cast<int>(members_[host].size())};
      members_[host].push_back(static_cast<int>(rank));
    }
    std::size_t fewest = host_of_rank.size();
    for (const auto& host : members_) fewest = std::min(fewest, host.size());
    rails_.resize(fewest);
    for (std::size_t j = 0; j < fewest; ++j) {
      for (const auto& host : members_) rails_[j].push_back(host[j]);
    }
  }

  int ranks() const noexcept { return static_cast<int>(places_.size()); }
  int hosts() const noexcept { return static_cast<int>(members_.size()); }
  int rails() const noexcept { return static_cast<int>(rails_.size()); }

  int host_of(int rank) const noexcept { return places_[static_cast<std::size_t>(rank)].host; }
  /// The rank's number on its host.
  int local_of(int rank) const noexcept { return places_[static_cast<std::size_t>(rank)].local; }
  /// The ranks of a host, by their numbers there.
  std::span<const int> members(int host) const noexcept { return members_[static_cast<std::size_t>(host)]; }
  /// The ranks of a rail, by host.
  std::span<const int> rail(int number) const noexcept { return rails_[static_cast<std::size_t>(number)]; }

 private:
  struct place {
    int host = 0, local = 0;
  };
  std::vector<place> places_;
  std::vector<std::vector<int>> members_, rails_;
};

/// Those go together who can share memory with the first of them in one of the two ways: by opening what it
/// has open, or by a name. With `threads`, those who are in the same process.
inline host_layout layout_of(std::span<const host_identity> ranks, launch_kind kind) {
  std::vector<int> host(ranks.size(), -1);
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    if (host[first] >= 0) continue;
    const auto fit = [&](auto sees) {
      std::vector<std::size_t> found{first};
      for (std::size_t other = first + 1; other < ranks.size(); ++other) {
        if (host[other] < 0 && sees(ranks[other], ranks[first])) found.push_back(other);
      }
      return found;
    };
    std::vector<std::size_t> members;
    if (kind == launch_kind::threads) {
      members = fit([](const auto& a, const auto& b) { return a.is_same_process(b); });
    } else {
      members = fit([](const auto& a, const auto& b) { return a.sees_files_of(b); });
      auto others = fit([](const auto& a, const auto& b) { return a.sees_process_of(b); });
      if (others.size() > members.size()) members = std::move(others);
    }
    for (const std::size_t rank : members) host[rank] = static_cast<int>(first);
  }
  return host_layout(host);
}

}  // namespace ddpp::detail
