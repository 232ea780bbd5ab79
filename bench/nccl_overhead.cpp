// SPDX-License-Identifier: BSL-1.0
// What ddpp adds to ncclAllReduce: the same buffers, both in turn, at each level of checking. NCCL is called
// as programs call it: a blocking communicator, on the caller's own stream.
//
//   nvcc -std=c++20 -O2 -Iinclude bench/nccl_overhead.cpp -o nccl_overhead -lnccl
//   ddpp-run --nproc-per-node 2 ./nccl_overhead [ROUNDS [MOST_BYTES]]      without a launcher: one rank
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <exception>
#include <memory>
#include <nccl.h>
#include <stdexcept>
#include <vector>

#include "../examples/cuda_kernels.hpp"

namespace {

using communicator = ddpp::communicator<ddpp::nccl>;
using clock_type = std::chrono::steady_clock;

/// Microseconds per call of the rank for which it takes longest: until the host may go on, and until it is
/// done.
struct call_time {
  double enqueue = 0, whole = 0;
};

double slowest(communicator& comm, double mine) {
  const device_array<double> of_all(std::vector<double>{mine});
  ddpp::all_reduce(comm, of_all.span(), ddpp::max);
  check(cudaStreamSynchronize(comm.transport().stream()));
  check(cudaMemcpy(&mine, of_all.data(), sizeof mine, cudaMemcpyDeviceToHost));
  return mine;
}

template <class F>
call_time time_of(communicator& comm, int calls, F&& call) {
  const auto since = [calls](clock_type::time_point begin) {
    return std::chrono::duration<double, std::micro>(clock_type::now() - begin).count() / calls;
  };
  const cudaStream_t stream = comm.transport().stream();
  call();
  check(cudaStreamSynchronize(stream));
  ddpp::barrier(comm);
  const auto begin = clock_type::now();
  for (int i = 0; i < calls; ++i) call();
  const double enqueue = since(begin);
  check(cudaStreamSynchronize(stream));
  const double whole = since(begin);
  return {slowest(comm, enqueue), slowest(comm, whole)};
}

class plain_nccl {
 public:
  explicit plain_nccl(communicator& comm) : stream_(comm.transport().stream()) {
    struct named_id {  // NCCL's own type has no name, at which nvcc 13.0 fails in a vector of them
      ncclUniqueId id = {};
    };
    std::vector<named_id> id(1);
    if (comm.rank() == 0) check_nccl(ncclGetUniqueId(&id[0].id));
    const device_array<named_id> rank_0s(id);
    ddpp::broadcast(comm, rank_0s.span(), 0);
    check(cudaStreamSynchronize(stream_));
    check(cudaMemcpy(id.data(), rank_0s.data(), sizeof(named_id), cudaMemcpyDeviceToHost));
    check_nccl(ncclCommInitRank(&comm_, comm.size(), id[0].id, comm.rank()));
  }
  plain_nccl(const plain_nccl&) = delete;
  plain_nccl& operator=(const plain_nccl&) = delete;
  ~plain_nccl() { static_cast<void>(ncclCommDestroy(comm_)); }

  void all_reduce(ddpp::device_span<float> in, ddpp::device_span<float> out) const {
    check_nccl(ncclAllReduce(in.data(), out.data(), in.size(), ncclFloat32, ncclSum, comm_, stream_));
  }

 private:
  static void check_nccl(ncclResult_t result) {
    if (result != ncclSuccess) throw std::runtime_error(ncclGetErrorString(result));
  }
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

/// The quartile-th quarter of the values.
double quartile(std::vector<double> values, std::size_t quarter) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * quarter / 4];
}

void print_heading(const communicator& comm, int rounds) {
  std::printf("all_reduce of float, %d ranks, %d rounds: medians [quartiles]\n", comm.size(), rounds);
  std::printf("%36s%30s%52s\n", "ncclAllReduce", "ddpp: enqueue us", "ddpp: times as fast");
  std::printf("%10s%17s%9s%10s%10s%10s", "bytes", "enqueue us", "GB/s", "off", "sampled", "always");
  std::printf("%18s%18s%18s\n", "off", "sampled", "always");
}

void run(int rounds, std::size_t most) {
  take_device(ddpp::local_rank());
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  const std::unique_ptr<CUstream_st, decltype(&cudaStreamDestroy)> owner(stream, cudaStreamDestroy);
  const auto join = [&](ddpp::nccl_checks level) {
    return ddpp::init<ddpp::nccl>({}, {.stream = stream, .checks = level});
  };
  communicator off = join(ddpp::nccl_checks::off), sampled = join(ddpp::nccl_checks::sampled),
               always = join(ddpp::nccl_checks::always);
  const std::array levels{&off, &sampled, &always};
  const plain_nccl plain(off);
  if (off.rank() == 0) print_heading(off, rounds);
  for (std::size_t bytes = 8; bytes <= most; bytes = bytes == most ? most + 1 : std::min(bytes * 8, most)) {
    const device_array<float> in(bytes / sizeof(float)), out(bytes / sizeof(float));
    const double one = time_of(off, 2, [&] { plain.all_reduce(in.span(), out.span()); }).whole;
    const int calls = static_cast<int>(std::clamp(20'000 / one, 1.0, 200.0));  // the same on all ranks
    std::vector<double> enqueue, whole;
    std::array<std::vector<double>, levels.size()> ddpp_enqueue, times_as_fast;
    for (int round = 0; round < rounds; ++round) {
      const call_time alone = time_of(off, calls, [&] { plain.all_reduce(in.span(), out.span()); });
      enqueue.push_back(alone.enqueue);
      whole.push_back(alone.whole);
      for (std::size_t level = 0; level < levels.size(); ++level) {
        const call_time ours =
            time_of(off, calls, [&] { ddpp::all_reduce(*levels[level], in.span(), out.span()); });
        ddpp_enqueue[level].push_back(ours.enqueue);
        times_as_fast[level].push_back(alone.whole / ours.whole);
      }
    }
    if (off.rank() != 0) continue;
    std::printf("%10zu%17.2f%9.3f", bytes, quartile(enqueue, 2),
                static_cast<double>(bytes) / quartile(whole, 2) / 1000);
    for (const auto& each : ddpp_enqueue) std::printf("%10.2f", quartile(each, 2));
    for (const auto& each : times_as_fast)
      std::printf("  %5.2f [%.2f %.2f]", quartile(each, 2), quartile(each, 1), quartile(each, 3));
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9,
        argc > 2 ? static_cast<std::size_t>(std::max(8, std::atoi(argv[2]))) : std::size_t{256} << 20);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_overhead: %s\n", error.what());
    return 1;
  }
}
