// SPDX-License-Identifier: BSL-1.0
// What nvcc would make kernels of, as functions on the double's streams.
#pragma once

#include <ddpp/backends/nccl.hpp>
#include <ddpp/detail/scaling.hpp>

#include <cstddef>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <utility>

namespace fake_kernels {

inline void launch(cudaStream_t stream, std::function<void()> kernel) {
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  ddpp::detail::check_cuda(cudaLaunchHostFunc(stream, run, new std::function<void()>(std::move(kernel))),
                           "cudaLaunchHostFunc");
}

}  // namespace fake_kernels

template <>
struct ddpp::detail::device_kernels<ddpp::nccl> {
  template <class Narrow, class T>
  static void narrow_scaled(Narrow* to, const T* from, std::size_t count, T factor, cudaStream_t stream) {
    fake_kernels::launch(stream, [=] { detail::narrow_scaled(to, from, count, factor); });
  }
  template <class T, class Narrow>
  static void widen(T* to, const Narrow* from, std::size_t count, cudaStream_t stream) {
    fake_kernels::launch(stream, [=] { detail::widen(to, from, count); });
  }
};
