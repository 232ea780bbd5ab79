// SPDX-License-Identifier: BSL-1.0
// What a model's training has cost in communication.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddpp {

/// What a reducer has measured. Times are sums over all steps. On a device's transport buckets count as
/// finished when they have been issued, and times are the host's: they do not tell of overlap.
struct reducer_statistics {
  std::size_t buckets_finished_this_step = 0;
  std::uint64_t steps = 0;                    ///< finished, those under no_sync not counted
  std::chrono::nanoseconds waiting{0};        ///< inside wait()
  std::chrono::nanoseconds communicating{0};  ///< in hooks, and in writing averages back
  std::vector<std::size_t> bucket_bytes = {};

  /// The share of communication that was hidden behind computation, 0 to 1.
  double overlap() const noexcept {
    if (communicating.count() <= 0) return 0;
    return std::max(0.0,
                    1 - static_cast<double>(waiting.count()) / static_cast<double>(communicating.count()));
  }
};

}  // namespace ddpp
