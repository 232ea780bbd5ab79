// SPDX-License-Identifier: BSL-1.0
// The training layer on the double of CUDA and NCCL: the suite of all transports, and what only streams can
// get wrong.
#include <ddpp/backends/threads.hpp>
#include <ddpp/metrics.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/fake_cuda.hpp"
#include "device_vector.hpp"

#define TRANSPORT ddpp::nccl
#include "../training/reducer_cases.hpp"

namespace {

using communicator = ddpp::communicator<ddpp::nccl>;
using training::contains;
using training::text_of;
template <class E>
using array = training::array<ddpp::nccl, E>;

/// Sets a flag of the double for as long as it lives, on all ranks.
template <class C>
class setting {
 public:
  setting(C& comm, std::atomic<bool>& flag) : comm_(comm), flag_(flag) {
    cudaDeviceSynchronize();  // nothing from before rests
    std::atomic<int>& arrived = arrivals[static_cast<std::size_t>(comm.size())];
    const int last = arrived++ / comm.size() * comm.size() + comm.size();
    while (arrived < last) std::this_thread::yield();
    flag_ = true;
  }
  ~setting() {
    ddpp::barrier(comm_);
    flag_ = false;
    ddpp::barrier(comm_);
  }
  setting(const setting&) = delete;

 private:
  /// By the number of ranks. A barrier of ddpp's would put something on the streams.
  static inline std::array<std::atomic<int>, 8> arrivals{};

  C& comm_;
  std::atomic<bool>& flag_;
};

/// A model of two parameters whose gradients a stream computes.
struct two_layers {
  array<float> values = array<float>(400), first = array<float>(300), second = array<float>(100),
               computed = array<float>(400), applied = array<float>(400);

  std::vector<ddpp::parameter> list() {
    return {
        {"first", ddpp::device_span<float>(values.data(), 300), ddpp::device_span<float>(first.data(), 300)},
        {"second", ddpp::device_span<float>(values.data() + 300, 100),
         ddpp::device_span<float>(second.data(), 100)}};
  }
};

template <class C>
void copy(C& comm, float* to, const float* from, std::size_t count) {
  cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, comm.stream());
}

/// A step in which nothing waits on the host: the backward pass is copies on the program's stream, which
/// rests until wait() has returned and the reductions have had the time that they need where they do not wait
/// for it; the optimizer is a copy. Returns what that has got.
template <class C, class Hook = ddpp::hooks::all_reduce>
array<float> step_on_stream(C& comm, bool view, bool overtakes, Hook hook = {}) {
  two_layers model;
  ddpp::distributed_data_parallel ddp(
      comm, model.list(), {.bucket_cap_mb = training::kib, .gradient_as_bucket_view = view}, hook);
  std::ranges::fill(model.computed, float(comm.rank()));
  {
    const setting resting(comm, fake_cuda::default_streams_rest);
    ddp.prepare();
    copy(comm, ddp.template grad<float>(1).data(), model.computed.data(), 100);
    ddp.mark_ready(1);
    copy(comm, ddp.template grad<float>(0).data(), model.computed.data() + 100, 300);
    ddp.mark_ready(0);
    ddp.wait();
    if (overtakes) cudaStreamSynchronize(comm.transport().internal_stream());
    copy(comm, model.applied.data(), ddp.template grad<float>(0).data(), 300);
    copy(comm, model.applied.data() + 300, ddp.template grad<float>(1).data(), 100);
  }
  cudaStreamSynchronize(comm.stream());
  return model.applied;
}

bool are_all(const array<float>& values, float expected) {
  return std::ranges::all_of(values, [&](float x) { return x == expected; });
}

/// Scales by a kernel of its own.
struct scales_itself {
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) const {
    EXPECT(comm.stream() == comm.transport().internal_stream());
    const auto gradients = bucket.data<float>();
    const auto scale = float(bucket.scale());
    fake_kernels::launch(comm.stream(), [=] {
      for (float& x : gradients) x *= scale;
    });
    ddpp::all_reduce(comm, gradients);
  }
};

/// A transport as it would be under a reducer that forgot on which stream gradients are computed. Its copies
/// can be made to fail on the calling thread.
struct hasty : ddpp::nccl {
  static inline thread_local bool is_broken = false;

  using nccl::nccl;
  void copy(std::span<const std::byte> from, std::span<std::byte> to, cudaStream_t of) {
    if (of != stream()) return nccl::copy(from, to, of);
    if (is_broken) throw ddpp::resource_error("no more");
    cudaStream_t another = nullptr;
    cudaStreamCreateWithPriority(&another, cudaStreamNonBlocking, 0);
    nccl::copy(from, to, another);
    cudaStreamSynchronize(another);
    cudaStreamDestroy(another);
  }
};

/// Ranks as threads, with options of the transport's.
template <class F>
void on_ranks_with(const ddpp::nccl::options& options, int n, F f) {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        communicator comm(support::bootstrap_of(rank, n, store), options);
        f(comm);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const std::exception_ptr& each : errors) {
    if (each) std::rethrow_exception(each);
  }
}

}  // namespace

TEST_CASE("a step on a stream: nothing waits on the host, and the order of streams is kept") {
  for (const bool view : {false, true}) {
    ddpp::launch<ddpp::nccl>(3, [&](auto& comm) { EXPECT(are_all(step_on_stream(comm, view, false), 1)); });
  }
}

TEST_CASE("without event waits buckets are reduced before their gradients have been computed") {
  for (const bool view : {false, true}) {
    ddpp::launch<ddpp::nccl>(2, [&](auto& comm) {
      const setting broken(comm, fake_cuda::without_event_waits);
      EXPECT(!are_all(step_on_stream(comm, view, true), 0.5f));
    });
  }
}

TEST_CASE("gradients that are copied on another stream than theirs are old ones") {
  ddpp::launch<hasty>(2, [](auto& comm) { EXPECT(!are_all(step_on_stream(comm, false, false), 0.5f)); });
}

TEST_CASE("a gradient that cannot be copied ends the step for all") {
  ddpp::launch<hasty>(2, [](auto& comm) {
    two_layers model;
    ddpp::distributed_data_parallel ddp(comm, model.list(), {.bucket_cap_mb = training::kib});
    ddp.prepare();
    if (comm.rank() == 1) {
      ddp.mark_ready(1);
      hasty::is_broken = true;
      text_of<ddpp::resource_error>([&] { ddp.mark_ready(0); });
      hasty::is_broken = false;
      EXPECT(contains(text_of<training::reducer_error>([&] { ddp.wait(); }), "(\"first\") did not come"));
    } else {
      text_of<ddpp::group_error>([&] { ddp.mark_ready(1), ddp.mark_ready(0), ddp.wait(); });
    }
  });
}

TEST_CASE("what weighs nothing is cleared after it has been computed") {
  ddpp::launch<ddpp::nccl>(2, [](auto& comm) {
    two_layers model;
    training::distributed_data_parallel ddp(comm, model.list(), {.gradient_as_bucket_view = true});
    ddp.prepare({.weight = comm.rank()});
    for (const std::size_t i : {1u, 0u}) {
      fake_kernels::launch(comm.stream(), [gradient = ddp.template grad<float>(i), rank = comm.rank()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // what does not wait goes first
        std::ranges::fill(gradient, rank == 0 ? std::nanf("") : 3.0f);
      });
      ddp.mark_ready(i);
    }
    ddp.wait();
    EXPECT(std::ranges::all_of(ddp.template grad<float>(0), [](float x) { return x == 3; }));
  });
}

TEST_CASE("a hook's kernels are on the stream of its collectives") {
  ddpp::launch<ddpp::nccl>(
      2, [](auto& comm) { EXPECT(are_all(step_on_stream(comm, false, false, scales_itself{}), 0.5f)); });
}

TEST_CASE("bucket views: a step copies nothing") {
  ddpp::launch<ddpp::nccl>(2, [](auto& comm) {
    two_layers model;
    training::distributed_data_parallel ddp(
        comm, model.list(), {.bucket_cap_mb = training::kib, .gradient_as_bucket_view = true});
    training::step(ddp, {1, 0});
    training::step(ddp, {1, 0});  // laid out anew
    ddpp::barrier(comm);
    const int before = fake_cuda::enqueued;
    training::step(ddp, {1, 0});
    ddpp::barrier(comm);
    EXPECT(fake_cuda::enqueued == before);
  });
}

TEST_CASE("blocking_wait: averages are there when wait() returns, those of unused parameters too") {
  on_ranks_with({.error_mode = ddpp::nccl_error_mode::blocking_wait}, 2, [](communicator& comm) {
    two_layers model;
    ddpp::distributed_data_parallel ddp(comm, model.list(), {.find_unused_parameters = true});
    for (int s = 0; s < 3; ++s) {
      std::ranges::fill(model.first, float(comm.rank() + s));
      std::ranges::fill(model.second, 8.0f);
      ddp.prepare();
      if (comm.rank() == 1) ddp.mark_ready(1);
      ddp.mark_ready(0);
      ddp.wait();
      EXPECT(are_all(model.first, float(s) + 0.5f) && are_all(model.second, 4));
    }
  });
}

TEST_CASE("memory that the transport does not move is refused on all ranks") {
  ddpp::launch<ddpp::nccl>(2, [](auto& comm) {
    two_layers model;
    std::vector<float> host(300);
    const auto refused = [&]<class Error>(std::type_identity<Error>, auto list, ddpp::ddp_options options) {
      return text_of<Error>([&] { ddpp::distributed_data_parallel ddp(comm, list, std::move(options)); });
    };
    constexpr std::type_identity<ddpp::usage_error> by_all;
    const auto device = std::span(model.first);
    EXPECT(contains(refused(by_all, std::vector<ddpp::parameter>{{"w", host, device}}, {}),
                    "the values of parameter 0 (\"w\"): the device cannot reach"));
    EXPECT(contains(refused(by_all, std::vector<ddpp::parameter>{{"w", device, host}}, {}),
                    "the gradient of parameter 0 (\"w\")"));
    EXPECT(contains(refused(by_all, model.list(), {.buffers = {host}}), "buffer 0"));
    const std::vector<ddpp::parameter> on_one{{"w", comm.rank() == 1 ? std::span(host) : device, device}};
    EXPECT(contains(
        refused(std::type_identity<ddpp::reducer_error>{}, on_one, {.gradient_as_bucket_view = true}),
        "cannot reach this memory; pass a ddpp::device_span or allocate_symmetric's on rank 1"));
    // With views the memory given for gradients is not used.
    ddpp::distributed_data_parallel view(comm, std::vector<ddpp::parameter>{{"w", device, host}},
                                         {.gradient_as_bucket_view = true});
  });
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    two_layers model;
    EXPECT(
        contains(text_of<ddpp::usage_error>([&] { ddpp::distributed_data_parallel ddp(comm, model.list()); }),
                 "this is a device's memory"));
  });
}

TEST_CASE("weights for gradients of every type") {
  ddpp::launch<ddpp::nccl>(2, [](auto& comm) {
    array<double> d(10);
    array<ddpp::half> h(10);
    array<ddpp::bfloat16> b(10);
    training::distributed_data_parallel ddp(
        comm, {ddpp::parameter("d", d, d), ddpp::parameter("h", h, h), ddpp::parameter("b", b, b)});
    std::ranges::fill(d, comm.rank() + 1);
    std::ranges::fill(h, ddpp::half(float(comm.rank() + 1)));
    std::ranges::fill(b, ddpp::bfloat16(float(comm.rank() + 1)));
    ddp.prepare({.weight = comm.rank() == 0 ? 1 : 3});
    for (const std::size_t i : {2u, 1u, 0u}) ddp.mark_ready(i);
    ddp.wait();
    EXPECT(d[9] == 1.75 && float(h[9]) == 1.75f && float(b[9]) == 1.75f);
  });
}

TEST_CASE("metrics count in host memory") {
  ddpp::launch<ddpp::nccl>(3, [](auto& comm) {
    ddpp::metrics::mean mean;
    mean.update(comm.rank(), 2);
    EXPECT(mean.compute(comm) == 1);
    ddpp::metrics::confusion_matrix matrix(2);
    matrix.update(1, 0);
    EXPECT(matrix.compute(comm)(0, 1) == 3);
  });
}
