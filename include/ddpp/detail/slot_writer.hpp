// SPDX-License-Identifier: BSL-1.0
// Writes what other ranks read next, with ordinary or with streaming stores.
//
// An ordinary store to a line that another core has read just before waits until that core has let go of it:
// 1 to 4 ns where the two share a cache, 15 to 25 ns where they do not. Streaming stores do not wait, but the
// reader finds the line in memory, not in a cache. So they are three to four times as fast in the one case
// and half as fast or less in the other. No table tells which case it is: processes move from core to core,
// and virtual machines say that cores share a cache which do not. So a writer now and then measures what
// ordinary stores cost it. Each rank chooses for itself; who reads need not know.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/streaming_copy.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>

namespace ddpp::detail {

/// Whether lines are dear, as the last two samples say: one may be that of a rank that was interrupted.
class line_cost {
 public:
  void add(double nanoseconds_per_line) noexcept {
    is_high_ = std::min(std::exchange(last_, nanoseconds_per_line), nanoseconds_per_line) > most;
  }
  bool is_high() const noexcept { return is_high_; }

  /// Lines that come from memory cost 10, those of caches that are far away at least 15.
  static constexpr double most = 12;

 private:
  double last_ = 0;
  bool is_high_ = false;
};

class slot_writer {
 public:
  /// Ranks that share cores share their caches, and interrupt each other's samples: `measures` is false.
  explicit slot_writer(bool measures) noexcept : measures_(measures) {}

  /// What follows belongs to a buffer of so many bytes.
  void open(std::size_t bytes) noexcept { is_large_ = bytes >= always_streamed_bytes; }

  bool streams() const noexcept { return is_large_ || cost_.is_high(); }

  /// Copies; the blocks do not overlap. finish() must follow before anyone is told of them.
  void put(std::byte* to, const std::byte* from, std::size_t count) noexcept {
    if (count < least_streamed_bytes) return copy_bytes(to, from, count);
    if (measures_ && !is_large_ && puts_++ % puts_per_sampling < samples) {
      const std::size_t first = std::min(count, sample_bytes);
      copy_measured(to, from, first);
      to += first, from += first, count -= first;
    }
    if (!streams()) return copy_bytes(to, from, count);
    copy_streaming(to, from, count);
    has_streamed_ = true;
  }

  void finish() noexcept {
    if (std::exchange(has_streamed_, false)) finish_streaming();
  }

 private:
  /// Fewer lines do not tell what one costs.
  static constexpr std::size_t least_streamed_bytes = std::size_t{2} << 10;
  /// Buffers that push each other out of the caches gain by it in either case.
  static constexpr std::size_t always_streamed_bytes = std::size_t{8} << 20;
  static constexpr std::size_t sample_bytes = std::size_t{16} << 10;
  static constexpr unsigned puts_per_sampling = 64, samples = 2;

  void copy_measured(std::byte* to, const std::byte* from, std::size_t count) noexcept {
    // Reading `from` is not to count.
    for (std::size_t at = 0; at < count; at += line_bytes)
      static_cast<void>(*static_cast<const volatile std::byte*>(from + at));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const auto begin = std::chrono::steady_clock::now();
    copy_bytes(to, from, count);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // until all stores are done
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    cost_.add(took.count() * line_bytes / static_cast<double>(count));
  }

  const bool measures_;
  bool is_large_ = false;
  bool has_streamed_ = false;  // since the last finish()
  line_cost cost_;
  unsigned puts_ = 0;
};

}  // namespace ddpp::detail
