// SPDX-License-Identifier: BSL-1.0
// Memory that the ranks of a group have allocated together, each a part of the same size, and all of which
// each of them sees.
#pragma once

#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/mapping.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ddpp::detail {

class symmetric_window {
 public:
  static constexpr std::size_t page = 4096;
  /// From one rank's part to the next.
  static constexpr std::size_t stride(std::size_t bytes) noexcept { return (bytes + page - 1) / page * page; }

  /// Of all ranks together. Throws `resource_error` where that is more than there can be.
  static std::size_t total(std::size_t bytes, int ranks) {
    const std::size_t most = std::numeric_limits<std::size_t>::max() / 2 / static_cast<std::size_t>(ranks);
    if (bytes > most - page)
      throw resource_error(
          text(bytes, " bytes of symmetric memory for each of ", ranks, " ranks are more than there can be"));
    return stride(bytes) * static_cast<std::size_t>(ranks);
  }

  symmetric_window(mapping memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  std::byte* part(int rank) const noexcept {
    return memory_.data() + static_cast<std::size_t>(rank) * stride(bytes_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  mapping memory_;
  std::size_t bytes_;  // of each part
};

/// Where in symmetric memory a buffer begins. Window 0: it does not lie in any.
struct symmetric_place {
  std::uint32_t number = 0;            ///< of the window, the same on all ranks
  std::uint64_t offset = 0;            ///< bytes into the rank's part
  symmetric_window* window = nullptr;  ///< valid while this rank uses a buffer in it
};

/// A rank's windows, by numbers that are the same on all ranks.
class symmetric_windows {
 public:
  explicit symmetric_windows(int rank) : rank_(rank) {}

  /// Called by all ranks in the same order. The window is known until the handle goes, and exists as long as
  /// any rank of this process has a handle.
  [[gnu::cold]] static std::shared_ptr<std::byte> add(const std::shared_ptr<symmetric_windows>& windows,
                                                      const std::shared_ptr<symmetric_window>& window) {
    std::uint32_t number = 0;
    {
      const std::lock_guard lock(windows->mutex_);
      number = ++windows->last_;
      windows->known_.push_back({number, window});
      windows->any_.store(true, std::memory_order_relaxed);
    }
    return std::shared_ptr<std::byte>(window->part(windows->rank_),
                                      [windows, window, number](std::byte*) { windows->forget(number); });
  }

  symmetric_place find(const void* data, std::size_t bytes) const noexcept {
    if (!any_.load(std::memory_order_relaxed)) return {};
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::lock_guard lock(mutex_);
    for (const entry& known : known_) {
      const auto part = reinterpret_cast<std::uintptr_t>(known.window->part(rank_));
      if (begin >= part && bytes <= known.window->bytes() && begin - part <= known.window->bytes() - bytes)
        return {known.number, begin - part, known.window.get()};
    }
    return {};
  }

 private:
  struct entry {
    std::uint32_t number;
    std::shared_ptr<symmetric_window> window;
  };

  void forget(std::uint32_t number) noexcept {
    if (guard_.in_child()) return;  // where another thread may have held the mutex for ever
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [&](const entry& known) { return known.number == number; });
    any_.store(!known_.empty(), std::memory_order_relaxed);
  }

  const int rank_;
  const fork_guard guard_;
  mutable std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::uint32_t last_ = 0;
  std::vector<entry> known_;
};

}  // namespace ddpp::detail
