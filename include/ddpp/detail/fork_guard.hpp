// SPDX-License-Identifier: BSL-1.0
// A child made by fork() has copies of its parent's descriptors and mappings but none of its threads. It must
// not say goodbye in its parent's name, nor keep a dead parent's connections open.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <pthread.h>
#include <unistd.h>
#include <vector>

namespace ddpp::detail {

/// Descriptors that a forked child closes at once.
class fork_registry {
 public:
  static fork_registry& instance() {
    static fork_registry* const only = new fork_registry;  // never destroyed: used until the process ends
    return *only;
  }

  void add(int fd) {
    const std::lock_guard lock(mutex_);
    descriptors_.push_back(fd);
  }

  /// Adds what `open_one()` returns (unless it is negative), with no fork in between.
  template <class F>
  int open(F&& open_one) {
    const std::lock_guard lock(mutex_);
    descriptors_.push_back(-1);  // first, as it may throw
    const int fd = open_one();
    descriptors_.back() = fd;
    if (fd < 0) descriptors_.pop_back();
    return fd;
  }

  /// Closes a descriptor that was added, with no fork in between.
  void close(int fd) {
    const std::lock_guard lock(mutex_);
    if (const auto at = std::find(descriptors_.begin(), descriptors_.end(), fd); at != descriptors_.end()) {
      descriptors_.erase(at);
    }
    ::close(fd);
  }

  void remove(int fd) {
    const std::lock_guard lock(mutex_);
    if (const auto at = std::find(descriptors_.begin(), descriptors_.end(), fd); at != descriptors_.end()) {
      descriptors_.erase(at);
    }
  }

  /// How many forks lie between this process and the one that first used ddpp.
  unsigned generation() const noexcept { return generation_.load(std::memory_order_relaxed); }

 private:
  fork_registry() { ::pthread_atfork(before, in_parent, in_child); }

  static void before() { instance().mutex_.lock(); }
  static void in_parent() { instance().mutex_.unlock(); }
  static void in_child() {
    fork_registry& self = instance();
    for (const int fd : self.descriptors_) ::close(fd);
    self.descriptors_.clear();
    self.generation_.fetch_add(1, std::memory_order_relaxed);
    self.mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<int> descriptors_;
  std::atomic<unsigned> generation_{0};
};

/// Remembers the process it was made in.
class fork_guard {
 public:
  bool in_child() const noexcept { return fork_registry::instance().generation() != generation_; }

 private:
  unsigned generation_ = fork_registry::instance().generation();
};

}  // namespace ddpp::detail
