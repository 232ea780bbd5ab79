// SPDX-License-Identifier: BSL-1.0
#include "explanation.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp_explain {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return text;
}

std::string verb(const std::vector<int>& ranks, const char* one, const char* several) {
  return ranks.size() == 1 ? one : several;
}

std::string seconds(double length) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::max(0.0, length));
  return text;
}

/// How long the operation had been in its state when the file was written.
std::string age(const dump& of, const recorded& operation) {
  const auto at = operation.since.find(operation.state);
  return at == operation.since.end() ? "some time" : seconds(of.written - at->second);
}

const recorded* last_begun(const dump& of) {
  for (auto each = of.collectives.rbegin(); each != of.collectives.rend(); ++each) {
    if (each->begun()) return &*each;
  }
  return nullptr;
}

const recorded* find(const dump& of, std::uint64_t sequence) {
  for (const recorded& each : of.collectives) {
    if (each.sequence == sequence) return &each;
  }
  return nullptr;
}

std::vector<int> ranks_without_file(const group_dumps& group) {
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) {
    if (!group.by_rank.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

/// The first collective that is not the same on all ranks that have a record of it.
std::optional<std::string> divergence(const group_dumps& group) {
  std::map<std::uint64_t, std::map<std::string, std::vector<int>>> called;  // sequence -> what -> by whom
  for (const auto& [rank, each] : group.by_rank) {
    for (const recorded& operation : each.collectives)
      called[operation.sequence][operation.description].push_back(rank);
  }
  for (const auto& [sequence, camps] : called) {
    if (camps.size() < 2) continue;
    const auto most = std::max_element(camps.begin(), camps.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size() ||
             (a.second.size() == b.second.size() && a.second.front() > b.second.front());
    });
    std::string text = "The ranks diverged at collective #" + std::to_string(sequence) + ": ";
    for (const auto& [what, who] : camps) {
      if (what != most->first) text += list_of(who) + " called " + what + ", ";
    }
    return text + "while " + list_of(most->second) + " called " + most->first + ".";
  }
  return std::nullopt;
}

/// Who has not come to the collective that others are in.
std::optional<std::string> absence(const group_dumps& group) {
  std::uint64_t furthest = 0;
  for (const auto& [rank, each] : group.by_rank) {
    if (const recorded* const last = last_begun(each)) furthest = std::max(furthest, last->sequence);
  }
  if (furthest == 0) return std::nullopt;
  std::vector<int> inside, behind;
  std::string what, waiting, where;
  for (const auto& [rank, each] : group.by_rank) {
    const recorded* const last = last_begun(each);
    if (last != nullptr && last->sequence == furthest) {
      inside.push_back(rank);
      what = last->description;
      waiting = age(each, *last);
      continue;
    }
    behind.push_back(rank);
    where += " Rank " + std::to_string(rank) + "'s last was " +
             (last == nullptr ? std::string("none")
                              : last->description + ", " + last->state + " for " + age(each, *last)) +
             (find(each, furthest) != nullptr ? "; that one is queued behind it." : ".");
  }
  if (behind.empty()) return std::nullopt;
  return list_of(behind) + verb(behind, " has", " have") + " not come to " + what + ", which " +
         list_of(inside) + verb(inside, " has", " have") + " begun " + waiting + " before." + where;
}

std::string agreement(const group_dumps& group) {
  const recorded* last = nullptr;
  std::vector<int> running;
  for (const auto& [rank, each] : group.by_rank) {
    last = last_begun(each);
    if (last != nullptr && last->state != "done") running.push_back(rank);
  }
  if (last == nullptr) return "No rank has begun a collective.";
  if (running.empty())
    return "All these ranks have finished the same collectives; the last was " + last->description + ".";
  return "All these ranks have come to " + last->description + "; " + list_of(running) +
         verb(running, " has", " have") + " not finished it.";
}

/// Who waits for a message, and whether the other end has anything to do with it.
std::string waiting_messages(const group_dumps& group) {
  std::string text;
  for (const auto& [rank, each] : group.by_rank) {
    for (const recorded& message : each.messages) {
      if (message.state != "running" && message.state != "failed") continue;
      text += "\nRank " + std::to_string(rank) + (message.state == "failed" ? " failed in " : " waits in ") +
              message.description + ", since " + age(each, message);
      const auto other = group.by_rank.find(message.peer);
      if (other == group.by_rank.end()) continue;
      const bool met = std::any_of(
          other->second.messages.begin(), other->second.messages.end(),
          [&, me = rank](const recorded& theirs) { return theirs.peer == me && theirs.tag == message.tag; });
      if (!met)
        text += "; rank " + std::to_string(message.peer) +
                " has no record of a message with that tag to or from it";
    }
  }
  return text;
}

}  // namespace

std::string explain(const group_dumps& group) {
  const dump& any = group.by_rank.begin()->second;
  std::string text =
      "Group " + any.group + " (" + any.transport + ", " + std::to_string(group.size) + " ranks). ";
  const std::optional<std::string> diverged = divergence(group);
  const std::optional<std::string> absent = diverged ? std::nullopt : absence(group);
  text += diverged ? *diverged : absent ? *absent : agreement(group);
  if (const std::vector<int> missing = ranks_without_file(group); !missing.empty()) {
    text += " There is no file of " + list_of(missing) + ": " + verb(missing, "it has", "they have") +
            " died, or nobody asked.";
  }
  text += waiting_messages(group);
  for (const auto& [rank, each] : group.by_rank) {
    const recorded* const last = last_begun(each);
    text += "\n  rank " + std::to_string(rank) + ": " +
            (last == nullptr ? std::string("no collective")
                             : last->description + ", " + last->state + " for " + age(each, *last)) +
            ". Written because: " + each.reason.substr(0, each.reason.find('\n'));
  }
  return text;
}

}  // namespace ddpp_explain
