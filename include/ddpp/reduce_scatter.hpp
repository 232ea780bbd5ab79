// SPDX-License-Identifier: BSL-1.0
// reduce_scatter: the reduction of everyone's buffer, of which every rank gets its own piece.
#pragma once

#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/layout.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace ddpp {
namespace detail {

template <class C, class T, class Op, class Alg>
struct reduce_scatter_call {
  collective op;
  std::span<const T> in;
  std::span<T> out;
  layout pieces;
  Op reduction;
  Alg algorithm;

  fingerprint print() const {
    fingerprint print = fingerprint_of<T>(op, op == collective::reduce_scatter ? out.size() : in.size(), -1,
                                          reduction_code<Op>(), algorithm_code<C, Alg>());
    print.counts = pieces.hash();
    return print;
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C>) {
      require_native_reduction<C, T, Op, Alg>();
      if (op == collective::reduce_scatter)
        inside.transport().reduce_scatter(in, out, reduction, inside.deadline());
      else
        inside.transport().reduce_scatter(in, out, reduction, pieces.blocks(), inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    if constexpr (is_premul_sum<Op>) {
      scratch<T> scaled(in.size());  // the input is the caller's to keep
      copy_elements(in, scaled.span());
      multiply(scaled.data(), in.size(), reduction.factor);
      reduce_sum(inside, scaled.span(), 1);
    } else if constexpr (std::is_same_v<Op, avg_t>) {
      reduce_sum(inside, in, inside.size());
    } else if constexpr (std::is_same_v<Op, sum_t>) {
      reduce_sum(inside, in, 1);
    } else {
      reduce_binary(inside, in, reduction);
    }
  }

  void reduce_sum(C& inside, std::span<const T> input, int divisor) const {
    if constexpr (is_short_float<T> && leaves_choice<C, Alg> &&
                  !has_reduce_scatter<typename C::transport_type, T, sum_t>) {
      if constexpr (has_sums_in_float<typename C::transport_type, T>) {
        if (op == collective::reduce_scatter)
          return inside.transport().sum_block_in_float(input, out, divisor, inside.deadline());
      }
      if constexpr (has_shared_slots<typename C::transport_type>)
        algorithms::staged{}.sum_block(inside, input, out, pieces.blocks(), divisor);
      else
        algorithms::direct{}.reduce_block(inside, input, out, pieces.blocks(), divisor);
    } else {
      reduce_binary(inside, input, sum);
      if constexpr (number<T>) {
        if (divisor != 1) divide(out.data(), out.size(), divisor);
      }
    }
  }

  template <class BinaryOp>
  void reduce_binary(C& inside, std::span<const T> input, const BinaryOp& binary) const {
    using chosen = chosen_algorithm<C, Alg>;
    const partition blocks = pieces.blocks();
    if constexpr (prefers_native<C, Alg> && has_reduce_scatter<typename C::transport_type, T, BinaryOp>) {
      if (op == collective::reduce_scatter) {
        return inside.transport().reduce_scatter(input, out, binary, inside.deadline());
      }
    }
    if constexpr (requires(const chosen& a) { a.reduce_scatter(inside, input, out, blocks, binary); }) {
      algorithm_object<C>(algorithm).reduce_scatter(inside, input, out, blocks, binary);
    } else {
      static_assert(
          !is_named<Alg>,
          "ddpp: this algorithm has no reduce_scatter(communicator, in, out, partition, operation)");
      algorithms::automatic{}.reduce_scatter(inside, input, out, blocks, binary);
    }
  }
};

template <class C, class I, class O, class Op, class Alg>
auto make_reduce_scatter(const C& comm, collective op, I&& input, O&& output, layout pieces, Op reduction,
                         Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of reduce_scatter must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  check_total(in.size(), pieces, name_of(op), "input");
  check_piece(out.size(), pieces, comm.rank(), name_of(op), "output");
  if (out.data() != pieces.block(in, comm.rank()).data()) check_overlap(in, out, name_of(op));
  check_memory(comm, in, name_of(op));
  check_memory(comm, out, name_of(op));
  return reduce_scatter_call<C, T, Op, Alg>{op, in, out, std::move(pieces), reduction, algorithm};
}

}  // namespace detail

/// Afterwards `out` is piece rank() of the reduction of all ranks' `in`, which has size() pieces of
/// out.size() elements. In place: `out` is this rank's place in `in`, whose other pieces stay as they were.
/// Operations as for all_reduce. Blocks. Throws `peer_lost`, `mismatch_error`, `timeout_error`,
/// `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>>
void reduce_scatter(C& comm, I&& in, O&& out, Op op = {}, Alg algorithm = {}) {
  const auto call =
      detail::make_reduce_scatter(comm, collective::reduce_scatter, in, out,
                                  detail::layout(as_span(out).size(), comm.size()), op, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>> work reduce_scatter_async(C& comm, I&& in, O&& out, Op op = {},
                                                                  Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call =
      detail::make_reduce_scatter(comm, collective::reduce_scatter, in, out,
                                  detail::layout(as_span(out).size(), comm.size()), op, algorithm);
  return comm.start(call.print(), call);
}

/// reduce_scatter whose piece r has counts[r] elements. The counts are the same on all ranks.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>>
void reduce_scatter_v(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, Op op = {},
                      Alg algorithm = {}) {
  const auto call =
      detail::make_reduce_scatter(comm, collective::reduce_scatter_v, in, out,
                                  detail::layout(counts, comm.size(), "reduce_scatter_v"), op, algorithm);
  comm.run(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>> work reduce_scatter_v_async(C& comm, I&& in, O&& out,
                                                                    std::span<const std::size_t> counts,
                                                                    Op op = {}, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call =
      detail::make_reduce_scatter(comm, collective::reduce_scatter_v, in, out,
                                  detail::layout(counts, comm.size(), "reduce_scatter_v"), op, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
