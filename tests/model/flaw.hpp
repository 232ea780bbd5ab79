// SPDX-License-Identifier: BSL-1.0
// What is changed in a protocol to see that it matters, and that the model notices.
#pragma once

namespace model {

struct flaw {
  enum kind {
    none,
    // In the memory orders:
    release_acquire,  ///< all that carries data, but nothing is sequentially consistent
    relaxed_stores,   ///< of one thread
    relaxed_loads,    ///< of one thread
    lost_increments,  ///< fetch_add does not add
    // In the steps:
    no_second_look,  ///< between announcing that one parks and sleeping
    no_ring,         ///< a leader is not told that it has to ask for room
    one_ballot,      ///< instead of two used in turn
    one_slot,        ///< at one place in each round, instead of one after the other
    short_room,      ///< for two of the largest slots, instead of three
    no_begin_round,  ///< a slot is written again without asking who has read it
    late_read,       ///< of a slot of the round before, after arriving in this one
    no_reductions    ///< a buffer is used again while others may still be at it
  };
  kind what = none;
  unsigned thread = 0;
};

/// Of the test that runs.
inline flaw current_flaw;

inline bool has(flaw::kind what) { return current_flaw.what == what; }

}  // namespace model
