// SPDX-License-Identifier: BSL-1.0
// What the protocols are made of when relacy runs them: atomics that return any value which C++'s memory
// model allows, variables whose data races are found, and a futex. relacy runs the threads of a test as
// fibers of one thread, and chooses at each access to an atomic who goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
// relacy/relacy.hpp without its macros for `new` and the memory orders:
#include <relacy/atomic.hpp>
#include <relacy/backoff.hpp>
#include <relacy/context.hpp>
#include <relacy/context_base_impl.hpp>
#include <relacy/stdlib/condition_variable.hpp>
#include <relacy/stdlib/event.hpp>
#include <relacy/stdlib/mutex.hpp>
#include <relacy/stdlib/semaphore.hpp>
#include <relacy/test_suite.hpp>
#include <relacy/var.hpp>

#include "flaw.hpp"

namespace model {

inline constexpr int most_threads = 4;

/// Stands in for `native_atomics`.
struct relacy_atomics {
  /// Whether sleeps may end by themselves, as if time had passed.
  static inline bool sleeps_end = false;

  template <class T>
  class atomic;
  template <class T>
  class plain;

  /// A store and a fence. relacy does not let fences tell sequentially consistent loads anything; so a second
  /// store of the same value says what the fence says of the first.
  template <class T>
  static void publish(atomic<T>& word, T value) noexcept {
    word.store(value, std::memory_order_release);
    word.exchange(value, std::memory_order_seq_cst);
  }
  static void wait(atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds) noexcept;
  static void wake_all(atomic<std::uint32_t>& word) noexcept;

 private:
  // The orders that a flaw makes of those that the protocol asks for.
  static bool weakens(flaw::kind what) {
    return current_flaw.what == what && rl::thread_index() == current_flaw.thread;
  }
  static rl::memory_order for_load(std::memory_order asked) {
    if (asked == std::memory_order_relaxed || weakens(flaw::relaxed_loads)) return rl::mo_relaxed;
    const bool total = asked == std::memory_order_seq_cst && current_flaw.what != flaw::release_acquire;
    return total ? rl::mo_seq_cst : rl::mo_acquire;
  }
  static rl::memory_order for_store(std::memory_order asked) {
    if (asked == std::memory_order_relaxed || weakens(flaw::relaxed_stores)) return rl::mo_relaxed;
    const bool total = asked == std::memory_order_seq_cst && current_flaw.what != flaw::release_acquire;
    return total ? rl::mo_seq_cst : rl::mo_release;
  }
  static rl::memory_order for_exchange() {
    return current_flaw.what == flaw::release_acquire ? rl::mo_acq_rel : rl::mo_seq_cst;
  }
};

/// Where it is called, or the function of which it is a default argument.
inline rl::debug_info here(const char* function = __builtin_FUNCTION(), const char* file = __builtin_FILE(),
                           unsigned line = __builtin_LINE()) {
  return {function, file, line};
}

template <class T>
class relacy_atomics::atomic {
  static_assert(sizeof(T) <= 8);
  using order = std::memory_order;
  using place = rl::debug_info;

 public:
  atomic(T value = {}) : cell_(to_cell(value)) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;

  T load(order asked = order::seq_cst, place at = here()) const noexcept {
    return from_cell(cell_.load(for_load(asked), at));
  }
  void store(T value, order asked = order::seq_cst, place at = here()) noexcept {
    cell_.store(to_cell(value), for_store(asked), at);
  }
  T exchange(T value, order = order::seq_cst, place at = here()) noexcept {
    return from_cell(cell_.exchange(to_cell(value), for_exchange(), at));
  }
  T fetch_add(T value, order = order::seq_cst, place at = here()) noexcept {
    if (current_flaw.what == flaw::lost_increments) return load();
    return from_cell(cell_.fetch_add(to_cell(value), for_exchange(), at));
  }
  bool compare_exchange_strong(T& expected, T value, order = order::seq_cst, place at = here()) noexcept {
    std::uint64_t cell = to_cell(expected);
    const bool done = cell_.compare_exchange_strong(cell, to_cell(value), for_exchange(), at);
    expected = from_cell(cell);
    return done;
  }
  operator T() const noexcept { return load(); }
  T operator=(T value) noexcept {
    store(value);
    return value;
  }

  /// The newest value, seen by the test and not by its threads.
  T peek() const { return from_cell(cell_.debug_value()); }

  // The futex: the word is compared and the thread queued in one step, after which only wake_all() or a whim
  // ends its sleep. Nothing else is ordered by it.
  void wait_while(T expected) noexcept {
    rl::context& context = rl::ctx();
    context.sched();
    if (peek() == expected)
      sleepers_.park_current(context, sleeps_end, context.is_random_sched(), false, here());
  }
  void wake_all() noexcept {
    rl::ctx().sched();
    sleepers_.unpark_all(rl::ctx(), here());
  }

 private:
  static std::uint64_t to_cell(T value) { return static_cast<std::uint64_t>(value); }
  static T from_cell(std::uint64_t cell) { return static_cast<T>(cell); }

  rl::atomic<std::uint64_t> cell_;
  rl::waitset<most_threads> sleepers_;
};

template <class T>
class relacy_atomics::plain {
 public:
  plain(T value = {}) : value_(value), access_(0) {}
  plain(const plain&) = delete;
  plain& operator=(const plain&) = delete;

  plain& operator=(const T& value) {
    access_(here()).store(0);
    value_ = value;
    return *this;
  }
  operator T() const {
    access_(here()).load();
    return value_;
  }

 private:
  T value_;
  rl::var<int> access_;
};

inline void relacy_atomics::wait(atomic<std::uint32_t>& word, std::uint32_t expected,
                                 std::chrono::nanoseconds) noexcept {
  word.wait_while(expected);
}
inline void relacy_atomics::wake_all(atomic<std::uint32_t>& word) noexcept { word.wake_all(); }

}  // namespace model
