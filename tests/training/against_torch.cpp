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
#include <cstdio>
#include <doctest/doctest.h>
#include <optional>
#include <span>
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

bool has(const std::string& name, const char* trait) { return name.find(trait) != std::string::npos; }

bool is_used(const std::string& name, std::size_t k, int rank, int step) {
  return !has(name, "unused") || k == 0 || k == 3 || (k == 2 && (rank + step) % 2 == 0);
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
  const bool has_buffer = has(name, "buffers");
  model<T> m(rank);
  ddpp::ddp_options options;
  options.find_unused_parameters = has(name, "unused");
  options.static_graph = has(name, "static_graph");
  options.gradient_as_bucket_view = has(name, "bucket_views");
  if (has_buffer) options.buffers = {m.offset};
  ddpp::distributed_data_parallel ddp(comm, m.parameters(), options, hook);

  const auto step = [&](int number) {
    const bool synchronised = !has(name, "accumulation") || number % 3 == 2;
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
  if (has(name, "uneven"))
    ddp.join([&] { steps(2 + 2 * rank); }, {.divide_by_live = has(name, "by_live")});
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
    if (has(expected.name, "half"))
      compare<float>(expected, ddpp::hooks::fp16_compress{}, 2e-3);
    else if (has(expected.name, "bfloat"))
      compare<float>(expected, ddpp::hooks::bf16_compress{}, 2e-2);
    else
      compare<double>(expected, ddpp::hooks::all_reduce{}, 1e-12);
  }
  std::printf("%zu trainings as by %s\n", oracles::trainings.size(), oracles::made_by);
}

TEST_CASE("buckets are laid out, and laid out anew, as by PyTorch's reducer") {
  for (const oracles::layout& expected : oracles::layouts) {
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<double>> doubles;
    std::vector<ddpp::parameter> list;
    floats.reserve(expected.tensors.size()), doubles.reserve(expected.tensors.size());
    for (const auto& [dtype, count] : expected.tensors) {
      const std::string name = std::to_string(list.size());
      const std::size_t elements = count;  // values and then gradients
      const auto add = [&](auto& block) {
        block.resize(2 * elements);
        list.emplace_back(name, std::span(block).first(elements), std::span(block).last(elements));
      };
      if (dtype == ddpp::dtype::float32)
        add(floats.emplace_back());
      else
        add(doubles.emplace_back());
    }
    CHECK_NOTHROW(ddpp::launch<ddpp::threads>(1, [&](auto& comm) {
      ddpp::ddp_options options;
      if (expected.cap_mb != 25) options.bucket_cap_mb = expected.cap_mb;
      ddpp::distributed_data_parallel ddp(comm, list, options);
      EXPECT(ddp.statistics().bucket_bytes == expected.bytes_at_first);
      for (int step = 0; step < 2; ++step) {
        ddp.prepare();
        for (const std::size_t k : expected.order) ddp.mark_ready(k);
        ddp.wait();
      }
      EXPECT(ddp.bucket_assignment() == expected.rebuilt);
    }));
  }
  std::printf("%zu layouts as by %s\n", oracles::layouts.size(), oracles::made_by);
}
