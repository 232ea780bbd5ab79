// SPDX-License-Identifier: BSL-1.0
// All-reduce through memory that all ranks see (`has_shared_slots`), without messages. Each rank has two
// slots there, used in turn.
//
// n ranks, a buffer of B bytes:
//
//   flat     for small buffers. Each rank writes all of its buffer to its slot; when all have, each reduces
//   all
//            of them itself. One synchronisation; each rank writes B and reads n * B bytes.
//   sliced   for the rest, in chunks of up to a slot. Each rank owns a slice of the chunk. It writes the
//   slices
//            that others own to its slot; when all have, it reduces its own from its buffer and the others'
//            slots, into its slot and its buffer; when all have, it reads the others' slices. Two
//            synchronisations per chunk; each rank writes B and reads 2 (n - 1) / n * B bytes of slots.
//
// All ranks must bring the same number of elements: the fingerprint of the running collective, which is
// compared, has it, unless the algorithm is called by itself in a script.
//
// Operands are applied in the order of ranks: all ranks get the same bits, whatever the number of chunks.
#pragma once

#include <ddpp/algorithms/ring.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/partition.hpp>
#include <ddpp/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

namespace ddpp::algorithms {

struct staged {
  static constexpr std::string_view name = "staged";

  /// Elements of more than 4096 bytes, or aligned to more than 64, go around a ring.
  template <class Comm, class T, class Op>
  requires has_shared_slots<typename Comm::transport_type>
  void all_reduce(Comm& comm, std::span<T> data, const Op& op) const {
    if constexpr (sizeof(T) > largest_element || alignof(T) > 64)
      ring{}.all_reduce(comm, data, op);
    else
      run_with(comm, data, op);
  }

  /// data = (sum over ranks of data) / divisor, added in float and rounded once.
  template <class Comm, class T>
  requires is_16_bit_float<T> && has_shared_slots<typename Comm::transport_type>
  void sum_16_bit(Comm& comm, std::span<T> data, int divisor) const {
    run(comm, data, [&](T* into, auto operand_of, int n, std::size_t count) {
      constexpr std::size_t block = 256;
      for (std::size_t done = 0; done < count; done += block) {
        const std::size_t length = std::min(block, count - done);
        float total[block];
        for (std::size_t i = 0; i < length; ++i) total[i] = static_cast<float>(operand_of(0)[done + i]);
        for (int r = 1; r < n; ++r) {
          const T* const operand = operand_of(r) + done;
          for (std::size_t i = 0; i < length; ++i) total[i] += static_cast<float>(operand[i]);
        }
        for (std::size_t i = 0; i < length; ++i) into[done + i] = T(total[i] / static_cast<float>(divisor));
      }
    });
  }

 private:
  /// What each rank reads of the others in a flat all-reduce: beyond, slices are less work.
  static constexpr std::size_t most_flat_bytes = std::size_t{8} << 10;
  /// Elements reduced at a time, so that partial results stay in the innermost cache.
  static constexpr std::size_t cached_bytes = std::size_t{8} << 10;
  static constexpr std::size_t largest_element = 4096;

  template <class Comm, class T, class Op>
  void run_with(Comm& comm, std::span<T> data, const Op& op) const {
    run(comm, data, [&](T* into, auto operand_of, int n, std::size_t count) {
      detail::combine(into, operand_of(0), operand_of(1), count, op);
      for (int r = 2; r < n; ++r) detail::combine(into, into, operand_of(r), count, op);
    });
  }

  template <class Comm, class T, class Reduce>
  void run(Comm& comm, std::span<T> data, const Reduce& reduce) const {
    if (comm.size() == 1) return;
    auto& slots = comm.transport().shared_slots();
    static_assert(std::remove_reference_t<decltype(slots)>::bytes >= most_flat_bytes);
    slots.open();
    if (data.size_bytes() * static_cast<std::size_t>(comm.size() - 1) <= most_flat_bytes)
      return flat(comm, slots, data, reduce);
    constexpr std::size_t chunk = std::remove_reference_t<decltype(slots)>::bytes / sizeof(T);
    for (std::size_t done = 0; done < data.size(); done += chunk)
      sliced(comm, slots, data.subspan(done, std::min(chunk, data.size() - done)), reduce);
  }

  template <class Comm, class Slots, class T, class Reduce>
  void flat(Comm& comm, Slots& slots, std::span<T> data, const Reduce& reduce) const {
    const auto in_slot = [&](int rank) { return reinterpret_cast<T*>(slots.slot(rank)); };
    copy(in_slot(comm.rank()), data.data(), data.size());
    slots.arrive(comm.print());
    slots.await_arrivals(comm.print(), comm.deadline());
    reduce(data.data(), in_slot, comm.size(), data.size());
    slots.next_round();
  }

  template <class Comm, class Slots, class T, class Reduce>
  void sliced(Comm& comm, Slots& slots, std::span<T> data, const Reduce& reduce) const {
    const int n = comm.size(), rank = comm.rank();
    const detail::partition slices(data.size(), n);
    const auto in_slot = [&](int r) { return reinterpret_cast<T*>(slots.slot(r)); };
    const std::size_t begin = slices.offset(rank), end = begin + slices.size(rank);
    copy(in_slot(rank), data.data(), begin);
    copy(in_slot(rank) + end, data.data() + end, data.size() - end);
    slots.arrive(comm.print());
    slots.await_arrivals(comm.print(), comm.deadline());

    constexpr std::size_t step = std::max<std::size_t>(1, cached_bytes / sizeof(T));
    for (std::size_t at = begin; at < end; at += step) {
      const std::size_t count = std::min(step, end - at);
      const auto operand_of = [&](int r) -> const T* { return (r == rank ? data.data() : in_slot(r)) + at; };
      reduce(in_slot(rank) + at, operand_of, n, count);
      copy(data.data() + at, in_slot(rank) + at, count);
    }
    slots.reduced();
    slots.await_reductions(comm.deadline());
    for (int distance = 1; distance < n; ++distance) {
      const int owner = (rank + distance) % n;
      copy(data.data() + slices.offset(owner), in_slot(owner) + slices.offset(owner), slices.size(owner));
    }
    slots.next_round();
  }

  template <class T>
  static void copy(T* to, const T* from, std::size_t count) {
    detail::copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                       count * sizeof(T));
  }
};

}  // namespace ddpp::algorithms
