// SPDX-License-Identifier: BSL-1.0
// Memory of a device as a buffer.
#pragma once

#include <ddpp/buffer.hpp>

#include <cstddef>
#include <span>

namespace ddpp {

/// `count` elements of device memory that somebody else owns. A buffer for communicators whose transport
/// moves device memory; it cannot be indexed, as the host may not look there.
template <class T>
class device_span {
 public:
  using element_type = T;

  constexpr device_span() = default;
  constexpr device_span(T* data, std::size_t count) noexcept : data_(data), size_(count) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr device_span subspan(std::size_t offset, std::size_t count) const noexcept {
    return {data_ + offset, count};
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
struct buffer_traits<device_span<T>> {
  static constexpr bool borrowed = true, on_device = true;
  static constexpr std::span<T> span(const device_span<T>& elements) noexcept {
    return {elements.data(), elements.size()};
  }
};

}  // namespace ddpp
