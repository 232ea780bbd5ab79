// SPDX-License-Identifier: BSL-1.0
// Who is here, has left, or is lost, as far as this rank knows. The control thread writes, all threads read.
#pragma once

#include <ddpp/fingerprint.hpp>

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace ddpp::detail {

class tcp_presence {
 public:
  using state = rank_state::presence;

  explicit tcp_presence(int size) : states_(static_cast<std::size_t>(size)) {
    for (auto& each : states_) each.store(state::here, std::memory_order_relaxed);
  }

  int size() const noexcept { return static_cast<int>(states_.size()); }
  state of(int rank) const noexcept {
    return states_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  bool is_here(int rank) const noexcept { return of(rank) == state::here; }
  bool is_anyone_here_but(int rank) const noexcept {
    for (int r = 0; r < size(); ++r) {
      if (r != rank && is_here(r)) return true;
    }
    return false;
  }
  /// The collective that a rank was in when it left, if it has and was in one.
  std::optional<fingerprint> last_words(int rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = last_words_.find(rank);
    return found == last_words_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Into the table of a survey.
  void fill_in(std::vector<rank_state>& table) const {
    for (int r = 0; r < size(); ++r) {
      if (is_here(r)) continue;
      table[static_cast<std::size_t>(r)].is = of(r);
      if (const auto last = last_words(r)) table[static_cast<std::size_t>(r)].last = *last;
    }
  }

  /// False: that was known, or that it has left.
  bool lose(int rank) {
    auto expected = state::here;
    return states_[static_cast<std::size_t>(rank)].compare_exchange_strong(expected, state::lost);
  }
  /// False: that was known.
  bool leave(int rank, const std::optional<fingerprint>& last_words) {
    const std::lock_guard lock(mutex_);
    if (last_words) last_words_[rank] = *last_words;
    return states_[static_cast<std::size_t>(rank)].exchange(state::left) != state::left;
  }

 private:
  std::vector<std::atomic<state>> states_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<int, fingerprint> last_words_;
};

}  // namespace ddpp::detail
