// SPDX-License-Identifier: BSL-1.0
// Votes and verdicts as they travel in the bodies of control messages. What does not decode is nonsense, and
// ends the connection that it came on.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace ddpp::detail {

/// A vote as its receiver keeps it.
struct cast_vote {
  std::uint64_t number = 0;  ///< of the agreement; 0: none
  ddpp::ballot ballot = {};
  deadline until = {};
};

namespace agreement_wire {

/// Before the note. Clocks differ between hosts, so that it is the time left that travels.
struct vote_head {
  std::int64_t milliseconds_left = 0;
  std::uint8_t decision = 0;
  std::uint8_t yes = 0;
  std::uint8_t reserved[6] = {};
};
/// Before one attendance per rank, and the note.
struct verdict_head {
  std::uint32_t ranks = 0;
  std::uint8_t yes = 0;
  std::uint8_t decision = 0;
  std::uint8_t alike = 0;
  std::uint8_t reserved = 0;
};
static_assert(sizeof(vote_head) == 16 && sizeof(verdict_head) == 8);

inline constexpr std::chrono::milliseconds longest_time = std::chrono::hours(24 * 365);

inline std::string encode(const cast_vote& vote, deadline now) {
  vote_head head;
  const auto left = std::clamp<deadline::duration>(vote.until - now, {}, longest_time);
  head.milliseconds_left = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  head.decision = static_cast<std::uint8_t>(vote.ballot.decision);
  head.yes = vote.ballot.yes ? 1 : 0;
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + vote.ballot.note;
}

inline std::optional<cast_vote> decode_vote(std::uint64_t number, const std::string& body, deadline now) {
  vote_head head;
  if (number == 0 || body.size() < sizeof(head) || body.size() > sizeof(head) + longest_note) return {};
  std::memcpy(&head, body.data(), sizeof(head));
  if (head.decision > static_cast<std::uint8_t>(decision::shrink) || head.yes > 1) return {};
  if (head.milliseconds_left < 0 || head.milliseconds_left > longest_time.count()) return {};
  return cast_vote{number,
                   {static_cast<decision>(head.decision), head.yes == 1, body.substr(sizeof(head))},
                   now + std::chrono::milliseconds(head.milliseconds_left)};
}

inline std::string encode(const verdict& what) {
  verdict_head head;
  head.ranks = static_cast<std::uint32_t>(what.ranks.size());
  head.yes = what.yes ? 1 : 0;
  head.decision = static_cast<std::uint8_t>(what.decision);
  head.alike = what.alike ? 1 : 0;
  std::string body(reinterpret_cast<const char*>(&head), sizeof(head));
  for (const attendance each : what.ranks) body += static_cast<char>(each);
  return body += what.note;
}

inline std::optional<verdict> decode_verdict(const std::string& body, std::size_t size) {
  verdict_head head;
  if (body.size() < sizeof(head) + size || body.size() > sizeof(head) + size + longest_note) return {};
  std::memcpy(&head, body.data(), sizeof(head));
  if (head.ranks != size || head.yes > 1 || head.alike > 1) return {};
  if (head.decision > static_cast<std::uint8_t>(decision::shrink)) return {};
  verdict result;
  for (std::size_t r = 0; r < size; ++r) {
    const auto each = static_cast<std::uint8_t>(body[sizeof(head) + r]);
    if (each > static_cast<std::uint8_t>(attendance::voted)) return {};
    result.ranks.push_back(static_cast<attendance>(each));
  }
  result.yes = head.yes == 1;
  result.decision = static_cast<decision>(head.decision);
  result.alike = head.alike == 1;
  result.note = body.substr(sizeof(head) + size);
  return result;
}

}  // namespace agreement_wire
}  // namespace ddpp::detail
