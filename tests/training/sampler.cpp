// SPDX-License-Identifier: BSL-1.0
#include <ddpp/sampler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <doctest/doctest.h>
#include <numeric>
#include <vector>

#include "oracles.hpp"

namespace {

struct place {
  int rank_, size_;
  int rank() const { return rank_; }
  int size() const { return size_; }
};

using indices = std::vector<std::size_t>;

indices pass(ddpp::distributed_sampler& sampler) { return indices(sampler.begin(), sampler.end()); }

indices sorted(indices all) {
  std::sort(all.begin(), all.end());
  return all;
}

indices up_to(std::size_t count) {
  indices all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

}  // namespace

TEST_CASE("permutations are torch's") {
  for (const auto& [count, seed, order] : oracles::permutations)
    CHECK(ddpp::random_permutation(count, seed) == order);
  for (const auto& [count, seed, expected] : oracles::permutation_sums) {
    const indices order = ddpp::random_permutation(count, seed);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += i * order[i];
    CHECK(sum == expected);
  }
}

TEST_CASE("shares are torch's") {
  for (const auto& [count, shuffle, drop_last, ranks] : oracles::samplings) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ddpp::distributed_sampler sampler(place{int(r), int(ranks.size())}, count,
                                        {.shuffle = shuffle, .seed = 3, .drop_last = drop_last});
      sampler.set_epoch(2);
      CHECK(sampler.size() == ranks[r].size());
      CHECK(pass(sampler) == ranks[r]);
      CHECK(pass(sampler) == ranks[r]);  // the same epoch once more
    }
  }
  std::printf("%zu permutations and %zu samplings as by %s\n",
              oracles::permutations.size() + oracles::permutation_sums.size(), oracles::samplings.size(),
              oracles::made_by);
}

TEST_CASE("without padding each sample comes once") {
  for (const std::size_t count : {0u, 1u, 4u, 10u, 23u}) {
    for (const int ranks : {1, 2, 4, 9}) {
      indices all;
      for (int r = 0; r < ranks; ++r) {
        ddpp::distributed_sampler sampler(place{r, ranks}, count, {.padding = ddpp::sampler_padding::none});
        const indices mine = pass(sampler);
        CHECK(mine.size() == sampler.size());
        all.insert(all.end(), mine.begin(), mine.end());
      }
      CHECK(sorted(all) == up_to(count));
    }
  }
}

TEST_CASE("no samples at all") {
  ddpp::distributed_sampler sampler(place{1, 3}, 0);
  CHECK(pass(sampler).empty());
}

TEST_CASE("epochs have orders of their own") {
  ddpp::distributed_sampler sampler(place{0, 1}, 100), forgetful(place{0, 1}, 100, {.auto_epoch = true});
  const indices first = pass(sampler);
  CHECK(pass(sampler) == first);
  CHECK(pass(forgetful) == first);
  sampler.set_epoch(1);
  const indices second = pass(sampler);
  CHECK(second != first);
  CHECK(pass(forgetful) == second);
  CHECK(forgetful.epoch() == 1);
  forgetful.set_epoch(0);
  CHECK(pass(forgetful) == first);
}

TEST_CASE("an epoch goes on with another number of ranks") {
  constexpr std::size_t count = 103;
  for (const auto padding : {ddpp::sampler_padding::repeat, ddpp::sampler_padding::none}) {
    for (const int before : {1, 2, 4}) {
      for (const int after : {1, 3, 5}) {
        for (const std::size_t steps : {0u, 7u, 25u}) {
          indices seen;
          ddpp::sampler_state state;
          for (int r = 0; r < before; ++r) {
            ddpp::distributed_sampler sampler(place{r, before}, count, {.seed = 9, .padding = padding});
            sampler.set_epoch(4);
            auto at = sampler.begin();
            for (std::size_t k = 0; k < steps; ++k, ++at) seen.push_back(*at);
            state = sampler.state();
            CHECK(state.consumed == steps * std::size_t(before));
          }
          std::size_t rest = 0;
          for (int r = 0; r < after; ++r) {
            ddpp::distributed_sampler sampler(place{r, after}, count, {.seed = 9, .padding = padding});
            sampler.load(state);
            sampler.set_epoch(4);  // as a training loop does at the beginning of each epoch
            const indices mine = pass(sampler);
            rest += mine.size();
            seen.insert(seen.end(), mine.begin(), mine.end());
            CHECK(sampler.state().consumed <= count);
            CHECK(pass(sampler).size() >= count / std::size_t(after));  // the next pass is a whole one
          }
          if (padding == ddpp::sampler_padding::none) CHECK(sorted(seen) == up_to(count));
          CHECK(rest >= count - state.consumed);
          seen = sorted(seen);
          seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
          CHECK(seen == up_to(count));  // none missing
        }
      }
    }
  }
}

TEST_CASE("what does not fit is refused") {
  CHECK_THROWS_AS(
      ddpp::distributed_sampler(place{0, 2}, 5, {.drop_last = true, .padding = ddpp::sampler_padding::none}),
      ddpp::usage_error);
  ddpp::distributed_sampler sampler(place{0, 2}, 5);
  CHECK_THROWS_AS(sampler.load({.samples = 6}), ddpp::usage_error);
  CHECK_THROWS_AS(sampler.load({.seed = 1, .samples = 5}), ddpp::usage_error);
  CHECK_THROWS_AS(sampler.load({.samples = 5, .consumed = 6}), ddpp::usage_error);
}
