// SPDX-License-Identifier: BSL-1.0
// Uninitialised room for elements of an algorithm, aligned to a cache line; small ones cost no allocation.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace ddpp::detail {

template <class T>
class scratch {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 64);

 public:
  explicit scratch(std::size_t count) : count_(count) {
    if (count * sizeof(T) > inline_bytes) {
      heap_.reset(static_cast<std::byte*>(::operator new (count * sizeof(T), std::align_val_t{64})));
    }
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  T* data() noexcept { return reinterpret_cast<T*>(heap_ ? heap_.get() : inline_); }
  std::span<T> span() noexcept { return {data(), count_}; }

 private:
  static constexpr std::size_t inline_bytes = 4096;
  struct release {
    void operator()(std::byte* p) const noexcept { ::operator delete (p, std::align_val_t{64}); }
  };
  std::size_t count_;
  std::unique_ptr<std::byte, release> heap_;
  alignas(64) std::byte inline_[inline_bytes];
};

}  // namespace ddpp::detail
