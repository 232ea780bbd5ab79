// SPDX-License-Identifier: BSL-1.0
// A message from rank 0 to rank 1 and back, by transport and bytes: half the time is the latency.
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "rank_times.hpp"

namespace {

template <class Comm>
struct there_and_back {
  Comm& comm;
  std::vector<std::byte> data;

  void prepare() { std::fill(data.begin(), data.end(), std::byte(comm.rank() == 0 ? 42 : 0)); }
  void run() {
    if (comm.rank() == 0)
      ddpp::send(comm, data, 1), ddpp::recv(comm, data, 1);
    else
      ddpp::recv(comm, data, 0), ddpp::send(comm, data, 0);
  }
  void check() const {
    for (const std::byte x : data) {
      if (x != std::byte(42)) throw std::runtime_error("a message came back changed");
    }
  }
};

template <class Transport>
void ping_pong(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  bench::time_on_ranks<Transport>(state, 2, [&](auto& comm) {
    return there_and_back<std::remove_reference_t<decltype(comm)>>{comm, std::vector<std::byte>(bytes)};
  });
  bench::count_bandwidth(state, 2.0 * static_cast<double>(bytes), 1);
}

template <class Transport>
void add(const char* name) {
  for (std::int64_t bytes = 8; bytes <= 16 << 20; bytes *= 8) {
    benchmark::RegisterBenchmark(name, ping_pong<Transport>)
        ->ArgName("bytes")
        ->Arg(bytes)
        ->Iterations(bench::iterations_for(bytes))
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  add<ddpp::threads>("ping_pong/threads");
  add<ddpp::shm>("ping_pong/shm");
  add<ddpp::tcp>("ping_pong/tcp");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
