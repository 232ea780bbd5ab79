// SPDX-License-Identifier: BSL-1.0
// Collectives of ranks on several hosts, made of collectives inside each host and across hosts. Across, a
// host moves what one rank would move in a group with one rank per host.
//
// all_reduce       reduce_scatter inside, in one slice per rail; all_reduce along each rail; all_gather
//                  inside
// reduce_scatter   reduce_scatter inside, of the pieces of each rail's ranks; reduce_scatter along each rail
// all_gather       the same backwards
// short floats     the same in float, but that the rounded results are gathered
// broadcast        from the root to one rank of each host; then inside
// barrier          inside; one rank per host; inside
//
// Where a host has more ranks than there are rails, the rank numbered l there belongs to rail l modulo their
// number: rail's ranks hand it its piece, or take it from there. Small buffers use one rail: a message more
// costs more than the bytes.
#pragma once

#include <ddpp/algorithms/automatic.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/exchange.hpp>
#include <ddpp/detail/host_layout.hpp>
#include <ddpp/detail/partition.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/scratch.hpp>
#include <ddpp/detail/subset.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace ddpp::detail {

template <transport Inner, transport Outer>
class hierarchical_collectives {
 public:
  hierarchical_collectives(Inner& inner, Outer& outer, const host_layout& layout, deadline until)
      : inside_(inner, until),
        outer_(outer),
        layout_(layout),
        until_(until),
        host_(layout.host_of(outer.rank())),
        local_(inner.rank()) {}

  template <class T, class Op>
  void all_reduce(std::span<T> data, const Op& op) {
    if (layout_.hosts() == 1) return algorithm.all_reduce(inside_, data, op);
    const rail_slices slices(data.size(), rails_for(data.size_bytes()), inside_.size());
    const auto mine = slices.of(data, local_);
    if (inside_.size() > 1)
      algorithm.reduce_scatter(inside_, std::span<const T>(data), mine, slices.all(), op);
    if (slices.is_on_rail(local_)) {
      along(layout_.rail(local_), [&](auto& rail) { algorithm.all_reduce(rail, mine, op); });
    }
    if (inside_.size() > 1)
      algorithm.all_gather(inside_, std::as_writable_bytes(data), slices.all().scaled(sizeof(T)));
  }

  /// data = (sum over ranks of data) / divisor. Hosts' sums go across as floats, the result as T.
  template <class T>
  requires is_short_float<T>
  void sum_in_float(std::span<T> data, int divisor) {
    if (layout_.hosts() == 1) {
      if constexpr (has_shared_slots<Inner>)
        return algorithms::staged{}.sum(inside_, data, divisor);
      else
        return algorithms::direct{}.sum_in_float(inside_, data, divisor);
    }
    scratch<float> sums(data.size());
    widen(sums.data(), data.data(), data.size());
    const rail_slices slices(data.size(), rails_for(data.size_bytes()), inside_.size());
    const auto mine = slices.of(sums.span(), local_);
    if (inside_.size() > 1)
      algorithm.reduce_scatter(inside_, std::span<const float>(sums.span()), mine, slices.all(), sum);
    if (slices.is_on_rail(local_)) {
      along(layout_.rail(local_), [&](auto& rail) {
        const partition pieces(mine.size(), rail.size());
        const auto own = mine.subspan(pieces.offset(host_), pieces.size(host_));
        algorithm.reduce_scatter(rail, std::span<const float>(mine), own, pieces, sum);
        const auto result = slices.of(data, local_);
        round_quotient(own, result.subspan(pieces.offset(host_), pieces.size(host_)), divisor);
        algorithm.all_gather(rail, std::as_writable_bytes(result), pieces.scaled(sizeof(T)));
      });
    }
    if (inside_.size() > 1)
      algorithm.all_gather(inside_, std::as_writable_bytes(data), slices.all().scaled(sizeof(T)));
  }

  template <class T, class Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, const Op& op) {
    if (layout_.hosts() == 1)
      return algorithm.reduce_scatter(inside_, in, out, partition(in.size(), inside_.size()), op);
    const std::size_t piece = out.size();
    const piece_order order(layout_, rails_for(in.size_bytes()), host_, piece);
    scratch<T> ordered(in.size());
    order.for_each([&](int rank, std::size_t at) {
      copy_elements(in.subspan(static_cast<std::size_t>(rank) * piece, piece),
                    ordered.span().subspan(at, piece));
    });
    const auto chunk = order.chunk(ordered.span(), local_);
    if (inside_.size() > 1) {
      algorithm.reduce_scatter(inside_, std::span<const T>(ordered.span()), chunk, order.chunks(), op);
    }
    if (!order.is_on_rail(local_))
      return receive(inside_, std::as_writable_bytes(out), order.rail_of(local_));
    const partition blocks = order.blocks_of(local_);
    const auto block = chunk.subspan(blocks.offset(host_), blocks.size(host_));
    along(layout_.rail(local_),
          [&](auto& rail) { algorithm.reduce_scatter(rail, std::span<const T>(chunk), block, blocks, op); });
    copy_elements(std::span<const T>(block.first(piece)), out);
    order.for_each_other(local_, [&](int peer, std::size_t at) {
      send(inside_, std::as_bytes(block.subspan(at, piece)), peer);
    });
  }

  /// out = this rank's block of (sum over ranks of in) / divisor, of equal blocks.
  template <class T>
  requires is_short_float<T>
  void sum_block_in_float(std::span<const T> in, std::span<T> out, int divisor) {
    scratch<float> wide(in.size()), own(out.size());
    widen(wide.data(), in.data(), in.size());
    reduce_scatter(std::span<const float>(wide.span()), own.span(), sum);
    round_quotient(own.span(), out, divisor);
  }

  /// `out` has this rank's piece already.
  void all_gather(std::span<std::byte> out) {
    const std::size_t piece = out.size() / static_cast<std::size_t>(layout_.ranks());
    const auto place = [&](int rank) { return out.subspan(static_cast<std::size_t>(rank) * piece, piece); };
    if (layout_.hosts() == 1)
      return algorithm.all_gather(inside_, out, partition(out.size(), inside_.size()));
    const piece_order order(layout_, rails_for(out.size()), host_, piece);
    scratch<std::byte> ordered(out.size());
    const auto mine = place(outer_.rank());
    if (!order.is_on_rail(local_)) {
      send(inside_, mine, order.rail_of(local_));
    } else {
      const partition blocks = order.blocks_of(local_);
      const auto chunk = order.chunk(ordered.span(), local_);
      const auto block = chunk.subspan(blocks.offset(host_), blocks.size(host_));
      copy_elements(std::span<const std::byte>(mine), block.first(piece));
      order.for_each_other(
          local_, [&](int peer, std::size_t at) { receive(inside_, block.subspan(at, piece), peer); });
      along(layout_.rail(local_), [&](auto& rail) { algorithm.all_gather(rail, chunk, blocks); });
    }
    if (inside_.size() > 1) algorithm.all_gather(inside_, ordered.span(), order.chunks());
    order.for_each([&](int rank, std::size_t at) {
      copy_elements(std::span<const std::byte>(ordered.span().subspan(at, piece)), place(rank));
    });
  }

  void broadcast(std::span<std::byte> data, int root) {
    scratch<int> column(static_cast<std::size_t>(layout_.hosts()));
    std::copy_n(layout_.rail(0).begin(), layout_.hosts(), column.data());
    column.data()[layout_.host_of(root)] = root;
    const int first = column.data()[host_];
    if (outer_.rank() == first && layout_.hosts() > 1) {
      along(column.span(), [&](auto& hosts) { algorithm.broadcast(hosts, data, layout_.host_of(root)); });
    }
    if (inside_.size() > 1) algorithm.broadcast(inside_, data, layout_.local_of(first));
  }

  void barrier() {
    if (inside_.size() > 1) algorithm.barrier(inside_);
    if (layout_.hosts() == 1) return;
    if (local_ == 0) along(layout_.rail(0), [&](auto& hosts) { algorithm.barrier(hosts); });
    if (inside_.size() > 1) algorithm.barrier(inside_);
  }

 private:
  static constexpr algorithms::automatic algorithm{};
  static constexpr std::size_t small = std::size_t{32} << 10;  // bytes

  /// A buffer cut into one slice per rail, for the ranks of a host that are on one.
  class rail_slices {
   public:
    rail_slices(std::size_t count, int rails, int ranks)
        : rails_(rails), offsets_(static_cast<std::size_t>(ranks) + 1) {
      const partition even(count, rails);
      for (int l = 0; l <= ranks; ++l) offsets_.data()[l] = l < rails ? even.offset(l) : count;
    }

    bool is_on_rail(int local) const noexcept { return local < rails_; }
    partition all() const noexcept { return partition(std::span<const std::size_t>(offsets_.span())); }
    template <class T>
    std::span<T> of(std::span<T> data, int local) const {
      return data.subspan(all().offset(local), all().size(local));
    }

   private:
    const int rails_;
    mutable scratch<std::size_t> offsets_;
  };

  template <class T>
  static void round_quotient(std::span<float> sums, std::span<T> into, int divisor) {
    if (divisor != 1) divide(sums.data(), sums.size(), divisor);
    narrow_scaled(into.data(), sums.data(), sums.size(), 1.0f);
  }

  /// The order in which a buffer of one piece per rank can be cut into one chunk per rail, and each chunk
  /// into one block per host.
  class piece_order {
   public:
    piece_order(const host_layout& layout, int rails, int host, std::size_t piece)
        : layout_(layout),
          rails_(rails),
          host_(host),
          piece_(piece),
          chunks_(layout.members(host).size() + 1),
          blocks_(static_cast<std::size_t>(rails * (layout.hosts() + 1))) {
      std::size_t at = 0;
      for (int rail = 0; rail < rails_; ++rail) {
        chunks_.data()[rail] = at;
        for (int h = 0; h < layout_.hosts(); ++h) {
          block_offset(rail, h) = at - chunks_.data()[rail];
          at += ranks_of(rail, h) * piece_;
        }
        block_offset(rail, layout_.hosts()) = at - chunks_.data()[rail];
      }
      for (std::size_t l = static_cast<std::size_t>(rails_); l < chunks_.span().size(); ++l)
        chunks_.data()[l] = at;
    }

    bool is_on_rail(int local) const noexcept { return local < rails_; }
    int rail_of(int local) const noexcept { return local % rails_; }

    partition chunks() const noexcept { return partition(std::span<const std::size_t>(chunks_.span())); }
    template <class T>
    std::span<T> chunk(std::span<T> ordered, int local) const {
      return ordered.subspan(chunks().offset(local), chunks().size(local));
    }
    partition blocks_of(int rail) const noexcept {
      const auto width = static_cast<std::size_t>(layout_.hosts()) + 1;
      return partition(std::span<const std::size_t>(blocks_.span())
                           .subspan(static_cast<std::size_t>(rail) * width, width));
    }

    /// f(rank, where its piece begins in the ordered buffer)
    template <class F>
    void for_each(F f) const {
      std::size_t at = 0;
      for (int rail = 0; rail < rails_; ++rail) {
        for (int h = 0; h < layout_.hosts(); ++h) {
          const auto members = layout_.members(h);
          for (auto l = static_cast<std::size_t>(rail); l < members.size();
               l += static_cast<std::size_t>(rails_), at += piece_)
            f(members[l], at);
        }
      }
    }
    /// f(number, where its piece begins in this host's block) for those who are not on the rail themselves.
    template <class F>
    void for_each_other(int rail, F f) const {
      std::size_t at = piece_;
      const int size = static_cast<int>(layout_.members(host_).size());
      for (int l = rail + rails_; l < size; l += rails_, at += piece_) f(l, at);
    }

   private:
    std::size_t& block_offset(int rail, int host) const noexcept {
      return blocks_.data()[rail * (layout_.hosts() + 1) + host];
    }
    std::size_t ranks_of(int rail, int host) const noexcept {
      const auto all = layout_.members(host).size(), rails = static_cast<std::size_t>(rails_);
      return (all - static_cast<std::size_t>(rail) + rails - 1) / rails;
    }

    const host_layout& layout_;
    const int rails_, host_;
    const std::size_t piece_;
    mutable scratch<std::size_t> chunks_, blocks_;
  };

  int rails_for(std::size_t bytes) const noexcept { return bytes <= small ? 1 : layout_.rails(); }

  template <class F>
  void along(std::span<const int> ranks, F f) {
    subset<Outer> members(outer_, ranks, host_);
    part<subset<Outer>> across(members, until_);
    f(across);
  }

  part<Inner> inside_;
  Outer& outer_;
  const host_layout& layout_;
  const deadline until_;
  const int host_, local_;
};

}  // namespace ddpp::detail
