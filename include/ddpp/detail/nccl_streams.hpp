// SPDX-License-Identifier: BSL-1.0
// The caller's stream, the internal one on which NCCL works, and the events that order one after the other.
#pragma once

#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <atomic>
#include <cuda_runtime_api.h>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// Events that have been used and may be again.
class event_pool {
 public:
  event_pool() = default;
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;
  ~event_pool() {
    for (const cudaEvent_t event : free_) static_cast<void>(cudaEventDestroy(event));
  }

  cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// A place on the internal stream: reached when all that was issued before it is done.
class stream_mark {
 public:
  explicit stream_mark(std::shared_ptr<event_pool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  stream_mark(const stream_mark&) = delete;
  stream_mark& operator=(const stream_mark&) = delete;
  ~stream_mark() { pool_->give_back(event_); }

  cudaEvent_t event() const noexcept { return event_; }
  /// False inside a group, whose operations are issued at its end.
  bool is_recorded() const noexcept { return recorded_; }
  bool is_captured() const noexcept { return captured_; }
  /// On the stream's device. `captured`: into a graph, where the event tells nothing of a run.
  void record(cudaStream_t stream, bool captured) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
    captured_ = captured;
    recorded_ = true;
  }
  bool is_reached() const {
    if (!recorded_ || captured_ || found_reached_) return recorded_;
    const relaxed_capture relaxed;
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check_cuda(state, "cudaEventQuery");
    if (state == cudaSuccess) found_reached_ = true;
    return state == cudaSuccess;
  }
  /// Whether is_reached has found so, outside captures.
  bool found_reached() const noexcept { return found_reached_; }

 private:
  std::shared_ptr<event_pool> pool_;
  cudaEvent_t event_;
  bool recorded_ = false, captured_ = false;
  mutable std::atomic<bool> found_reached_{false};
};

class stream_pair {
 public:
  /// On the current device. Throws `resource_error` if the caller's stream is another's.
  stream_pair(cudaStream_t callers, bool high_priority) : callers_(callers) {
    refuse_another_devices();
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check_cuda(
        cudaStreamCreateWithPriority(&internal_, cudaStreamNonBlocking, high_priority ? greatest : least),
        "cudaStreamCreateWithPriority");
  }
  stream_pair(const stream_pair&) = delete;
  stream_pair& operator=(const stream_pair&) = delete;
  ~stream_pair() { static_cast<void>(cudaStreamDestroy(internal_)); }

  cudaStream_t callers() const noexcept { return callers_; }
  cudaStream_t internal() const noexcept { return internal_; }

  bool is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(internal_, &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }
  /// What is issued on the internal stream from here on comes after all that is on the caller's now.
  void follow_caller() {
    const stream_mark here(events_);
    check_cuda(cudaEventRecord(here.event(), callers_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(internal_, here.event(), 0), "cudaStreamWaitEvent");
  }
  /// What is put on the caller's stream from here on comes after the mark.
  void lead_caller(const stream_mark& mark) {
    check_cuda(cudaStreamWaitEvent(callers_, mark.event(), 0), "cudaStreamWaitEvent");
  }
  std::shared_ptr<stream_mark> new_mark() { return std::make_shared<stream_mark>(events_); }

 private:
  /// Only streams of an event's own device can record it. The default ones are the current device's.
  void refuse_another_devices() {
    if (callers_ == nullptr || callers_ == cudaStreamLegacy || callers_ == cudaStreamPerThread) return;
    const cudaError_t result = cudaEventRecord(stream_mark(events_).event(), callers_);
    if (result != cudaErrorInvalidResourceHandle) return check_cuda(result, "cudaEventRecord");
    static_cast<void>(cudaGetLastError());  // or the program's next look would find it
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    throw resource_error(text("options.stream is no stream of device ", device,
                              ", this rank's: call cudaSetDevice(", device,
                              ") before you create it, or give its device by options.device"));
  }

  std::shared_ptr<event_pool> events_ = std::make_shared<event_pool>();
  cudaStream_t callers_, internal_ = nullptr;
};

}  // namespace ddpp::detail
