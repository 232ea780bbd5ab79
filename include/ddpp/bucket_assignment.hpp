// SPDX-License-Identifier: BSL-1.0
// Which gradients travel together, as torch's compute_bucket_assignment_by_size.
#pragma once

#include <ddpp/dtype.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace ddpp {

/// Buckets of gradients, by their indices, in the order in which they are reduced.
using bucket_layout = std::vector<std::vector<std::size_t>>;

struct gradient_size {
  ddpp::dtype dtype = dtype::float32;
  std::size_t bytes = 0;
};

/// Walks `gradients` in `order`, appends each to the open bucket of its dtype, and closes that when it has
/// reached its limit in bytes. The first bucket of each dtype has the first limit, the second the second, and
/// so on; the last limit holds for all that follow (`limits` is not empty). Buckets come as they close,
/// unfinished ones after them: of the dtype that was met last, first, as torch has them. Without an `order`
/// the walk is by index and the buckets are then sorted by smallest index.
inline bucket_layout assign_buckets_by_size(std::span<const gradient_size> gradients,
                                            std::span<const std::size_t> limits,
                                            std::span<const std::size_t> order = {}) {
  struct open_bucket {
    std::vector<std::size_t> members;
    std::size_t bytes = 0, first_seen = 0, limit = 0;  // `limit`: which one, counting buckets of this dtype
  };
  std::array<open_bucket, static_cast<std::size_t>(dtype::float8_e5m2) + 1> open;
  bucket_layout buckets;

  for (std::size_t step = 0; step < gradients.size(); ++step) {
    const std::size_t index = order.empty() ? step : order[step];
    open_bucket& bucket = open[static_cast<std::size_t>(gradients[index].dtype)];
    if (bucket.members.empty() && bucket.limit == 0) bucket.first_seen = step;
    bucket.members.push_back(index);
    bucket.bytes += gradients[index].bytes;
    if (bucket.bytes < limits[std::min(bucket.limit, limits.size() - 1)]) continue;
    buckets.push_back(std::exchange(bucket.members, {}));
    bucket.bytes = 0;
    ++bucket.limit;
  }

  std::sort(open.begin(), open.end(),
            [](const open_bucket& a, const open_bucket& b) { return a.first_seen > b.first_seen; });
  for (open_bucket& bucket : open) {
    if (!bucket.members.empty()) buckets.push_back(std::move(bucket.members));
  }
  if (order.empty()) {
    std::sort(buckets.begin(), buckets.end(),
              [](const auto& a, const auto& b) { return a.front() < b.front(); });
  }
  return buckets;
}

/// Before anything is known of the order in which gradients become ready: the last ones first.
inline bucket_layout assign_buckets_last_first(std::span<const gradient_size> gradients,
                                               std::span<const std::size_t> limits) {
  bucket_layout buckets = assign_buckets_by_size(gradients, limits);
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace ddpp
