// SPDX-License-Identifier: BSL-1.0
// A communicator of NCCL's, non-blocking, so that nothing that it does can keep a rank from hearing of a
// failure. Not for several threads at once.
#pragma once

#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/failure.hpp>

#include <chrono>
#include <nccl.h>
#include <thread>
#include <utility>

namespace ddpp::detail {

class nccl_handle {
 public:
  nccl_handle() = default;
  nccl_handle(const nccl_handle&) = delete;
  nccl_handle& operator=(const nccl_handle&) = delete;
  ~nccl_handle() { abort(release()); }

  /// Collective. `look` is called while it waits, and may throw. Throws `deadline_passed`.
  template <class Look>
  void begin(int rank, int size, const ncclUniqueId& id, deadline until, Look&& look) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    complete(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", until, look);
  }

  ncclComm_t get() const noexcept { return comm_; }

  /// Waits until NCCL has issued what a call has begun that returned `result`: success, too, may be said of
  /// what goes on in a thread of NCCL's (the registration of windows in 2.28).
  template <class Look>
  void complete(ncclResult_t result, const char* call, deadline until, Look&& look) {
    if (result == ncclSuccess) check_nccl(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
    while (result == ncclInProgress) {
      look();
      if (std::chrono::steady_clock::now() > until) throw deadline_passed();
      check_nccl(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
      if (result == ncclInProgress) std::this_thread::yield();
    }
    if (result != ncclSuccess) throw resource_error(nccl_error_text(result, call, comm_));
  }

  /// What NCCL has found wrong since, if anything.
  ncclResult_t error() const noexcept {
    ncclResult_t result = ncclSuccess;
    if (comm_ == nullptr || ncclCommGetAsyncError(comm_, &result) != ncclSuccess) return ncclSuccess;
    return result == ncclInProgress ? ncclSuccess : result;
  }

  /// Ends it in order, once all that was issued is done, and the ranks of this host end theirs. Throws
  /// `deadline_passed`.
  void end(deadline until) {
    if (comm_ == nullptr) return;
    complete(ncclCommFinalize(comm_), "ncclCommFinalize", until, [] {});
    check_nccl(ncclCommDestroy(release()), "ncclCommDestroy");
  }

  /// For abort() without the lock that guards this handle: it may wait for other ranks of this host.
  ncclComm_t release() noexcept { return std::exchange(comm_, nullptr); }

  /// Ends the kernels that are running, whatever they wait for.
  static void abort(ncclComm_t comm) noexcept {
    if (comm != nullptr) static_cast<void>(ncclCommAbort(comm));
  }

 private:
  ncclComm_t comm_ = nullptr;
};

}  // namespace ddpp::detail
