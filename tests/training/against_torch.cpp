// SPDX-License-Identifier: BSL-1.0
// The same training as in torch_training.py, which says what PyTorch's DistributedDataParallel makes of it.
#include <ddpp/all_gather.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/launch.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <vector>

#include "../support/ranks.hpp"
#include "oracles.hpp"

namespace {

constexpr std::size_t sizes[] = {5, 1, 17, 8};

double factor(std::size_t k, std::size_t i, int rank, int step) {
  const int number = 7 * int(k) + 3 * int(i) + 5 * rank + 11 * step;
  return (number % 13 - 6) / 8.0;
}

bool is_used(const std::string& name, std::size_t k, int rank, int step) {
  return name != "unused" || k == 0 || k == 3 || (k == 2 && (rank + step) % 2 == 0);
}

template <class T>
struct model {
  std::vector<std::vector<T>> weights, gradients;
  std::vector<T> offset;

  explicit model(int rank) : offset(1, T(rank)) {
    for (std::size_t k = 0; k < std::size(sizes); ++k) {
      std::vector<T> w;
      for (std::size_t i = 0; i < sizes[k]; ++i) w.push_back(T(double(k + i) / 4 + rank));
      weights.push_back(w);
      gradients.emplace_back(sizes[k]);
    }
  }
  std::vector<ddpp::parameter> parameters() {
    std::vector<ddpp::parameter> list;
    for (std::size_t k = 0; k < weights.size(); ++k)
      list.emplace_back("weights." + std::to_string(k), weights[k], gradients[k]);
    return list;
  }
};

/// Returns this rank's parameters.
template <class T, class Hook, class C>
std::vector<T> train(C& comm, const std::string& name, Hook hook) {
  const int rank = comm.rank();
  const bool has_buffer = name == "buffers";
  model<T> m(rank);
  ddpp::ddp_options options;
  options.find_unused_parameters = name == "unused";
  options.static_graph = name == "static_graph";
  options.gradient_as_bucket_view = name == "bucket_views";
  if (has_buffer) options.buffers = {m.offset};
  ddpp::distributed_data_parallel ddp(comm, m.parameters(), options, hook);

  const bool is_uneven = name.starts_with("uneven");
  const auto step = [&](int number) {
    const bool synchronised = name != "accumulation" || number % 3 == 2;
    std::optional<decltype(ddp.no_sync())> unsynchronised;
    if (!synchronised) unsynchronised.emplace(ddp.no_sync());
    ddp.prepare();
    for (std::size_t k = m.weights.size(); k-- > 0;) {
      if (!is_used(name, k, rank, number)) continue;
      const auto gradient = ddp.template grad<T>(k);
      for (std::size_t i = 0; i < sizes[k]; ++i) {
        gradient[i] += T(factor(k, i, rank, number)) * m.weights[k][i] * T(2);
        if (has_buffer) gradient[i] += m.offset[0];
      }
      ddp.mark_ready(k);
    }
    ddp.wait();
    if (has_buffer) m.offset[0] += T(rank + 1);
    if (!synchronised) return;
    const auto unused = ddp.globally_unused();
    for (std::size_t k = 0; k < m.weights.size(); ++k) {
      const auto gradient = ddp.template grad<T>(k);
      if (std::find(unused.begin(), unused.end(), k) == unused.end()) {
        for (std::size_t i = 0; i < sizes[k]; ++i) m.weights[k][i] -= T(0.125) * gradient[i];
      }
      std::fill(gradient.begin(), gradient.end(), T(0));
    }
  };
  const auto steps = [&](int count) {
    for (int number = 0; number < count; ++number) step(number);
  };
  if (is_uneven)
    ddp.join([&] { steps(2 + 2 * rank); }, {.divide_by_live = name == "uneven_by_live"});
  else
    steps(6);
  std::vector<T> all;
  for (const auto& w : m.weights) all.insert(all.end(), w.begin(), w.end());
  return all;
}

template <class T, class Hook>
void compare(const oracles::training& expected, Hook hook, double tolerance) {
  CAPTURE(expected.name);
  CHECK_NOTHROW(ddpp::launch<ddpp::threads>(expected.ranks, [&](auto& comm) {
    const std::vector<T> mine = train<T>(comm, expected.name, hook);
    std::vector<T> all(mine.size() * std::size_t(comm.size()));
    ddpp::all_gather(comm, mine, all);
    EXPECT(all.size() == expected.parameters.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT(std::abs(double(all[i]) - expected.parameters[i]) < tolerance);
  }));
}

}  // namespace

TEST_CASE("after training, parameters are as with PyTorch's DistributedDataParallel") {
  for (const oracles::training& expected : oracles::trainings) {
    if (std::string(expected.name) == "half")
      compare<float>(expected, ddpp::hooks::fp16_compress{}, 2e-3);
    else
      compare<double>(expected, ddpp::hooks::all_reduce{}, 1e-12);
  }
}
