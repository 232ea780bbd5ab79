// SPDX-License-Identifier: BSL-1.0
// The watch over what has been issued to a device: a thread that ends what would not end by itself.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/nccl_handle.hpp>
#include <ddpp/detail/nccl_streams.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <deque>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <optional>
#include <thread>
#include <utility>

namespace ddpp::detail {

/// What is on the device until its mark is reached. Without an operation in its print it is a group of
/// messages.
struct issued_operation {
  std::shared_ptr<stream_mark> end;
  fingerprint print;
  deadline until;
};

/// While anything is pending it looks, every 2 ms, whether NCCL has found an error, whether someone has left,
/// whether the ranks are in different collectives, and whether the time is up: each of these fails the group.
/// Once it has failed, whoever has found out, the watch ends NCCL's communicator.
template <class Control>
class nccl_watch {
 public:
  /// `nccl_mutex` guards the handle, and NCCL.
  nccl_watch(Control& control, nccl_handle& handle, std::recursive_mutex& nccl_mutex, int device,
             std::chrono::milliseconds timeout)
      : control_(control), handle_(handle), nccl_mutex_(nccl_mutex), device_(device), timeout_(timeout) {
    thread_.emplace([this] { run(); });
    control_.on_failure([this](const failure&) { wake(); });
    wake();
  }
  nccl_watch(const nccl_watch&) = delete;
  nccl_watch& operator=(const nccl_watch&) = delete;
  ~nccl_watch() { stop(); }

  void add(const issued_operation& operation) {
    {
      const std::lock_guard lock(mutex_);
      pending_.push_back(operation);
    }
    woken_.notify_all();
  }

  /// A stream holds so many operations and no more: who runs ahead of its device would block in CUDA, where
  /// no failure reaches it. Throws `group_failed`.
  void await_room() {
    for (;;) {
      if (control_.failed()) throw group_failed(control_.cause());
      {
        const std::lock_guard lock(mutex_);
        if (pending_.size() >= most_ahead) forget_reached();
        if (pending_.size() < most_ahead) return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// Throws `group_failed` once the group has failed, if the mark was not reached by then: what comes later
  /// only looks done. Under nccl_mutex.
  void refuse_cut_short(const stream_mark& mark) {
    if (control_.failed()) note_what_is_reached();
    if (is_cut_short() && !mark.found_reached()) throw group_failed(control_.cause());
  }

  /// So that the buffers of what has failed are the caller's again. Not for ever, as an abort of NCCL's may
  /// wait for other ranks.
  void await_end_of_work() const {
    const deadline until = std::chrono::steady_clock::now() + time_to_end;
    while (std::chrono::steady_clock::now() < std::min(until, should_end_by_.load()))
      std::this_thread::sleep_for(pause);
  }

  /// NCCL may find that a rank is gone before the control plane does, which knows which one.
  void await_cause() const {
    const deadline until = std::chrono::steady_clock::now() + survey_time;
    while (!control_.failed() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(pause);
  }

  /// Waits until nothing is pending, until the timeout at most, and ends the watch. What is pending then
  /// fails the group; after a failure, what is on the device is ended.
  void finish() {
    await_all();
    stop();
    if (!pending_.empty() && !control_.failed()) {
      control_.abort({failure_kind::timeout, control_.rank(),
                      text("rank ", control_.rank(), " left with operations that did not finish within ",
                           text_of(timeout_))});
    }
    if (control_.failed()) cut_short();
  }

 private:
  void run() {
    const relaxed_capture relaxed;
    static_cast<void>(cudaSetDevice(device_));
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [&] { return stopping_ || !pending_.empty() || control_.failed(); });
        if (!control_.failed()) woken_.wait_for(lock, pause, [&] { return stopping_ || control_.failed(); });
        if (stopping_) return;
      }
      try {
        look();
      } catch (const resource_error& error) {
        control_.abort(
            {failure_kind::revoked, control_.rank(), text("rank ", control_.rank(), ": ", error.what())});
      }
      if (control_.failed()) return cut_short();
    }
  }

  void wake() {
    { const std::lock_guard lock(mutex_); }
    woken_.notify_all();
  }

  void stop() {
    if (!thread_) return;
    control_.on_failure({});
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    woken_.notify_all();
    thread_.reset();
  }

  void await_all() const {
    const deadline until = deadline_after(timeout_);
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (pending_.empty()) return;
      }
      if (control_.failed() || std::chrono::steady_clock::now() > until) return;
      std::this_thread::sleep_for(pause);
    }
  }

  void look() {
    issued_operation first;
    {
      const std::lock_guard lock(mutex_);
      forget_reached();
      if (pending_.empty()) return;
      first = pending_.front();
    }
    if (const ncclResult_t result = nccl_error(); result != ncclSuccess) {
      await_cause();
      throw resource_error(nccl_error_text(result, "NCCL", nullptr));
    }
    look_for_leavers(first.print);
    look_for_mismatch(first.print);
    if (std::chrono::steady_clock::now() < first.until) return;
    const auto ranks = control_.survey(std::chrono::steady_clock::now() + survey_time);
    if (first.print.op != collective::none) {
      control_.abort(describe_timeout(first.print, ranks, timeout_));
    } else {
      control_.abort(
          {failure_kind::timeout, -1,
           text("messages of rank ", control_.rank(), " did not finish within ", text_of(timeout_))});
    }
  }

  /// Who left before it came to the collective will not bring it about. (Who left later has seen it done.)
  void look_for_leavers(const fingerprint& waiting) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_for_leavers_) return;
    next_look_for_leavers_ = now + leavers_pause;
    const auto ranks = control_.survey(now);  // what is known here
    for (int r = 0; r < control_.size(); ++r) {
      const rank_state& state = ranks[static_cast<std::size_t>(r)];
      if (state.is != rank_state::presence::left || state.last.sequence >= waiting.sequence) continue;
      control_.abort(
          {failure_kind::peer_lost, r,
           text("rank ", r, " left the group while rank ", control_.rank(), " was waiting for it")});
    }
  }

  /// What is pending for long may be another collective than this rank's: nothing else tells where calls are
  /// not compared.
  void look_for_mismatch(const fingerprint& waiting) {
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(looked_at_, waiting.sequence) != waiting.sequence) next_survey_ = now + patience;
    if (now < next_survey_ || waiting.op == collective::none) return;
    next_survey_ = now + patience;
    auto ranks = control_.survey(now + survey_time);
    ranks[static_cast<std::size_t>(control_.rank())].last = waiting;
    const failure found = describe_mismatch(ranks);
    if (found.rank >= 0) control_.abort(found);
  }

  /// Nothing while another thread is in NCCL, which hears of errors itself.
  ncclResult_t nccl_error() {
    const std::unique_lock lock(nccl_mutex_, std::try_to_lock);
    return lock.owns_lock() ? handle_.error() : ncclSuccess;
  }

  /// Ends what is on the device.
  void cut_short() noexcept {
    ncclComm_t ending = nullptr;
    {
      const std::lock_guard lock(nccl_mutex_);
      note_what_is_reached();
      ending = handle_.release();
    }
    if (ending == nullptr) return;
    std::this_thread::sleep_for(time_to_be_told);
    nccl_handle::abort(ending);
    should_end_by_ = deadline{};  // it has
  }

  bool is_cut_short() const noexcept { return should_end_by_.load() != deadline::max(); }

  /// Once the group has failed. What is reached by now is good. What ends from here on is not: where one rank
  /// ends its part, others may see theirs end, with numbers that are none. So nobody ends anything before all
  /// have been told.
  void note_what_is_reached() noexcept {
    if (is_cut_short()) return;
    should_end_by_ = std::chrono::steady_clock::now() + time_to_end;
    try {
      const std::lock_guard lock(mutex_);
      for (const issued_operation& each : pending_) static_cast<void>(each.end->is_reached());
    } catch (const resource_error&) {  // of the device
    }
  }

  /// Under mutex_.
  void forget_reached() {
    while (!pending_.empty() && pending_.front().end->is_reached()) pending_.pop_front();
  }

  static constexpr std::chrono::milliseconds pause{2};
  static constexpr std::chrono::milliseconds survey_time{1000}, leavers_pause{100}, patience{1000};
  /// Much longer than a failure takes to be known everywhere.
  static constexpr std::chrono::milliseconds time_to_be_told{100}, time_to_end{1000};
  static constexpr std::size_t most_ahead = 128;  // operations, each of a few entries in streams of 1024

  Control& control_;
  nccl_handle& handle_;
  std::recursive_mutex& nccl_mutex_;
  const int device_;
  const std::chrono::milliseconds timeout_;

  mutable std::mutex mutex_;  // guards the next two
  std::deque<issued_operation> pending_;
  bool stopping_ = false;
  std::condition_variable woken_;
  /// When what was on the device has been ended, at the latest: max while the group has not failed.
  std::atomic<deadline> should_end_by_{deadline::max()};
  deadline next_look_for_leavers_ = {}, next_survey_ = {};  // the thread's own, and the next
  std::uint64_t looked_at_ = 0;                             // the oldest collective pending
  std::optional<joining_thread> thread_;
};

}  // namespace ddpp::detail
