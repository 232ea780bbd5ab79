// SPDX-License-Identifier: BSL-1.0
// Memory that all ranks allocate together, so that a backend may reduce in it without a copy.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace ddpp {

/// A fixed number of elements, zero at first, aligned to a cache line. Movable; a contiguous range, hence a
/// buffer.
template <class T>
class symmetric_buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "symmetric memory holds elements that can be copied byte by byte");

 public:
  using value_type = T;

  symmetric_buffer() = default;
  explicit symmetric_buffer(std::size_t count)
      : elements_(static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{alignment}))),
        size_(count) {
    std::memset(static_cast<void*>(elements_.get()), 0, count * sizeof(T));
  }
  symmetric_buffer(symmetric_buffer&& other) noexcept
      : elements_(std::move(other.elements_)), size_(std::exchange(other.size_, 0)) {}
  symmetric_buffer& operator=(symmetric_buffer&& other) noexcept {
    elements_ = std::move(other.elements_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() noexcept { return elements_.get(); }
  const T* data() const noexcept { return elements_.get(); }
  std::size_t size() const noexcept { return size_; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }

 private:
  static constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;
  struct release {
    void operator()(T* elements) const noexcept {
      ::operator delete (static_cast<void*>(elements), std::align_val_t{alignment});
    }
  };

  std::unique_ptr<T, release> elements_;
  std::size_t size_ = 0;
};

/// Collective: all ranks ask for the same number of elements, in the same order of allocations. May block.
template <class T, class C>
symmetric_buffer<T> allocate_symmetric(C&, std::size_t count) {
  return symmetric_buffer<T>(count);
}

}  // namespace ddpp
