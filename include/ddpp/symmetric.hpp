// SPDX-License-Identifier: BSL-1.0
// Memory that all ranks allocate together. Where the backend can (`has_symmetric_memory`: shm, threads), each
// rank sees the others' parts, and all_reduce, reduce_scatter, all_gather and broadcast work in them with no
// copy between.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddpp {

/// A fixed number of elements, zero at first, aligned to a cache line. Movable; a contiguous range, hence a
/// buffer. May outlive its communicator.
template <class T>
class symmetric_buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "symmetric memory holds elements that can be copied byte by byte");

 public:
  using value_type = T;

  symmetric_buffer() = default;
  /// This rank's own, that no other sees.
  explicit symmetric_buffer(std::size_t count) : size_(count) {
    T* const elements = static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{alignment}));
    elements_ = std::shared_ptr<T>(elements, [](T* memory) {
      ::operator delete (static_cast<void*>(memory), std::align_val_t{alignment});
    });
    std::memset(static_cast<void*>(elements), 0, count * sizeof(T));
  }
  /// The first elements in memory that `part` keeps.
  symmetric_buffer(const std::shared_ptr<std::byte>& part, std::size_t count)
      : elements_(part, reinterpret_cast<T*>(part.get())), size_(count) {}
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

  std::shared_ptr<T> elements_;
  std::size_t size_ = 0;
};

namespace detail {

/// What a rank tells the others of its attempt: an address, or what went wrong.
class window_word {
 public:
  [[gnu::cold]] void put(bool good, const std::string& text) noexcept {
    good_ = good;
    text_.fill(0);
    text.copy(text_.data(), text_.size() - 1);
  }
  bool good() const noexcept { return good_; }
  std::string text() const { return text_.data(); }

 private:
  bool good_ = true;
  std::array<char, 255> text_{};
};

/// This rank's part of a window with room for `bytes` bytes of each rank. Throws `resource_error` on all
/// ranks where one of them cannot have it.
template <class C>
[[gnu::cold]] std::shared_ptr<std::byte> make_window(C& inside, std::size_t bytes) {
  auto& transport = inside.transport();
  decltype(transport.offer_window(bytes)) offer;
  window_word word;
  const auto attempt = [&](auto make) {
    try {
      make();
    } catch (const resource_error& error) {
      word.put(false, text("rank ", inside.rank(), ": ", error.what()));
    }
  };
  if (inside.rank() == 0) {
    attempt([&] {
      offer = transport.offer_window(bytes);
      word.put(true, offer.address);
    });
  }
  ddpp::broadcast(inside, std::span(&word, 1));
  if (inside.rank() != 0 && word.good())
    attempt([&] { offer.window = transport.accept_window(word.text(), bytes); });
  std::vector<window_word> words(static_cast<std::size_t>(inside.size()));
  ddpp::all_gather(inside, std::span(&word, 1), words);
  for (const window_word& each : words) {
    if (!each.good()) throw resource_error(each.text());
  }
  return transport.add_window(offer.window);
}

}  // namespace detail

/// Collective: all ranks ask for the same number of elements. Blocks. The memory is of use with this
/// communicator; with another it is memory like any. Throws `resource_error` on all ranks, with the bytes
/// needed and available, where one cannot have it, and what collectives throw.
///
/// After a collective in it has thrown, a rank that was stopped in the midst of that one may still write its
/// part of the result when it goes on: destroy the buffer and allocate another after `recover` or `shrink`. A
/// child made by fork() shares the memory with its parent. On a device's transport it is memory of the
/// device, which the host may not look at. Where the backend has no such memory, or the group one rank, this
/// is memory of the rank's own, and `std::bad_alloc` tells of its lack.
template <class T, class C>
symmetric_buffer<T> allocate_symmetric(C& comm, std::size_t count) {
  detail::check(count <= std::numeric_limits<std::size_t>::max() / sizeof(T) / 2, "allocate_symmetric", count,
                " elements are more than there can be");
  if constexpr (detail::is_on_device<C>) {
    std::shared_ptr<std::byte> part;
    std::string refused;
    comm.run(detail::fingerprint_of<T>(collective::allocate_symmetric, count), [&](C& inside) {
      try {
        part = inside.transport().allocate_symmetric(std::max<std::size_t>(count * sizeof(T), 1),
                                                     inside.deadline());
      } catch (const resource_error& error) {  // which all ranks throw, so the group is as it was
        refused = error.what();
      }
    });
    if (part == nullptr) throw resource_error(refused);
    return symmetric_buffer<T>(part, count);
  } else if constexpr (has_symmetric_memory<typename C::transport_type> && alignof(T) <= 4096) {
    if (comm.size() > 1) {
      std::shared_ptr<std::byte> part;
      std::string refused;
      comm.run(detail::fingerprint_of<T>(collective::allocate_symmetric, count), [&](C& inside) {
        try {
          part = detail::make_window(inside, std::max<std::size_t>(count * sizeof(T), 1));
        } catch (const resource_error& error) {  // which all ranks throw, so the group is as it was
          refused = error.what();
        }
      });
      if (part == nullptr) throw resource_error(refused);
      return symmetric_buffer<T>(part, count);
    }
  }
  return symmetric_buffer<T>(count);
}

}  // namespace ddpp
