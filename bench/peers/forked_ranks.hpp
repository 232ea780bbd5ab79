// SPDX-License-Identifier: BSL-1.0
// Ranks as forked processes, with memory that all of them see, for peers that bring no launcher.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "measurement.hpp"

namespace peers {

/// Pages that processes forked later share, zero at first.
inline void* map_shared(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_errno("mmap");
  return memory;
}

/// Counts arrivals; who waits gives the processor to others.
class shared_barrier {
 public:
  explicit shared_barrier(int size)
      : size_(static_cast<unsigned>(size)), arrived_(new (map_shared(4096)) counter(0)) {}

  void wait() {
    const unsigned ticket = arrived_->fetch_add(1, std::memory_order_acq_rel);
    const unsigned all = ticket - ticket % size_ + size_;
    for (int tries = 0; static_cast<int>(arrived_->load(std::memory_order_acquire) - all) < 0;) {
      if (++tries > 1000) ::sched_yield();
    }
  }

 private:
  using counter = std::atomic<unsigned>;
  unsigned size_;
  counter* arrived_;
};

/// Runs f(rank) in `size` processes. 0 if all of them came to their end, else 1. A rank that ends alone
/// closes its connection to `run`, which then ends them all.
template <class F>
int on_forked_ranks(int size, F f) {
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw_errno("fork");
    if (child > 0) continue;
    try {
      f(rank);
      std::_Exit(0);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      std::_Exit(1);
    }
  }
  int failed = 0;
  for (int status; ::wait(&status) > 0;) failed |= status != 0 ? 1 : 0;
  return failed;
}

}  // namespace peers
