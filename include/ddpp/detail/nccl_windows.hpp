// SPDX-License-Identifier: BSL-1.0
// Device memory registered with one of NCCL's communicators, which it may outlive.
#pragma once

#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/nccl_handle.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <list>
#include <mutex>
#include <nccl.h>

namespace ddpp::detail {

/// Device memory that NCCL likes best. Returns what NCCL says.
inline ncclResult_t allocate_for_nccl(void** where, std::size_t bytes) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  return ncclMemAlloc(where, bytes);
#else
  return cudaMalloc(where, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
#endif
}
inline void free_for_nccl(void* where) noexcept {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  static_cast<void>(ncclMemFree(where));
#else
  static_cast<void>(cudaFree(where));
#endif
}

class nccl_windows {
 public:
  /// Guards the communicator, too.
  std::recursive_mutex& mutex() noexcept { return mutex_; }

  /// `registering` is called as f(window*) and returns once the window is there. What it throws leaves a
  /// place where NCCL may still write it.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  template <class Register>
  void add(const nccl_handle& handle, void* begin, Register&& registering) {
    const std::lock_guard lock(mutex_);
    handle_ = &handle;
    windows_.push_back({begin, nullptr});
    registering(&windows_.back().registered);
  }
#endif

  /// Waits for the device, as what runs there may be using the memory.
  void free(void* begin, int device) noexcept {
    try {
      const current_device its_own(device);
      static_cast<void>(cudaDeviceSynchronize());
      {
        const std::lock_guard lock(mutex_);
        const auto found = std::find_if(windows_.begin(), windows_.end(),
                                        [&](const window& each) { return each.begin == begin; });
        if (found != windows_.end()) {
          deregister(*found);
          windows_.erase(found);
        }
      }
      free_for_nccl(begin);
    } catch (const resource_error&) {  // the device is lost, and its memory with it
    }
  }

  /// Before the communicator ends.
  void deregister_all() noexcept {
    const std::lock_guard lock(mutex_);
    for (const window& each : windows_) deregister(each);
    windows_.clear();
  }

 private:
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  struct window {
    void* begin;
    ncclWindow_t registered;
  };
  void deregister(const window& which) noexcept {
    if (which.registered != nullptr && handle_->get() != nullptr)
      static_cast<void>(ncclCommWindowDeregister(handle_->get(), which.registered));
  }
#else
  struct window {
    void* begin;
  };
  void deregister(const window&) noexcept {}
#endif

  std::recursive_mutex mutex_;
  const nccl_handle* handle_ = nullptr;
  std::list<window> windows_;  // whose places NCCL knows
};

}  // namespace ddpp::detail
