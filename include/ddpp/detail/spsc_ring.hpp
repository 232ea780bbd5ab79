// SPDX-License-Identifier: BSL-1.0
// A queue of fixed size between one producer and one consumer, in memory that they share.
//
// Both counters run on; entry i is slot i modulo the number of slots. Only the producer writes `tail` and the
// slots in [tail, head + slots), only the consumer writes `head`. Each keeps its own counter and its last
// look at the other's in private memory, and looks again only when that says full or empty.
//
// Orderings: what the producer writes into a slot is seen by who has read the `tail` stored after it, and
// what the consumer has read of a slot is over for who has read the `head` stored after it: release and
// acquire would do. They are sequentially consistent for the sake of sleeping: "store tail, then read whether
// the consumer is parked" must not be reordered, nor may "store parked, then read tail" on the other side;
// likewise with head and a producer that sleeps until there is room. (A fence would do too, but
// ThreadSanitizer does not understand fences.)
#pragma once

#include <ddpp/detail/atomics.hpp>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ddpp::detail {

template <class Entry, std::uint32_t Slots, class Atomics = native_atomics>
struct spsc_ring {
  static_assert(std::has_single_bit(Slots), "the counters wrap around at a power of two");
  using counter = typename Atomics::template atomic<std::uint32_t>;

  alignas(64) counter tail{0};
  alignas(64) counter head{0};
  Entry slots[Slots];
};

template <class Entry, std::uint32_t Slots, class Atomics = native_atomics>
class ring_producer {
 public:
  using ring = spsc_ring<Entry, Slots, Atomics>;

  ring_producer() = default;
  /// Goes on where the ring stands.
  explicit ring_producer(ring& shared)
      : ring_(&shared), tail_(shared.tail.load()), head_(shared.head.load()) {}

  explicit operator bool() const noexcept { return ring_ != nullptr; }

  /// The slot to fill next, or null if there is no room. Nobody sees it before push().
  Entry* room() noexcept {
    if (tail_ - head_ == Slots) {
      head_ = ring_->head.load(std::memory_order_seq_cst);
      if (tail_ - head_ == Slots) return nullptr;
    }
    return &ring_->slots[tail_ % Slots];
  }
  void push() noexcept { ring_->tail.store(++tail_, std::memory_order_seq_cst); }

 private:
  ring* ring_ = nullptr;
  std::uint32_t tail_ = 0;
  std::uint32_t head_ = 0;
};

template <class Entry, std::uint32_t Slots, class Atomics = native_atomics>
class ring_consumer {
 public:
  using ring = spsc_ring<Entry, Slots, Atomics>;

  ring_consumer() = default;
  /// Goes on where the ring stands.
  explicit ring_consumer(ring& shared)
      : ring_(&shared), head_(shared.head.load()), tail_(shared.tail.load()) {}

  explicit operator bool() const noexcept { return ring_ != nullptr; }

  /// The oldest entry, or null if there is none. The producer leaves it alone until pop().
  const Entry* front() noexcept {
    if (head_ == tail_) {
      tail_ = ring_->tail.load(std::memory_order_seq_cst);
      if (head_ == tail_) return nullptr;
    }
    return &ring_->slots[head_ % Slots];
  }
  void pop() noexcept { ring_->head.store(++head_, std::memory_order_seq_cst); }

 private:
  ring* ring_ = nullptr;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
};

}  // namespace ddpp::detail
