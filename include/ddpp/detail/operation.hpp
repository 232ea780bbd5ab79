// SPDX-License-Identifier: BSL-1.0
// One message on its way out of, or into, a rank, and the lists and pool that such nodes live in.
#pragma once

#include <ddpp/detail/staging.hpp>
#include <ddpp/fingerprint.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace ddpp::detail {

/// Everything but `done` belongs to the engine's mutex. `done` is set last: who reads it as true sees the
/// rest.
struct operation {
  enum class kind : std::uint8_t {
    send,        ///< of the caller's memory, or of a copy in `buffer` once the caller has gone
    receive,     ///< into the caller's memory
    view,        ///< into whatever holds the message: `lent` in the end
    unexpected,  ///< a message nobody has asked for yet, arriving in `buffer`
  };

  kind what = kind::send;
  int peer = 0;
  int tag = 0;
  fingerprint print = {};  ///< the sender's or receiver's at the time of the call; only for tags below 0
  const std::byte* from = nullptr;  ///< send
  std::byte* into = nullptr;        ///< receive; view and unexpected once `buffer` is there
  std::size_t bytes = 0;
  std::size_t moved = 0;
  bool begun = false;      ///< part of it has travelled, or it is bound to a message that has
  bool abandoned = false;  ///< its request is gone: the engine recycles it when it is done
  bool slept_on = false;   ///< a thread sleeps until it is done
  bool pending = false;    ///< counts among what the background thread is for
  operation* claim =
      nullptr;  ///< unexpected: the receive or view that will get it; receive and view: the reverse
  staging buffer = {};
  std::span<const std::byte> lent = {};  ///< view: the whole message
  int loan = -1;                         ///< view: the link's name for what it has lent, or -1
  std::atomic<bool> done{false};

  operation* next = nullptr;
  operation* previous = nullptr;
  bool listed = false;
};

/// A doubly linked list through the nodes.
class operation_list {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  operation* front() const noexcept { return first_; }

  void push_back(operation& node) noexcept {
    node.next = nullptr;
    node.previous = last_;
    (last_ != nullptr ? last_->next : first_) = &node;
    last_ = &node;
    node.listed = true;
  }

  void remove(operation& node) noexcept {
    (node.previous != nullptr ? node.previous->next : first_) = node.next;
    (node.next != nullptr ? node.next->previous : last_) = node.previous;
    node.next = node.previous = nullptr;
    node.listed = false;
  }

  template <class Predicate>
  operation* find(Predicate matches) const {
    for (operation* node = first_; node != nullptr; node = node->next) {
      if (matches(*node)) return node;
    }
    return nullptr;
  }

 private:
  operation* first_ = nullptr;
  operation* last_ = nullptr;
};

/// Nodes in blocks that are never freed before the pool is.
class operation_pool {
 public:
  operation& take() {
    if (free_ == nullptr) grow();
    operation& node = *free_;
    free_ = node.next;
    node.next = nullptr;
    return node;
  }

  /// The node's `buffer` must have been taken out.
  void give_back(operation& node) noexcept {
    node.next = free_;
    free_ = &node;
  }

 private:
  void grow() {
    constexpr std::size_t block = 32;
    blocks_.push_back(std::make_unique<operation[]>(block));
    for (std::size_t i = 0; i < block; ++i) give_back(blocks_.back()[i]);
  }

  std::vector<std::unique_ptr<operation[]>> blocks_;
  operation* free_ = nullptr;
};

}  // namespace ddpp::detail
