// SPDX-License-Identifier: BSL-1.0
// What the front doors ask of a transport that moves a device's memory: there the transport's own collectives
// do it, or it does not compile. Nothing falls back to a path over the host unseen.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/op.hpp>

#include <span>
#include <type_traits>

namespace ddpp::detail {

/// Named as the algorithm of a collective whose buffers are in host memory though the transport moves a
/// device's: it goes over the control plane, and blocks.
struct host_memory : algorithms::automatic {};

/// The algorithm to name in a collective of host memory, as are all that the library itself has to say.
template <class C>
inline constexpr auto in_host_memory =
    std::conditional_t<C::transport_type::memory == memory_space::device, host_memory, the_communicators>{};

/// Whether a collective's buffers are a device's memory.
template <class C, class Alg = the_communicators>
inline constexpr bool is_on_device =
    C::transport_type::memory == memory_space::device && !std::is_same_v<Alg, host_memory>;

template <class Alg>
constexpr void refuse_algorithm() {
  static_assert(!is_named<Alg>,
                "ddpp: algorithms work in host memory; on this transport collectives run on the device: name "
                "no algorithm, or use a communicator of a host's transport for data there");
}

template <class Op>
inline constexpr bool is_bitwise =
    std::is_same_v<Op, band_t> || std::is_same_v<Op, bor_t> || std::is_same_v<Op, bxor_t>;

template <class C, class T, class Op, class Alg>
constexpr void require_native_reduction() {
  refuse_algorithm<Alg>();
  using transport = typename C::transport_type;
  constexpr bool has_type = has_all_reduce<transport, T, sum_t>, fits = has_all_reduce<transport, T, Op>;
  static_assert(
      has_type,
      "ddpp: NCCL does not reduce elements of this type: it has 8, 32 and 64-bit integers, half, bfloat16, "
      "float, double and, from 2.24 on, 8-bit floats. Copy the data to the host and use a communicator of a "
      "host's transport for others");
  static_assert(
      !has_type || fits || !is_bitwise<Op>,
      "ddpp: NCCL has no bitwise operations. Copy the data to the host and use a communicator of a host's "
      "transport for them");
  static_assert(
      !has_type || fits || is_bitwise<Op>,
      "ddpp: NCCL has operations of its own alone: sum, prod, min, max, avg and premul_sum. Copy the data to "
      "the host and use a communicator of a host's transport for others");
}

/// Refuses memory that the device cannot reach.
template <class Alg = the_communicators, class C, class T>
void check_memory(const C& comm, std::span<T> data, const char* operation) {
  if constexpr (is_on_device<C, Alg>) {
    if (!data.empty()) comm.transport().check_memory(data.data(), operation);
  }
}

}  // namespace ddpp::detail
