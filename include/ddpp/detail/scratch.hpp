// SPDX-License-Identifier: BSL-1.0
// Uninitialised room for elements of an algorithm, aligned to a cache line. Small ones lie on the stack; of
// large ones each thread keeps a few for the next, so that steady traffic allocates nothing.
#pragma once

#include <ddpp/detail/staging.hpp>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace ddpp::detail {

inline staging_pool& pool_of_thread() {
  static thread_local staging_pool pool;
  return pool;
}

template <class T>
class scratch {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= staging::alignment);

 public:
  explicit scratch(std::size_t count) : count_(count) {
    if (count * sizeof(T) > inline_bytes) block_ = pool_of_thread().take(count * sizeof(T));
  }
  ~scratch() {
    if (block_.capacity() != 0) pool_of_thread().give_back(std::move(block_));
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  T* data() noexcept { return reinterpret_cast<T*>(block_.capacity() != 0 ? block_.data() : inline_); }
  std::span<T> span() noexcept { return {data(), count_}; }

 private:
  static constexpr std::size_t inline_bytes = 4096;

  std::size_t count_;
  staging block_;
  alignas(staging::alignment) std::byte inline_[inline_bytes];
};

}  // namespace ddpp::detail
