// SPDX-License-Identifier: BSL-1.0
#include <ddpp/bucket_assignment.hpp>

#include <cstddef>
#include <cstdio>
#include <doctest/doctest.h>
#include <vector>

#include "oracles.hpp"

namespace {

using ddpp::bucket_layout;
using sizes = std::vector<ddpp::gradient_size>;
using limits = std::vector<std::size_t>;
constexpr auto f16 = ddpp::dtype::float16, f32 = ddpp::dtype::float32;

}  // namespace

TEST_CASE("a bucket closes when it reaches its limit") {
  const sizes four(4, {f32, 40});
  CHECK(ddpp::assign_buckets_by_size(four, limits{80}) == bucket_layout{{0, 1}, {2, 3}});
  CHECK(ddpp::assign_buckets_by_size(four, limits{81}) == bucket_layout{{0, 1, 2}, {3}});
  CHECK(ddpp::assign_buckets_by_size(four, limits{1}) == bucket_layout{{0}, {1}, {2}, {3}});
  CHECK(ddpp::assign_buckets_by_size(four, limits{1000}) == bucket_layout{{0, 1, 2, 3}});
  CHECK(ddpp::assign_buckets_by_size(sizes{}, limits{1000}).empty());
}

TEST_CASE("the first bucket has the first limit, the rest the last") {
  const sizes six(6, {f32, 40});
  CHECK(ddpp::assign_buckets_by_size(six, limits{40, 80}) == bucket_layout{{0}, {1, 2}, {3, 4}, {5}});
}

TEST_CASE("each dtype has buckets and limits of its own, ordered by smallest index") {
  const sizes mixed = {{f32, 40}, {f16, 40}, {f32, 40}, {f16, 40}, {f16, 40}, {f32, 40}};
  CHECK(ddpp::assign_buckets_by_size(mixed, limits{40, 80}) == bucket_layout{{0}, {1}, {2, 5}, {3, 4}});
}

TEST_CASE("at first the last gradients travel first") {
  CHECK(ddpp::assign_buckets_last_first(sizes(5, {f32, 40}), limits{80}) ==
        bucket_layout{{4}, {2, 3}, {0, 1}});
}

TEST_CASE("with an order, buckets come as they close") {
  const sizes mixed = {{f32, 40}, {f16, 10}, {f32, 40}, {f16, 10}, {f32, 40}};
  const std::vector<std::size_t> order = {4, 3, 2, 1, 0};
  CHECK(ddpp::assign_buckets_by_size(mixed, limits{80}, order) == bucket_layout{{4, 2}, {3, 1}, {0}});
}

TEST_CASE("as torch assigns them, by index and in another order") {
  for (const auto& [gradients, limits, buckets, order, in_order] : oracles::bucketings) {
    CHECK(ddpp::assign_buckets_by_size(gradients, limits) == buckets);
    CHECK(ddpp::assign_buckets_by_size(gradients, limits, order) == in_order);
  }
  std::printf("%zu assignments as by %s\n", 2 * oracles::bucketings.size(), oracles::made_by);
}
