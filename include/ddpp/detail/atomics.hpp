// SPDX-License-Identifier: BSL-1.0
// What protocols in shared memory are made of. Their classes take it as a template argument, so that tests
// can run the same code in a model of C++'s memory (tests/model/).
#pragma once

#include <ddpp/detail/futex.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddpp::detail {

struct native_atomics {
  template <class T>
  using atomic = std::atomic<T>;
  /// What an atomic variable guards: not read and written at the same time.
  template <class T>
  using plain = T;

  /// A sequentially consistent store, for a word that others poll: as a store and a fence, between which
  /// nothing holds the word's cache line back. (An exchange would, and who polls takes the line away in the
  /// midst of it.)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wtsan"  // which does not know fences, and need not: the store carries the data
#endif
  template <class T>
  static void publish(atomic<T>& word, T value) noexcept {
    word.store(value, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

  static void wait(atomic<std::uint32_t>& word, std::uint32_t expected,
                   std::chrono::nanoseconds most) noexcept {
    futex_wait(word, expected, most);
  }
  static void wake_all(atomic<std::uint32_t>& word) noexcept { futex_wake_all(word); }
};

}  // namespace ddpp::detail
