// SPDX-License-Identifier: BSL-1.0
// Collectives through memory that all ranks see (`has_shared_slots`), without messages. Each rank shows parts
// of its buffer in slots; buffers in symmetric memory are read and written where they are. For what a round
// is, see detail/fabric_slots.hpp.
//
// There are three ways to all-reduce a buffer of B bytes on n ranks.
//
// Flat, for small buffers: each rank writes all of its buffer to its slot; when all have, each reduces all of
// them itself. One synchronisation; each rank writes B and reads (n - 1) B bytes of slots.
//
// In place, where all ranks' buffers lie in one symmetric window: each rank reduces its slice of all buffers
// into all of them. Two synchronisations; each rank reads B and writes B bytes.
//
// Sliced, for the rest, in chunks: each rank owns a slice of each chunk. It writes the slices that others own
// to its slot; when all have, it reduces its own from its buffer and the others' slots, into its buffer and
// its slot, where the others read it. A chunk is written in the round in which the one before is reduced: k
// chunks take k + 1 synchronisations. Each rank writes B and reads 2 (n - 1) / n * B bytes of slots.
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
#include <ddpp/detail/scratch.hpp>
#include <ddpp/detail/symmetric_window.hpp>
#include <ddpp/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

namespace ddpp::algorithms {

struct staged {
  static constexpr std::string_view name = "staged";

  /// Elements so large that a slot cannot hold one for each rank, or aligned to more than 64 bytes, go around
  /// a ring.
  template <class Comm, class T, class Op>
  requires has_shared_slots<typename Comm::transport_type>
  void all_reduce(Comm& comm, std::span<T> data, const Op& op) const {
    if constexpr (sizeof(T) > small_element || alignof(T) > line)
      if (!fits_slots<T>(comm)) return ring{}.all_reduce(comm, data, op);
    all_reduce_with(comm, data, reduce_with(op));
  }

  /// data = (sum over ranks of data) / divisor. 16-bit floats are added in float and rounded once.
  template <class Comm, class T>
  requires detail::number<T> && has_shared_slots<typename Comm::transport_type>
  void sum(Comm& comm, std::span<T> data, int divisor) const {
    all_reduce_with(comm, data, sum_and_divide<T>(divisor));
  }

  template <class Comm, class T, class Op>
  requires has_shared_slots<typename Comm::transport_type>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      const Op& op) const {
    if constexpr (sizeof(T) > small_element || alignof(T) > line)
      if (!fits_slots<T>(comm)) return ring{}.reduce_scatter(comm, in, out, blocks, op);
    reduce_scatter_with(comm, in, out, blocks, reduce_with(op));
  }

  /// out = this rank's block of (sum over ranks of in) / divisor, as `sum`.
  template <class Comm, class T>
  requires detail::number<T> && has_shared_slots<typename Comm::transport_type>
  void sum_block(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                 int divisor) const {
    reduce_scatter_with(comm, in, out, blocks, sum_and_divide<T>(divisor));
  }

  template <class Comm>
  requires has_shared_slots<typename Comm::transport_type>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks) const {
    auto& slots = open(comm, data.size());
    const int rank = comm.rank();
    std::size_t largest = 0;
    for (int r = 0; r < comm.size(); ++r) largest = std::max(largest, blocks.size(r));
    const std::size_t most = std::min(slots.most_bytes(), largest);
    symmetric_place mine = slots.find(data.data(), data.size());
    std::size_t done = 0;
    do {
      const auto length = [&](int r) { return part_of_block(blocks.size(r), done, most); };
      const auto place = [&](int r) {
        return data.data() + blocks.offset(r) + std::min(done, blocks.size(r));
      };
      const bool in_place =
          show(comm, slots, mine, most, [&] { put(slots, slots.slot(rank), place(rank), length(rank)); });
      if (in_place) {
        for_each_other(comm, [&](int peer) {
          const std::size_t at = blocks.offset(peer);
          copy(data.data() + at, buffer_of(slots, mine, peer) + at, blocks.size(peer));
        });
        return finish_in_place(comm, slots);
      }
      for_each_other(comm, [&](int peer) { copy(place(peer), slots.slot(peer), length(peer)); });
      slots.next_round();
      done += most;
    } while (done < largest);
  }

  /// The root does not wait for the others to read, but for two slots of data, or where all buffers are
  /// symmetric.
  template <class Comm>
  requires has_shared_slots<typename Comm::transport_type>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    auto& slots = open(comm, data.size());
    const bool sends = comm.rank() == root;
    symmetric_place mine = slots.find(data.data(), data.size());
    const std::size_t most = std::min(slots.most_bytes(), data.size());
    std::size_t done = 0;
    do {
      const std::size_t length = part_of_block(data.size(), done, most);
      slots.begin_round(most, comm.deadline());
      if (sends && mine.number == 0) put(slots, slots.slot(root), data.data() + done, length);
      slots.arrive(mine);
      if (!sends) slots.await_arrival(root, comm.deadline());
      const bool root_is_in_place = sends ? mine.number != 0 : slots.place_of(root).number != 0;
      if (root_is_in_place) {
        slots.await_arrivals(comm.deadline());
        if (all_in_place(comm, slots, mine)) {
          if (!sends) copy(data.data(), buffer_of(slots, mine, root), data.size());
          return finish_in_place(comm, slots);
        }
      } else {
        if (!sends) copy(data.data() + done, slots.slot(root), length);
        done += most;
      }
      mine = {};
      slots.next_round();
    } while (done < data.size());
  }

  template <class Comm>
  requires has_shared_slots<typename Comm::transport_type>
  void barrier(Comm& comm) const {
    auto& slots = open(comm, 0);
    slots.begin_round(0, comm.deadline());
    slots.arrive();
    slots.await_arrivals(comm.deadline());
    slots.next_round();
  }

 private:
  using symmetric_place = detail::symmetric_place;

  /// Such elements fit in any case: see staging_bytes_for().
  static constexpr std::size_t small_element = 64;

  /// Whether a slot has room for an element of each rank and one more.
  template <class T, class Comm>
  static bool fits_slots(Comm& comm) {
    const std::size_t room = comm.transport().shared_slots().most_bytes() - line;
    return alignof(T) <= line && sizeof(T) * (static_cast<std::size_t>(comm.size()) + 1) <= room;
  }

  /// What each rank reads of the others in a flat all-reduce: beyond, slices are less work.
  static constexpr std::size_t most_flat_bytes = std::size_t{2} << 10;
  /// Symmetric buffers up to this size go through slots, too: one synchronisation costs less than two.
  static constexpr std::size_t least_in_place_bytes = std::size_t{1} << 10;
  /// Bytes reduced at a time, so that what is read again soon is still in a cache.
  static constexpr std::size_t cached_bytes = std::size_t{128} << 10;
  /// A sliced all-reduce shows so much at a time.
  static constexpr std::size_t most_chunk_bytes = std::size_t{256} << 10;
  static constexpr std::size_t line = detail::line_bytes;

  // Reductions: into[c][i] = that of operands[0][i], operands[1][i], ..., for all c. Any `into` may be one of
  // the operands.

  template <class Op>
  static auto reduce_with(const Op& op) {
    return [&op]<class T>(T* const* into, int copies, const T* const* operands, int n, std::size_t count) {
      detail::reduce_operands_into_all(into, copies, operands, n, count, op);
    };
  }
  template <class T>
  static auto sum_and_divide(int divisor) {
    return [divisor](T* const* into, int copies, const T* const* operands, int n, std::size_t count) {
      detail::sum_and_divide_into_all(into, copies, operands, n, count, divisor);
    };
  }

  /// Reduces `count` elements, some at a time: into_of(c) says where copy c begins, operand_of(rank) where a
  /// rank's operand does.
  template <class T, class IntoOf, class OperandOf, class Reduce>
  static void reduce_in_steps(std::size_t count, int copies, IntoOf into_of, int n, OperandOf operand_of,
                              const Reduce& reduce) {
    constexpr std::size_t step = std::max<std::size_t>(1, cached_bytes / sizeof(T));
    detail::scratch<T*> into(static_cast<std::size_t>(copies));
    detail::scratch<const T*> operands(static_cast<std::size_t>(n));
    for (std::size_t at = 0; at < count; at += step) {
      for (int c = 0; c < copies; ++c) into.data()[c] = into_of(c) + at;
      for (int r = 0; r < n; ++r) operands.data()[r] = operand_of(r) + at;
      reduce(into.data(), copies, operands.data(), n, std::min(step, count - at));
    }
  }
  template <class T, class OperandOf, class Reduce>
  static void reduce_into(std::span<T> data, int n, OperandOf operand_of, const Reduce& reduce) {
    reduce_in_steps<T>(
        data.size(), 1, [&](int) { return data.data(); }, n, operand_of, reduce);
  }

  // All-reduce.

  template <class Comm, class T, class Reduce>
  static void all_reduce_with(Comm& comm, std::span<T> data, const Reduce& reduce) {
    if (comm.size() == 1)
      return reduce_into(
          data, 1, [&](int) { return data.data(); }, reduce);
    const std::size_t bytes = data.size_bytes();
    auto& slots = open(comm, bytes);
    symmetric_place mine;
    if (bytes > least_in_place_bytes) mine = slots.find(data.data(), bytes);
    if (bytes * static_cast<std::size_t>(comm.size() - 1) <= most_flat_bytes)
      flat(comm, slots, data, mine, reduce);
    else
      sliced(comm, slots, data, mine, reduce);
  }

  template <class Comm, class Slots, class T, class Reduce>
  static void flat(Comm& comm, Slots& slots, std::span<T> data, symmetric_place mine, const Reduce& reduce) {
    const auto in_slot = [&](int rank) { return reinterpret_cast<T*>(slots.slot(rank)); };
    const auto operand_of = [&](int r) -> const T* { return r == comm.rank() ? data.data() : in_slot(r); };
    if (show(comm, slots, mine, data.size_bytes(),
             [&] { put(slots, in_slot(comm.rank()), data.data(), data.size()); }))
      return all_reduce_in_place(comm, slots, data, mine, reduce);
    reduce_into(data, comm.size(), operand_of, reduce);
    slots.next_round();
  }

  template <class Comm, class Slots, class T, class Reduce>
  static void sliced(Comm& comm, Slots& slots, std::span<T> data, symmetric_place mine,
                     const Reduce& reduce) {
    const int n = comm.size(), rank = comm.rank();
    const std::size_t most = std::min(data.size(), chunk_length<T>(slots.most_bytes(), n));
    const std::size_t input_bytes = detail::round_up_to_lines(most * sizeof(T));
    const std::size_t slot_bytes = input_bytes + detail::partition(most, n).size(0) * sizeof(T);
    // In a slot: the elements of a chunk, at the places that they have in it; then a slice of the chunk
    // before.
    const auto inputs = [](std::byte* slot) { return reinterpret_cast<T*>(slot); };
    const auto slice = [&](std::byte* slot) { return reinterpret_cast<T*>(slot + input_bytes); };
    std::span<T> before;  // the chunk that is reduced
    for (std::size_t done = 0; done < data.size() || !before.empty(); done += before.size()) {
      const std::span<T> chunk = data.subspan(done, std::min(most, data.size() - done));
      const bool in_place = show(comm, slots, mine, slot_bytes, [&] {
        const detail::partition slices(chunk.size(), n), reduced(before.size(), n);
        const std::size_t begin = slices.offset(rank), end = begin + slices.size(rank);
        put(slots, inputs(slots.slot(rank)), chunk.data(), begin);
        put(slots, inputs(slots.slot(rank)) + end, chunk.data() + end, chunk.size() - end);
        T* const own = before.data() + reduced.offset(rank);
        const auto operand_of = [&](int r) -> const T* {
          return r == rank ? own : inputs(slots.last_slot(r)) + reduced.offset(rank);
        };
        T* const shown = slice(slots.slot(rank));
        if (slots.streams()) {
          reduce_into(
              std::span(own, reduced.size(rank)), n, operand_of,
              [&](T* const* into, int copies, const T* const* operands, int ranks, std::size_t count) {
                reduce(into, copies, operands, ranks, count);
                put(slots, shown + (into[0] - own), into[0], count);
              });
        } else {
          reduce_in_steps<T>(
              reduced.size(rank), 2, [&](int c) { return c == 0 ? own : shown; }, n, operand_of, reduce);
        }
      });
      if (in_place) return all_reduce_in_place(comm, slots, data, mine, reduce);
      const detail::partition reduced(before.size(), n);
      for_each_other(comm, [&](int owner) {
        copy(before.data() + reduced.offset(owner), slice(slots.slot(owner)), reduced.size(owner));
      });
      slots.next_round();
      before = chunk;
    }
  }

  /// Elements in a chunk of a sliced all-reduce: so many that they and a slice of theirs fit a slot.
  template <class T>
  static std::size_t chunk_length(std::size_t slot_bytes, int n) noexcept {
    const auto parts = static_cast<std::size_t>(n);
    const std::size_t per_slice = (std::min(slot_bytes, most_chunk_bytes) - line) / (parts + 1) / sizeof(T);
    return std::max<std::size_t>(per_slice, 1) * parts;
  }

  template <class Comm, class Slots, class T, class Reduce>
  static void all_reduce_in_place(Comm& comm, Slots& slots, std::span<T> data, const symmetric_place& mine,
                                  const Reduce& reduce) {
    // Slices of whole cache lines, where elements fill them.
    const detail::partition lines(data.size_bytes() / line, comm.size());
    const auto begin_of = [&](int r) {
      return r == comm.size() ? data.size() : lines.offset(r) * line / sizeof(T);
    };
    const std::size_t begin = begin_of(comm.rank()), count = begin_of(comm.rank() + 1) - begin;
    const auto slice_of = [&](int r) { return reinterpret_cast<T*>(buffer_of(slots, mine, r)) + begin; };
    reduce_in_steps<T>(count, comm.size(), slice_of, comm.size(), slice_of,
                       [&](T* const* into, int copies, const T* const* operands, int n, std::size_t length) {
                         slots.check();
                         reduce(into, copies, operands, n, length);
                       });
    finish_in_place(comm, slots);
  }

  // Reduce-scatter: for each other rank a part of its block in the slot.

  template <class Comm, class T, class Reduce>
  static void reduce_scatter_with(Comm& comm, std::span<const T> in, std::span<T> out,
                                  const detail::partition& blocks, const Reduce& reduce) {
    const int n = comm.size(), rank = comm.rank();
    if (n == 1)
      return reduce_into(
          out, 1, [&](int) { return in.data(); }, reduce);
    auto& slots = open(comm, in.size_bytes());
    std::size_t largest = 0;
    for (int r = 0; r < n; ++r) largest = std::max(largest, blocks.size(r));
    const std::size_t most = std::min(largest, slots.most_bytes() / static_cast<std::size_t>(n) / sizeof(T));
    symmetric_place mine = slots.find(in.data(), in.size_bytes());
    std::size_t done = 0;
    do {
      const auto for_rank = [&](std::byte* slot, int r) {
        return reinterpret_cast<T*>(slot) + static_cast<std::size_t>(r) * most;
      };
      const bool in_place = show(comm, slots, mine, most * static_cast<std::size_t>(n) * sizeof(T), [&] {
        for_each_other(comm, [&](int peer) {
          put(slots, for_rank(slots.slot(rank), peer),
              in.data() + blocks.offset(peer) + std::min(done, blocks.size(peer)),
              part_of_block(blocks.size(peer), done, most));
        });
      });
      const T* const own = in.data() + blocks.offset(rank);
      if (in_place) {
        const auto operand_of = [&](int r) {
          return reinterpret_cast<const T*>(buffer_of(slots, mine, r)) + blocks.offset(rank);
        };
        reduce_into(out, n, operand_of, reduce);
        return finish_in_place(comm, slots);
      }
      const auto operand_of = [&](int r) -> const T* {
        return r == rank ? own + std::min(done, out.size()) : for_rank(slots.slot(r), rank);
      };
      reduce_into(out.subspan(std::min(done, out.size()), part_of_block(out.size(), done, most)), n,
                  operand_of, reduce);
      slots.next_round();
      done += most;
    } while (done < largest);
  }

  // What they have in common.

  template <class Comm>
  static auto& open(Comm& comm, std::size_t bytes) {
    auto& slots = comm.transport().shared_slots();
    slots.open(bytes);
    return slots;
  }

  /// Begins a round and arrives, with the buffer where it is if it has a place in symmetric memory, else with
  /// what write() puts into the slot; and waits for all. True if the round is one in which all buffers are
  /// where they are. False if all are in slots; it takes a second round to come to that if only some have a
  /// place.
  template <class Comm, class Slots, class Write>
  static bool show(Comm& comm, Slots& slots, symmetric_place& mine, std::size_t slot_bytes, Write write) {
    for (;;) {
      slots.begin_round(slot_bytes, comm.deadline());
      if (mine.number == 0) write();
      slots.arrive(mine);
      slots.await_arrivals(comm.deadline());
      if (all_in_place(comm, slots, mine)) return true;
      mine = {};
      bool none = true;
      for (int r = 0; r < comm.size(); ++r) none = none && slots.place_of(r).number == 0;
      if (none) return false;
      slots.next_round();
    }
  }

  template <class Comm, class Slots>
  static bool all_in_place(Comm& comm, Slots& slots, const symmetric_place& mine) noexcept {
    if (mine.number == 0) return false;
    for (int r = 0; r < comm.size(); ++r) {
      if (slots.place_of(r).number != mine.number) return false;
    }
    return true;
  }

  template <class Slots>
  static std::byte* buffer_of(Slots& slots, const symmetric_place& mine, int rank) noexcept {
    return mine.window->part(rank) + slots.place_of(rank).offset;
  }

  /// Until then the others read and write this rank's buffer.
  template <class Comm, class Slots>
  static void finish_in_place(Comm& comm, Slots& slots) {
    slots.reduced();
    slots.await_reductions(comm.deadline());
    slots.next_round();
  }

  /// f(peer), beginning with this rank's neighbour, so that not all go to the same first.
  template <class Comm, class F>
  static void for_each_other(const Comm& comm, F f) {
    for (int distance = 1; distance < comm.size(); ++distance) f((comm.rank() + distance) % comm.size());
  }

  /// How much of a block is left after `done`, up to `most`.
  static constexpr std::size_t part_of_block(std::size_t size, std::size_t done, std::size_t most) noexcept {
    return done < size ? std::min(most, size - done) : 0;
  }

  /// Into this rank's slot.
  template <class Slots, class T>
  static void put(Slots& slots, T* to, const T* from, std::size_t count) {
    slots.put(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), count * sizeof(T));
  }
  template <class T>
  static void copy(T* to, const T* from, std::size_t count) {
    detail::copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                       count * sizeof(T));
  }
};

}  // namespace ddpp::algorithms
