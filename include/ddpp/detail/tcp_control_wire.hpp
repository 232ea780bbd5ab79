// SPDX-License-Identifier: BSL-1.0
// What ranks say to each other besides data.
#pragma once

#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace ddpp::detail {

namespace control_wire {

enum class kind : std::uint8_t {
  endpoint = 1,  ///< to the hub: where `rank` listens (body)
  endpoints,     ///< to all: where everyone listens (body: a line each)
  left,          ///< `rank` has left in good order. Body: the fingerprint of its last collective, if any
  lost,          ///< `rank` has ended without a goodbye, body: how. To itself: the others go on without it
  leads,         ///< `rank`, who says so, is the hub
  deposed,       ///< `rank` is no hub any more, as it did not answer
  failed,        ///< to the hub: a proposal; to all: its ruling. `number`: the failure_kind, body: the text
  ask,           ///< `rank` wants to know where everyone stands, for its survey `number`
  state,         ///< where `rank` stands (body: standing), for the survey `number` of standing.asker
  stalled,       ///< to the hub: `rank` has been waiting for long
  vote,          ///< to the hub: `rank` votes on agreement `number` (body: agreement_wire)
  proposal,      ///< what `rank` proposed as the hub for agreement `number` (body: the verdict)
  stored,        ///< to the hub: `rank` has stored its proposal for agreement `number`
  decided        ///< the verdict of agreement `number` (body)
};

inline constexpr std::uint32_t magic = 0x4C525443;  // "CTRL"
inline constexpr std::size_t longest_body = std::size_t{1} << 20;

struct header {
  std::uint32_t magic = control_wire::magic;
  control_wire::kind kind = {};
  std::uint8_t reserved[3] = {};
  std::int32_t rank = -1;
  std::uint32_t bytes = 0;
  std::uint64_t number = 0;
};

struct standing {
  std::int32_t asker = -1;
  std::uint8_t inside = 0;
  std::uint8_t reserved[3] = {};
  fingerprint last = {};
};
static_assert(sizeof(header) == 24 && sizeof(standing) == 48);

struct message {
  control_wire::kind kind = {};
  int rank = -1;
  std::uint64_t number = 0;
  std::string body = {};
};

inline std::string encode(const message& m) {
  header head;
  head.kind = m.kind;
  head.rank = m.rank;
  head.bytes = static_cast<std::uint32_t>(m.body.size());
  head.number = m.number;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  return bytes += m.body;
}

// Messages of some kinds, and what they say.

inline message of_failure(const failure& cause) {
  return {kind::failed, cause.rank, static_cast<std::uint64_t>(cause.kind), cause.text};
}
inline failure failure_of(const message& m) {
  const bool known = m.number >= 1 && m.number <= static_cast<std::uint64_t>(failure_kind::revoked);
  return {known ? static_cast<failure_kind>(m.number) : failure_kind::revoked, m.rank, m.body};
}

inline message of_goodbye(int rank, const fingerprint& last) {
  std::string body;
  if (last.sequence != 0) body.assign(reinterpret_cast<const char*>(&last), sizeof(last));
  return {kind::left, rank, 0, std::move(body)};
}
/// Nothing: it was in no collective.
inline std::optional<fingerprint> last_words_of(const message& m) {
  fingerprint last;
  if (m.body.size() != sizeof(last)) return std::nullopt;
  std::memcpy(&last, m.body.data(), sizeof(last));
  return last;
}

inline message of_state(int rank, const rank_state& is, int asker, std::uint64_t survey) {
  standing what;
  what.asker = asker;
  what.inside = is.inside ? 1 : 0;
  what.last = is.last;
  return {kind::state, rank, survey, std::string(reinterpret_cast<const char*>(&what), sizeof(what))};
}
inline std::optional<standing> standing_of(const message& m) {
  standing what;
  if (m.body.size() != sizeof(what)) return std::nullopt;
  std::memcpy(&what, m.body.data(), sizeof(what));
  return what;
}

enum class parsed : std::uint8_t { message, incomplete, nonsense };

/// Takes the first message off `bytes`.
inline parsed parse(std::string& bytes, message& result) {
  header head;
  if (bytes.size() < sizeof(head)) return parsed::incomplete;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != magic || head.kind < kind::endpoint || head.kind > kind::decided ||
      head.bytes > longest_body) {
    return parsed::nonsense;
  }
  if (bytes.size() - sizeof(head) < head.bytes) return parsed::incomplete;
  result = {head.kind, head.rank, head.number, bytes.substr(sizeof(head), head.bytes)};
  bytes.erase(0, sizeof(head) + head.bytes);
  return parsed::message;
}

}  // namespace control_wire
}  // namespace ddpp::detail
