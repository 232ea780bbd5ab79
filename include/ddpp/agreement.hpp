// SPDX-License-Identifier: BSL-1.0
// What the members of a group say, and all hear, when they decide something together whatever has happened to
// some of them: the consensus under agree, recover and shrink (MPI ULFM's MPI_Comm_agree with a note).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddpp {

/// What a decision is about, the weakest first: where ranks name different ones, the strongest counts.
enum class decision : std::uint8_t { agree, recover, shrink };

constexpr const char* name_of(decision what) {
  return what == decision::agree ? "agree" : what == decision::recover ? "recover" : "shrink";
}

inline constexpr std::size_t longest_note = 255;  ///< bytes

struct ballot {
  ddpp::decision decision = {};
  bool yes = true;
  std::string note = {};  ///< at most `longest_note` bytes
};

/// How a rank took part in a decision.
enum class attendance : std::uint8_t {
  absent,  ///< there, as far as anyone knows, but did not vote in time
  gone,    ///< died or left before it voted
  voted
};

/// The same on all ranks.
struct verdict {
  std::vector<attendance> ranks = {};  ///< by rank
  bool yes = false;                    ///< whether all who voted said so
  ddpp::decision decision = {};        ///< the strongest that was named
  bool alike = true;                   ///< whether all who voted named that one
  std::string note = {};               ///< of the lowest rank that voted
};

}  // namespace ddpp
