// SPDX-License-Identifier: BSL-1.0
// Who of those that have come to a group in the making is still there, as far as the store can tell.
//
// Who comes holds a key that goes with its process, and then says so under another that stays. Who has
// become a member takes that back before it lets go: from then on the transport knows of its death. So a rank
// that has said that it is here, holds nothing and has still said so afterwards has died or given up. Rank 0
// looks at all; the others look at rank 0, and for its word.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ddpp::detail {

[[noreturn, gnu::cold]] inline void throw_lost_in_init(int lost, int rank) {
  throw peer_lost(
      text("rank ", rank, ", init: rank ", lost, " died or gave up while the group came together"), lost,
      "init", 0);
}

/// Not thread-safe. The store must outlive it.
class presence {
 public:
  presence(store& meeting, std::string group, int rank, int size)
      : store_(&meeting), group_(std::move(group)), rank_(rank), size_(size) {}

  void come() {
    held_ = store_->hold(key("held/", rank_));
    if (held_) store_->set(key("here/", rank_), "");
  }
  /// This rank is a member.
  void settle() {
    if (!held_) return;
    store_->delete_key(key("here/", rank_));
    held_.reset();
  }

  bool is_there(int peer) { return has_come(peer) && is_held(peer); }
  /// Of one that had come before.
  bool is_member(int peer) { return held_ && !has_come(peer); }
  bool is_gone(int peer) { return has_come(peer) && !is_held(peer) && has_come(peer); }

  /// On rank 0: the first that is gone.
  std::optional<int> first_gone() {
    for (int peer = 1; peer < size_; ++peer) {
      if (is_gone(peer)) return peer;
    }
    return std::nullopt;
  }

  /// Throws `peer_lost` if somebody is gone. Looks four times a second, however often it is called.
  void look() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return;
    next_look_ = now + interval;
    const std::string word = text(group_, "/lost");
    if (rank_ == 0) {
      const std::optional<int> gone = first_gone();
      if (!gone) return;
      store_->set(word, text(*gone));
      throw_lost_in_init(*gone, rank_);
    }
    if (store_->check({word})) throw_lost_in_init(std::atoi(store_->get(word).c_str()), rank_);
    if (is_gone(0)) throw_lost_in_init(0, rank_);
  }

  static constexpr std::chrono::milliseconds interval{250};

 private:
  std::string key(const char* what, int rank) const { return text(group_, "/", what, rank); }
  bool has_come(int peer) { return store_->check({key("here/", peer)}); }
  bool is_held(int peer) { return store_->is_held(key("held/", peer)); }

  store* store_;
  std::string group_;
  int rank_, size_;
  std::shared_ptr<void> held_;
  std::chrono::steady_clock::time_point next_look_ = std::chrono::steady_clock::now() + interval;
};

}  // namespace ddpp::detail
