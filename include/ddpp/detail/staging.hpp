// SPDX-License-Identifier: BSL-1.0
// Buffers aligned to a cache line that are handed out and taken back, so that steady traffic allocates
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// Memory aligned to 64 bytes. Empty when default-constructed.
class staging {
 public:
  static constexpr std::size_t alignment = 64;

  staging() = default;
  explicit staging(std::size_t capacity)
      : data_(static_cast<std::byte*>(::operator new (capacity, std::align_val_t{alignment}))),
        capacity_(capacity) {}

  std::byte* data() const noexcept { return data_.get(); }
  std::size_t capacity() const noexcept { return data_ ? capacity_ : 0; }

 private:
  struct free_aligned {
    void operator()(std::byte* block) const noexcept {
      ::operator delete (block, std::align_val_t{alignment});
    }
  };

  std::unique_ptr<std::byte, free_aligned> data_;
  std::size_t capacity_ = 0;
};

/// Keeps a few returned buffers for the next who asks.
class staging_pool {
 public:
  /// The smallest kept buffer that is large enough, or a new one.
  staging take(std::size_t bytes) {
    auto best = kept_.end();
    for (auto at = kept_.begin(); at != kept_.end(); ++at) {
      if (at->capacity() >= bytes && (best == kept_.end() || at->capacity() < best->capacity())) best = at;
    }
    if (best == kept_.end()) return staging(std::max(bytes, smallest));
    staging found = std::move(*best);
    kept_bytes_ -= found.capacity();
    if (best != kept_.end() - 1) *best = std::move(kept_.back());
    kept_.pop_back();
    return found;
  }

  void give_back(staging buffer) noexcept {
    if (buffer.capacity() == 0 || kept_.size() == most_kept || kept_bytes_ + buffer.capacity() > most_bytes)
      return;
    kept_bytes_ += buffer.capacity();
    kept_.push_back(std::move(buffer));
  }

 private:
  static constexpr std::size_t smallest = 4096;
  static constexpr std::size_t most_kept = 8;
  static constexpr std::size_t most_bytes = std::size_t{16} << 20;

  static std::vector<staging> reserved() {
    std::vector<staging> room;
    room.reserve(most_kept);
    return room;
  }

  std::vector<staging> kept_ = reserved();
  std::size_t kept_bytes_ = 0;
};

}  // namespace ddpp::detail
