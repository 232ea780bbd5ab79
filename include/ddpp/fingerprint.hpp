// SPDX-License-Identifier: BSL-1.0
// What each rank says of the collective it is in. Fingerprints of one collective are equal on all ranks; the
// first unequal pair that meets ends in `mismatch_error` everywhere. They ride on messages that travel
// anyway.
#pragma once

#include <ddpp/failure.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace ddpp {

enum class collective : std::uint8_t {
  none,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  gather,
  gather_v,
  scatter,
  scatter_v,
  reduce_scatter,
  reduce_scatter_v,
  all_to_all,
  all_to_all_v,
  barrier,
  split,
  hook,
  user,
  step_given_up,
  allocate_symmetric
};

namespace detail {

// Not inside name_of, where the table would be copied at each call.
inline constexpr const char* collective_names[] = {"no operation",
                                                   "all_reduce",
                                                   "reduce",
                                                   "broadcast",
                                                   "all_gather",
                                                   "all_gather_v",
                                                   "gather",
                                                   "gather_v",
                                                   "scatter",
                                                   "scatter_v",
                                                   "reduce_scatter",
                                                   "reduce_scatter_v",
                                                   "all_to_all",
                                                   "all_to_all_v",
                                                   "barrier",
                                                   "split",
                                                   "a hook's collective",
                                                   "a collective of the user's",
                                                   "giving up a training step",
                                                   "allocate_symmetric"};

}  // namespace detail

constexpr const char* name_of(collective op) noexcept {
  return detail::collective_names[static_cast<std::uint8_t>(op)];
}

/// Trivially copyable without padding, so that backends can put it into headers and shared memory as it is.
struct fingerprint {
  std::uint64_t sequence = 0;   ///< the communicator's running number of this collective, from 1
  std::uint64_t count = 0;      ///< elements, where all ranks must bring the same number
  std::uint32_t step = 0;       ///< the collective's number inside a hook or an algorithm, from 1; else 0
  std::uint32_t reduction = 0;  ///< ddpp::sum and its like, or a hash of a custom operation's name
  std::uint32_t algorithm = 0;  ///< a hash of the algorithm's name; differing algorithms do not fit together
  std::int32_t root = -1;       ///< or -1 where there is none
  std::uint16_t element_size = 0;
  std::uint8_t type = 0;  ///< a ddpp::dtype
  collective op = collective::none;
  /// A hash of the counts of a _v collective, else 0; and in a bucket's reduction, of which bucket it is.
  std::uint32_t counts = 0;

  friend bool operator==(const fingerprint&, const fingerprint&) = default;
};
static_assert(sizeof(fingerprint) == 40 && std::is_trivially_copyable_v<fingerprint>);

/// "all_reduce #17 (sum of 1000 float)".
std::string describe(const fingerprint& print);

/// Where a rank stands, as far as the one who asks can know.
struct rank_state {
  enum class presence : std::uint8_t { unknown, here, left, lost, stopped };
  presence is = presence::unknown;
  bool inside = false;    ///< in the collective `last`, or between operations, having finished it
  fingerprint last = {};  ///< the latest collective that the rank has begun
};

/// Builds the cause that all ranks will throw: the table of who called what, and the odd ones out by majority
/// (`failure.rank` is the first of them).
failure describe_mismatch(const std::vector<rank_state>& ranks);

/// Likewise for a timeout in `waiting`: who has not come to it, and where everyone stands.
failure describe_timeout(const fingerprint& waiting, const std::vector<rank_state>& ranks,
                         std::chrono::milliseconds timeout);

}  // namespace ddpp

#include <ddpp/detail/fingerprint_text.hpp>
