// SPDX-License-Identifier: BSL-1.0
// What training does to memory of the kind that a communicator's transport moves: the host's, at once, or a
// device's, where it is put on comm.stream(). That is the program's stream, so after the kernels that have
// computed a gradient; and inside a script the one of its collectives, so between those.
#pragma once

#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/scaling.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// The kernels for a transport's devices, launched on a stream: see detail/nccl_kernels.hpp.
template <class Transport>
struct device_kernels;

template <class C>
void copy_memory(const C& comm, std::byte* to, const std::byte* from, std::size_t bytes) {
  if constexpr (is_on_device<C>)
    comm.transport().copy({from, bytes}, {to, bytes}, comm.stream());
  else
    copy_bytes(to, from, bytes);
}

template <class C>
void clear_memory(const C& comm, std::byte* where, std::size_t bytes) {
  if constexpr (is_on_device<C>)
    comm.transport().clear({where, bytes}, comm.stream());
  else
    std::memset(where, 0, bytes);
}

/// Where blocking calls wait on the host, for what has been put on comm.stream().
template <class C>
void await_memory(const C& comm) {
  if constexpr (is_on_device<C>) {
    if (comm.transport().waits_on_host()) comm.transport().await_caller();
  }
}

/// to[i] = Narrow(from[i] * factor): float and double to 16 bits.
template <class C, class Narrow, class T>
void narrow_scaled(const C& comm, std::span<Narrow> to, std::span<const T> from, T factor) {
  if constexpr (is_on_device<C>)
    device_kernels<typename C::transport_type>::narrow_scaled(to.data(), from.data(), to.size(), factor,
                                                              comm.stream());
  else
    narrow_scaled(to.data(), from.data(), to.size(), factor);
}

/// to[i] = from[i]: 16 bits to float and double.
template <class C, class T, class Narrow>
void widen(const C& comm, std::span<T> to, std::span<const Narrow> from) {
  if constexpr (is_on_device<C>)
    device_kernels<typename C::transport_type>::widen(to.data(), from.data(), to.size(), comm.stream());
  else
    widen(to.data(), from.data(), to.size());
}

/// Room that is kept for the next time, and grows; what was in it is lost then. A copy has room of its own.
class kept_room {
 public:
  kept_room() = default;
  kept_room(const kept_room&) noexcept {}
  kept_room& operator=(const kept_room&) noexcept { return *this; }
  ~kept_room() = default;

  template <class T, class C>
  std::span<T> of(const C& comm, std::size_t count) {
    if (count * sizeof(T) > bytes_) {
      if (is_on_device<C>) outgrown_.push_back(std::move(memory_));
      memory_.reset();
      bytes_ = 0;
      if constexpr (is_on_device<C>)
        memory_ = comm.transport().allocate(count * sizeof(T));
      else
        memory_ = std::shared_ptr<std::byte[]>(new std::byte[count * sizeof(T)]);
      bytes_ = count * sizeof(T);
    }
    return {reinterpret_cast<T*>(memory_.get()), count};
  }

 private:
  std::shared_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  /// To free a device's memory is to wait for all that ranks have issued in this process, some of whom may be
  /// waiting for this one.
  std::vector<std::shared_ptr<std::byte[]>> outgrown_;
};

}  // namespace ddpp::detail
