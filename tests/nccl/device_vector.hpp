// SPDX-License-Identifier: BSL-1.0
// Vectors in the double's device memory, for the suite of the training layer.
#pragma once

#include <ddpp/barrier.hpp>
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/scaling.hpp>

#include <cstddef>
#include <cuda_runtime_api.h>
#include <span>

#include "../support/fake_kernels.hpp"
#include "../training/memory.hpp"

namespace training {

template <class E>
struct device_allocator {
  using value_type = E;

  device_allocator() = default;
  template <class U>
  device_allocator(const device_allocator<U>&) noexcept {}

  E* allocate(std::size_t count) {
    void* where = nullptr;
    ddpp::detail::check_cuda(cudaMalloc(&where, count * sizeof(E)), "cudaMalloc");
    return static_cast<E*>(where);
  }
  void deallocate(E* where, std::size_t) noexcept { cudaFree(where); }

  template <class U>
  bool operator==(const device_allocator<U>&) const noexcept {
    return true;
  }
};

template <>
struct memory_of<ddpp::nccl> {
  template <class E>
  using allocator = device_allocator<E>;

  template <class C>
  static void settle(C& comm) {
    cudaStreamSynchronize(comm.stream());
    if (comm.transport().failed()) ddpp::barrier(comm);  // throws why
  }

  template <class C, class E>
  static void scale(C& comm, std::span<E> values, double factor) {
    fake_kernels::launch(comm.stream(), [=] { ddpp::detail::scale(values, factor); });
  }
};

}  // namespace training
