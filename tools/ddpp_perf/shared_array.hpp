// SPDX-License-Identifier: BSL-1.0
// An array that ranks may fill and their parent may read, whether ranks are threads or forked processes.
#pragma once

#include <cerrno>
#include <cstddef>
#include <new>
#include <span>
#include <sys/mman.h>
#include <system_error>
#include <type_traits>

namespace perf {

template <class T>
requires std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>
class shared_array {
 public:
  explicit shared_array(std::size_t count) : bytes_(count * sizeof(T) + 1) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    elements_ = {static_cast<T*>(memory), count};
    for (T& element : elements_) new (&element) T();
  }
  ~shared_array() { ::munmap(elements_.data(), bytes_); }
  shared_array(const shared_array&) = delete;
  shared_array& operator=(const shared_array&) = delete;

  std::span<T> elements() const { return elements_; }

 private:
  std::size_t bytes_;
  std::span<T> elements_;
};

}  // namespace perf
