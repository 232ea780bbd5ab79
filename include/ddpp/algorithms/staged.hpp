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
#include <ddpp/detail/function_ref.hpp>
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
    all_reduce_with(comm, elements::of(data), reduce_with<T>(op));
  }

  /// data = (sum over ranks of data) / divisor. 16-bit floats are added in float and rounded once.
  template <class Comm, class T>
  requires detail::number<T> && has_shared_slots<typename Comm::transport_type>
  void sum(Comm& comm, std::span<T> data, int divisor) const {
    all_reduce_with(comm, elements::of(data), sum_and_divide<T>(divisor));
  }

  template <class Comm, class T, class Op>
  requires has_shared_slots<typename Comm::transport_type>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      const Op& op) const {
    if constexpr (sizeof(T) > small_element || alignof(T) > line)
      if (!fits_slots<T>(comm)) return ring{}.reduce_scatter(comm, in, out, blocks, op);
    reduce_scatter_with(comm, std::as_bytes(in).data(), elements::of(out), blocks, reduce_with<T>(op));
  }

  /// out = this rank's block of (sum over ranks of in) / divisor, as `sum`.
  template <class Comm, class T>
  requires detail::number<T> && has_shared_slots<typename Comm::transport_type>
  void sum_block(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                 int divisor) const {
    reduce_scatter_with(comm, std::as_bytes(in).data(), elements::of(out), blocks,
                        sum_and_divide<T>(divisor));
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
          show(comm, slots, mine, most, [&] { slots.put(slots.slot(rank), place(rank), length(rank)); });
      if (in_place) {
        for_each_other(comm, [&](int peer) {
          const std::size_t at = blocks.offset(peer);
          detail::copy_bytes(data.data() + at, buffer_of(slots, mine, peer) + at, blocks.size(peer));
        });
        return finish_in_place(comm, slots);
      }
      for_each_other(comm,
                     [&](int peer) { detail::copy_bytes(place(peer), slots.slot(peer), length(peer)); });
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
      if (sends && mine.number == 0) slots.put(slots.slot(root), data.data() + done, length);
      slots.arrive(mine);
      if (!sends) slots.await_arrival(root, comm.deadline());
      const bool root_is_in_place = sends ? mine.number != 0 : slots.place_of(root).number != 0;
      if (root_is_in_place) {
        slots.await_arrivals(comm.deadline());
        if (all_in_place(comm, slots, mine)) {
          if (!sends) detail::copy_bytes(data.data(), buffer_of(slots, mine, root), data.size());
          return finish_in_place(comm, slots);
        }
      } else {
        if (!sends) detail::copy_bytes(data.data() + done, slots.slot(root), length);
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

  // Elements and operations have types up to here. What follows is compiled once for all of them.

  struct elements {
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t size = 1;  // bytes of one

    template <class T>
    static elements of(std::span<T> all) noexcept {
      return {std::as_writable_bytes(all).data(), all.size(), sizeof(T)};
    }
    std::size_t bytes() const noexcept { return count * size; }
    elements part(std::size_t offset, std::size_t length) const noexcept {
      return {data + offset * size, length, size};
    }
  };

  /// into[c][i] = that of operands[0][i], operands[1][i], ..., for all c and i < count. Any `into` may be one
  /// of the operands.
  using reduction = detail::function_ref<void(std::byte* const* into, int copies,
                                              const std::byte* const* operands, int n, std::size_t count)>;

  template <class T, class Op>
  static auto reduce_with(const Op& op) {
    return typed<T>([&op](T* const* into, int copies, const T* const* operands, int n, std::size_t count) {
      detail::reduce_operands_into_all(into, copies, operands, n, count, op);
    });
  }
  template <class T>
  static auto sum_and_divide(int divisor) {
    return typed<T>(
        [divisor](T* const* into, int copies, const T* const* operands, int n, std::size_t count) {
          detail::sum_and_divide_into_all(into, copies, operands, n, count, divisor);
        });
  }
  template <class T, class Reduce>
  static auto typed(Reduce reduce) {
    return [reduce](std::byte* const* into, int copies, const std::byte* const* operands, int n,
                    std::size_t count) {
      detail::scratch<T*> places(static_cast<std::size_t>(copies));
      detail::scratch<const T*> numbers(static_cast<std::size_t>(n));
      for (int c = 0; c < copies; ++c) places.data()[c] = reinterpret_cast<T*>(into[c]);
      for (int r = 0; r < n; ++r) numbers.data()[r] = reinterpret_cast<const T*>(operands[r]);
      reduce(places.data(), copies, numbers.data(), n, count);
    };
  }

  using place_of = detail::function_ref<std::byte*(int)>;
  using operand_of = detail::function_ref<const std::byte*(int)>;

  /// Reduces `count` elements of `size` bytes, some at a time: into(c) says where copy c begins,
  /// operand(rank) where a rank's operand does.
  static void reduce_in_steps(std::size_t size, std::size_t count, int copies, place_of into, int n,
                              operand_of operand, reduction reduce) {
    const std::size_t step = std::max<std::size_t>(1, cached_bytes / size);
    detail::scratch<std::byte*> places(static_cast<std::size_t>(copies));
    detail::scratch<const std::byte*> operands(static_cast<std::size_t>(n));
    for (std::size_t at = 0; at < count; at += step) {
      for (int c = 0; c < copies; ++c) places.data()[c] = into(c) + at * size;
      for (int r = 0; r < n; ++r) operands.data()[r] = operand(r) + at * size;
      reduce(places.data(), copies, operands.data(), n, std::min(step, count - at));
    }
  }
  static void reduce_into(const elements& data, int n, operand_of operand, reduction reduce) {
    const auto into = [&](int) { return data.data; };
    reduce_in_steps(data.size, data.count, 1, into, n, operand, reduce);
  }

  // All-reduce.

  template <class Comm>
  static void all_reduce_with(Comm& comm, const elements& data, reduction reduce) {
    const auto own = [&](int) { return data.data; };
    if (comm.size() == 1) return reduce_into(data, 1, own, reduce);
    const std::size_t bytes = data.bytes();
    auto& slots = open(comm, bytes);
    symmetric_place mine;
    if (bytes > least_in_place_bytes) mine = slots.find(data.data, bytes);
    if (bytes * static_cast<std::size_t>(comm.size() - 1) <= most_flat_bytes)
      flat(comm, slots, data, mine, reduce);
    else
      sliced(comm, slots, data, mine, reduce);
  }

  template <class Comm, class Slots>
  static void flat(Comm& comm, Slots& slots, const elements& data, symmetric_place mine, reduction reduce) {
    const int rank = comm.rank();
    const auto write = [&] { slots.put(slots.slot(rank), data.data, data.bytes()); };
    if (show(comm, slots, mine, data.bytes(), write))
      return all_reduce_in_place(comm, slots, data, mine, reduce);
    const auto operand = [&](int r) { return r == rank ? data.data : slots.slot(r); };
    reduce_into(data, comm.size(), operand, reduce);
    slots.next_round();
  }

  template <class Comm, class Slots>
  static void sliced(Comm& comm, Slots& slots, const elements& data, symmetric_place mine, reduction reduce) {
    const int n = comm.size(), rank = comm.rank();
    const std::size_t size = data.size;
    const std::size_t most = std::min(data.count, chunk_length(slots.most_bytes(), n, size));
    const std::size_t input_bytes = detail::round_up_to_lines(most * size);
    const std::size_t slot_bytes = input_bytes + detail::partition(most, n).size(0) * size;
    // In a slot: the elements of a chunk, at the places that they have in it; then a slice of the chunk
    // before, at input_bytes.
    elements before = data.part(0, 0);  // the chunk that is reduced
    for (std::size_t done = 0; done < data.count || before.count != 0; done += before.count) {
      const elements chunk = data.part(done, std::min(most, data.count - done));
      const detail::partition reduced(before.count, n);
      const auto write = [&] {
        const detail::partition slices(chunk.count, n);
        const elements left = chunk.part(0, slices.offset(rank));
        const std::size_t end = left.count + slices.size(rank);
        const elements right = chunk.part(end, chunk.count - end);
        slots.put(slots.slot(rank), left.data, left.bytes());
        slots.put(slots.slot(rank) + end * size, right.data, right.bytes());
        reduce_and_show(slots, rank, n, before.part(reduced.offset(rank), reduced.size(rank)),
                        reduced.offset(rank) * size, slots.slot(rank) + input_bytes, reduce);
      };
      if (show(comm, slots, mine, slot_bytes, write))
        return all_reduce_in_place(comm, slots, data, mine, reduce);
      for_each_other(comm, [&](int owner) {
        const elements slice = before.part(reduced.offset(owner), reduced.size(owner));
        detail::copy_bytes(slice.data, slots.slot(owner) + input_bytes, slice.bytes());
      });
      slots.next_round();
      before = chunk;
    }
  }

  /// Reduces this rank's slice, whose other operands lie at `offset` in the slots of the round before, into
  /// itself and to `shown`.
  template <class Slots>
  static void reduce_and_show(Slots& slots, int rank, int n, const elements& own, std::size_t offset,
                              std::byte* shown, reduction reduce) {
    const auto operand = [&](int r) { return r == rank ? own.data : slots.last_slot(r) + offset; };
    if (!slots.streams()) {
      const auto into = [&](int c) { return c == 0 ? own.data : shown; };
      return reduce_in_steps(own.size, own.count, 2, into, n, operand, reduce);
    }
    reduce_into(own, n, operand,
                [&](std::byte* const* into, int copies, const std::byte* const* operands, int ranks,
                    std::size_t count) {
                  reduce(into, copies, operands, ranks, count);
                  slots.put(shown + (into[0] - own.data), into[0], count * own.size);
                });
  }

  /// Elements in a chunk of a sliced all-reduce: so many that they and a slice of theirs fit a slot.
  static std::size_t chunk_length(std::size_t slot_bytes, int n, std::size_t size) noexcept {
    const auto parts = static_cast<std::size_t>(n);
    const std::size_t per_slice = (std::min(slot_bytes, most_chunk_bytes) - line) / (parts + 1) / size;
    return std::max<std::size_t>(per_slice, 1) * parts;
  }

  template <class Comm, class Slots>
  static void all_reduce_in_place(Comm& comm, Slots& slots, const elements& data, const symmetric_place& mine,
                                  reduction reduce) {
    // Slices of whole cache lines, where elements fill them.
    const detail::partition lines(data.bytes() / line, comm.size());
    const auto begin_of = [&](int r) {
      return r == comm.size() ? data.count : lines.offset(r) * line / data.size;
    };
    const std::size_t begin = begin_of(comm.rank()), count = begin_of(comm.rank() + 1) - begin;
    const auto slice_of = [&](int r) { return buffer_of(slots, mine, r) + begin * data.size; };
    reduce_in_steps(
        data.size, count, comm.size(), slice_of, comm.size(), slice_of,
        [&](std::byte* const* into, int copies, const std::byte* const* operands, int n, std::size_t length) {
          slots.check();
          reduce(into, copies, operands, n, length);
        });
    finish_in_place(comm, slots);
  }

  // Reduce-scatter: for each other rank a part of its block in the slot.

  template <class Comm>
  static void reduce_scatter_with(Comm& comm, const std::byte* in, const elements& out,
                                  const detail::partition& blocks, reduction reduce) {
    const int n = comm.size(), rank = comm.rank();
    const std::size_t size = out.size, bytes = blocks.total() * size;
    if (n == 1)
      return reduce_into(
          out, 1, [&](int) { return in; }, reduce);
    auto& slots = open(comm, bytes);
    std::size_t largest = 0;
    for (int r = 0; r < n; ++r) largest = std::max(largest, blocks.size(r));
    const std::size_t most = std::min(largest, slots.most_bytes() / static_cast<std::size_t>(n) / size);
    symmetric_place mine = slots.find(in, bytes);
    std::size_t done = 0;
    do {
      const auto for_rank = [&](std::byte* slot, int r) {
        return slot + static_cast<std::size_t>(r) * most * size;
      };
      const bool in_place = show(comm, slots, mine, most * static_cast<std::size_t>(n) * size, [&] {
        for_each_other(comm, [&](int peer) {
          slots.put(for_rank(slots.slot(rank), peer),
                    in + (blocks.offset(peer) + std::min(done, blocks.size(peer))) * size,
                    part_of_block(blocks.size(peer), done, most) * size);
        });
      });
      if (in_place) {
        const auto operand = [&](int r) { return buffer_of(slots, mine, r) + blocks.offset(rank) * size; };
        reduce_into(out, n, operand, reduce);
        return finish_in_place(comm, slots);
      }
      const std::byte* const own = in + (blocks.offset(rank) + std::min(done, out.count)) * size;
      const auto operand = [&](int r) { return r == rank ? own : for_rank(slots.slot(r), rank); };
      reduce_into(out.part(std::min(done, out.count), part_of_block(out.count, done, most)), n, operand,
                  reduce);
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
};

}  // namespace ddpp::algorithms
