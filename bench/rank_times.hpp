// SPDX-License-Identifier: BSL-1.0
// Google Benchmark sees one process; ranks are several. So ranks time a fixed number of operations into
// memory that all share, and the benchmark then reports, per operation, the slowest rank's time.
#pragma once

#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstddef>

#include "shared_array.hpp"

namespace bench {

/// Starts `ranks` ranks, each of which calls make_operation(comm) for an object with prepare(), run() and
/// check().
template <class Transport, class MakeOperation>
void time_on_ranks(benchmark::State& state, int ranks, MakeOperation make_operation) {
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  const perf::shared_array<double> seconds(iterations * static_cast<std::size_t>(ranks));
  ddpp::launch<Transport>(ranks, [&](auto& comm) {
    auto operation = make_operation(comm);
    const auto mine =
        seconds.elements().subspan(iterations * static_cast<std::size_t>(comm.rank()), iterations);
    for (int warm_up = 0; warm_up < 2; ++warm_up) operation.prepare(), operation.run();
    for (double& time : mine) {
      operation.prepare();
      ddpp::barrier(comm);
      const auto begin = std::chrono::steady_clock::now();
      operation.run();
      time = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    operation.check();
  });
  std::size_t i = 0;
  for (auto _ : state) {
    double slowest = 0;
    for (std::size_t at = i++; at < seconds.elements().size(); at += iterations) {
      slowest = std::max(slowest, seconds.elements()[at]);
    }
    state.SetIterationTime(slowest);
  }
}

/// Bytes per second, as nccl-tests defines the two; `bus_factor` is what turns the one into the other.
inline void count_bandwidth(benchmark::State& state, double bytes, double bus_factor) {
  using benchmark::Counter;
  state.counters["algbw"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  state.counters["busbw"] = Counter(bytes * bus_factor, Counter::kIsIterationInvariantRate);
}

/// Few operations of large sizes, many of small ones.
inline benchmark::IterationCount iterations_for(std::int64_t bytes) {
  return std::clamp<benchmark::IterationCount>((std::int64_t{256} << 20) / bytes, 20, 2000);
}

}  // namespace bench
