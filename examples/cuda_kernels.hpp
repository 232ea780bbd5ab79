// SPDX-License-Identifier: BSL-1.0
// Device memory, and loops over its elements. nvcc (with --extended-lambda) makes a kernel of each loop;
// another compiler leaves it on the host, where the stream runs it in its turn: so the same source runs on a
// double of CUDA whose device memory is the host's.
#pragma once

#include <ddpp/device_span.hpp>

#include <cstddef>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __CUDACC__
#define ON_DEVICE __device__
#else
#define ON_DEVICE
#endif

/// Throws std::runtime_error with CUDA's words.
inline void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(result));
}

/// The one that ddpp gives this rank becomes the thread's current one, of which streams are made.
inline void take_device(int local_rank) {
  int count = 0;
  check(cudaGetDeviceCount(&count));
  check(cudaSetDevice(local_rank % count));
}

/// Memory of the device that was current when it was made. Making and freeing it waits for the device.
template <class T>
class device_array {
 public:
  /// Zeros.
  explicit device_array(std::size_t size) : device_array(std::vector<T>(size)) {}
  explicit device_array(const std::vector<T>& values) : size_(values.size()) {
    void* where = nullptr;
    check(cudaMalloc(&where, size_ * sizeof(T)));
    data_.reset(static_cast<T*>(where));
    check(cudaMemcpy(where, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaStreamSynchronize(nullptr));  // the copy may return earlier, and other streams not wait for it
  }

  T* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }
  ddpp::device_span<T> span() const noexcept { return {data(), size_}; }

 private:
  struct release {
    void operator()(T* data) const noexcept { static_cast<void>(cudaFree(data)); }
  };
  std::unique_ptr<T, release> data_;
  std::size_t size_;
};

#ifdef __CUDACC__
template <class F>
__global__ void call_for_index(std::size_t count, F f) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) f(i);
}
#endif

/// Calls f with 0 to count - 1, in any order, when what is on the stream so far is done.
template <class F>
void for_each_index(cudaStream_t stream, std::size_t count, F f) {
  if (count == 0) return;
#ifdef __CUDACC__
  constexpr unsigned threads = 256;
  call_for_index<<<static_cast<unsigned>((count + threads - 1) / threads), threads, 0, stream>>>(count, f);
  check(cudaGetLastError());
#else
  auto loop = std::make_unique<std::function<void()>>([count, f] {
    for (std::size_t i = 0; i < count; ++i) f(i);
  });
  const auto run = [](void* given) {
    const std::unique_ptr<std::function<void()>> taken(static_cast<std::function<void()>*>(given));
    (*taken)();
  };
  check(cudaLaunchHostFunc(stream, run, loop.get()));
  static_cast<void>(loop.release());
#endif
}
