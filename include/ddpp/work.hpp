// SPDX-License-Identifier: BSL-1.0
// The handle of an asynchronous operation.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/failure.hpp>

#include <chrono>
#include <memory>
#include <utility>

namespace ddpp {
namespace detail {

/// What a `work` waits for. `wait` returns whether it is done; errors of the operation come out of `rethrow`.
class completion {
 public:
  completion() = default;
  completion(const completion&) = delete;
  completion& operator=(const completion&) = delete;
  virtual ~completion() = default;

  virtual bool done() = 0;
  virtual bool wait_until(deadline until) = 0;
  virtual void wait() = 0;
  /// Waits until it is done even where `wait` only orders streams.
  virtual void host_wait() { wait(); }
  virtual void rethrow() = 0;
  /// Waits; an error is kept for the communicator's next call to throw.
  virtual void abandon() noexcept = 0;
};

}  // namespace detail

/// A pending operation. Its buffers must stay as they are until it is done. The destructor waits for it; an
/// error that nobody saw by then is thrown by the communicator's next call.
#ifdef __CUDACC__  // nvcc 13.0 would take each assignment for a work that is dropped
class work {
#else
class [[nodiscard("a work that is dropped is waited for at once")]] work {
#endif
 public:
  work() = default;
  explicit work(std::shared_ptr<detail::completion> pending) : pending_(std::move(pending)) {}
  work(work&& other) noexcept = default;
  work& operator=(work&& other) noexcept {
    if (this != &other) {
      abandon();
      pending_ = std::move(other.pending_);
      seen_ = other.seen_;
    }
    return *this;
  }
  ~work() { abandon(); }

  /// Blocks until the operation is done and throws what went wrong. May be called again. On a transport that
  /// works on a device's stream it orders the caller's stream after the operation instead, and does not
  /// block.
  void wait() {
    if (!pending_) return;
    pending_->wait();
    see();
  }

  /// Blocks until the operation is done, on any transport, and throws what went wrong.
  void host_wait() {
    if (!pending_) return;
    pending_->host_wait();
    see();
  }

  /// As wait(), but gives up after `patience` and returns false; the operation goes on.
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> patience) {
    if (!pending_) return true;
    if (!pending_->wait_until(detail::deadline_after(patience))) return false;
    see();
    return true;
  }

  /// Whether the operation is over, well or badly. Does not block and does not throw.
  bool done() const { return !pending_ || pending_->done(); }

 private:
  void see() {
    seen_ = true;
    pending_->rethrow();
  }
  void abandon() noexcept {
    if (pending_ && !seen_) pending_->abandon();
    pending_.reset();
  }

  std::shared_ptr<detail::completion> pending_;
  bool seen_ = false;
};

}  // namespace ddpp
