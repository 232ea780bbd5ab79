// SPDX-License-Identifier: BSL-1.0
// CUDA kernels. They are there where nvcc compiles; another compiler says so when one is needed.
#pragma once

#include <ddpp/detail/device_memory.hpp>
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/dtype.hpp>

#include <cstddef>
#include <cuda_runtime_api.h>

#ifdef __CUDACC__
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>
#endif

namespace ddpp {

class nccl;

namespace detail {

#ifdef __CUDACC__

template <class T>
using cuda_16_bits = std::conditional_t<dtype_of<T> == dtype::float16, __half, __nv_bfloat16>;

// Both round to nearest, ties to even.
__device__ inline void convert(float from, __half* to) { *to = __float2half_rn(from); }
__device__ inline void convert(float from, __nv_bfloat16* to) { *to = __float2bfloat16_rn(from); }
__device__ inline float as_float(__half from) { return __half2float(from); }
__device__ inline float as_float(__nv_bfloat16 from) { return __bfloat162float(from); }

__device__ inline std::size_t first_element() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::size_t elements_at_once() { return std::size_t{gridDim.x} * blockDim.x; }

template <class Narrow, class T>
__global__ void narrow_elements(Narrow* to, const T* from, std::size_t count, T factor) {
  for (std::size_t i = first_element(); i < count; i += elements_at_once())
    convert(static_cast<float>(from[i] * factor), to + i);
}
template <class T, class Narrow>
__global__ void widen_elements(T* to, const Narrow* from, std::size_t count) {
  for (std::size_t i = first_element(); i < count; i += elements_at_once())
    to[i] = static_cast<T>(as_float(from[i]));
}

/// As many blocks as keep any device busy; each thread strides over the rest.
inline constexpr unsigned kernel_threads = 256;
inline unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>(std::min<std::size_t>((count + kernel_threads - 1) / kernel_threads, 2048));
}

template <class Transport>
struct device_kernels {
  /// to[i] = Narrow(from[i] * factor), from the stream's next place on.
  template <class Narrow, class T>
  static void narrow_scaled(Narrow* to, const T* from, std::size_t count, T factor, cudaStream_t stream) {
    if (count == 0) return;
    auto* narrow = reinterpret_cast<cuda_16_bits<Narrow>*>(to);
    void* arguments[] = {&narrow, &from, &count, &factor};
    check_cuda(cudaLaunchKernel(narrow_elements<cuda_16_bits<Narrow>, T>, blocks_for(count), kernel_threads,
                                arguments, 0, stream),
               "the kernel that rounds gradients to 16 bits");
  }
  /// to[i] = from[i].
  template <class T, class Narrow>
  static void widen(T* to, const Narrow* from, std::size_t count, cudaStream_t stream) {
    if (count == 0) return;
    auto* narrow = reinterpret_cast<const cuda_16_bits<Narrow>*>(from);
    void* arguments[] = {&to, &narrow, &count};
    check_cuda(cudaLaunchKernel(widen_elements<T, cuda_16_bits<Narrow>>, blocks_for(count), kernel_threads,
                                arguments, 0, stream),
               "the kernel that widens gradients from 16 bits");
  }
};

#else

template <class Transport>
struct device_kernels {
  template <class Narrow, class T>
  static void narrow_scaled(Narrow*, const T*, std::size_t, T, cudaStream_t) {
    static_assert(dtype_of<Narrow> == dtype::custom,
                  "ddpp: fp16_compress and bf16_compress need kernels on a device: compile with nvcc");
  }
  template <class T, class Narrow>
  static void widen(T*, const Narrow*, std::size_t, cudaStream_t) {}
};

#endif

}  // namespace detail
}  // namespace ddpp
