// SPDX-License-Identifier: BSL-1.0
// all_reduce of float, in place, by transport, ranks and bytes.
#include <stdexcept>
#include <string>
#include <vector>

#include "rank_times.hpp"

namespace {

template <class Comm, class Algorithm>
struct sum_of_ones {
  Comm& comm;
  std::vector<float> data;
  Algorithm algorithm;

  void prepare() { std::fill(data.begin(), data.end(), static_cast<float>(comm.rank() + 1)); }
  void run() { ddpp::all_reduce(comm, data, ddpp::sum, algorithm); }
  void check() const {
    const auto n = static_cast<float>(comm.size());
    for (const float x : data) {
      if (x != n * (n + 1) / 2) throw std::runtime_error("all_reduce gave a wrong sum");
    }
  }
};

template <class Transport, class Algorithm>
void all_reduce(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  bench::time_on_ranks<Transport>(state, ranks, [&](auto& comm) {
    return sum_of_ones<std::remove_reference_t<decltype(comm)>, Algorithm>{
        comm, std::vector<float>(bytes / sizeof(float)), {}};
  });
  bench::count_bandwidth(state, static_cast<double>(bytes), 2.0 * (ranks - 1) / ranks);
}

template <class Transport, class Algorithm>
void add(const std::string& name) {
  for (const std::int64_t ranks : {2, 4}) {
    for (std::int64_t bytes = 8; bytes <= 16 << 20; bytes *= 8) {
      benchmark::RegisterBenchmark(name.c_str(), all_reduce<Transport, Algorithm>)
          ->ArgNames({"ranks", "bytes"})
          ->Args({ranks, bytes})
          ->Iterations(bench::iterations_for(bytes))
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

template <class Transport>
void add_all(const std::string& transport) {
  add<Transport, ddpp::algorithms::automatic>("all_reduce/" + transport + "/automatic");
  add<Transport, ddpp::algorithms::ring>("all_reduce/" + transport + "/ring");
}

}  // namespace

int main(int argc, char** argv) {
  add_all<ddpp::threads>("threads");
  add_all<ddpp::shm>("shm");
  add_all<ddpp::tcp>("tcp");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
