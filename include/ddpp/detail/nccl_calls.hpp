// SPDX-License-Identifier: BSL-1.0
// What calls of CUDA and NCCL return, as exceptions.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "ddpp: the nccl backend needs NCCL 2.18 or later"
#endif

namespace ddpp::detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_cuda_error(cudaError_t result, const char* call) {
  throw resource_error(text(call, ": ", cudaGetErrorString(result), " (", cudaGetErrorName(result), ")"));
}

inline void check_cuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw_cuda_error(result, call);
}

[[gnu::cold]] inline std::string nccl_error_text(ncclResult_t result, const char* call, ncclComm_t comm) {
  const char* const last = ncclGetLastError(comm);
  return text(call, ": ", ncclGetErrorString(result), last != nullptr && *last != 0 ? ": " : "",
              last != nullptr ? last : "");
}

inline void check_nccl(ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw resource_error(nccl_error_text(result, call, nullptr));
}

/// Lets the calling thread ask for events while another one captures a graph, which such a call would spoil
/// otherwise.
class relaxed_capture {
 public:
  relaxed_capture() { exchange(); }
  relaxed_capture(const relaxed_capture&) = delete;
  relaxed_capture& operator=(const relaxed_capture&) = delete;
  ~relaxed_capture() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// The calling thread's current device, while this lives.
class current_device {
 public:
  explicit current_device(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ == device) return;
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;
  ~current_device() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace ddpp::detail
