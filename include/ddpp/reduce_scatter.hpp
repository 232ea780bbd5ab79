// SPDX-License-Identifier: BSL-1.0
// reduce_scatter: the reduction of everyone's buffer, of which every rank gets its own piece.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>

namespace ddpp {
namespace detail {

template <class C, class T, class Op, class Alg>
void reduce_scatter_binary(C& inside, std::span<const T> in, std::span<T> out, const Op& op,
                           const Alg& algorithm) {
  using chosen = chosen_algorithm<C, Alg>;
  const partition blocks(in.size(), inside.size());
  if constexpr (leaves_choice<C, Alg> && has_reduce_scatter<typename C::transport_type, T, Op>) {
    inside.transport().reduce_scatter(in, out, op, inside.deadline());
  } else if constexpr (requires(const chosen& a) { a.reduce_scatter(inside, in, out, blocks, op); }) {
    algorithm_object<C>(algorithm).reduce_scatter(inside, in, out, blocks, op);
  } else {
    static_assert(!is_named<Alg>,
                  "ddpp: this algorithm has no reduce_scatter(communicator, in, out, partition, operation)");
    algorithms::automatic{}.reduce_scatter(inside, in, out, blocks, op);
  }
}

template <class C, class T, class Op, class Alg>
void reduce_scatter_any(C& inside, std::span<const T> in, std::span<T> out, const Op& op,
                        const Alg& algorithm) {
  constexpr bool averages = std::is_same_v<Op, avg_t>, sums = std::is_same_v<Op, sum_t>;
  if constexpr (is_16_bit_float<T> && (averages || sums) && leaves_choice<C, Alg> &&
                !has_reduce_scatter<typename C::transport_type, T, sum_t>) {
    algorithms::direct{}.reduce_block(inside, in, out, partition(in.size(), inside.size()),
                                      averages ? inside.size() : 1);
  } else if constexpr (averages) {
    reduce_scatter_binary(inside, in, out, sum, algorithm);
    divide(out.data(), out.size(), inside.size());
  } else if constexpr (is_premul_sum<Op>) {
    scratch<T> scaled(in.size());  // the input is the caller's to keep
    copy_elements(in, scaled.span());
    multiply(scaled.data(), in.size(), op.factor);
    reduce_scatter_any(inside, std::span<const T>(scaled.span()), out, sum, algorithm);
  } else {
    reduce_scatter_binary(inside, in, out, op, algorithm);
  }
}

template <class C, class T, class Op, class Alg>
struct reduce_scatter_call {
  std::span<const T> in;
  std::span<T> out;
  Op op;
  Alg algorithm;

  fingerprint print() const {
    return fingerprint_of<T>(collective::reduce_scatter, out.size(), -1, reduction_code<Op>(),
                             algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const { reduce_scatter_any(inside, in, out, op, algorithm); }
};

template <class C, class I, class O, class Op, class Alg>
auto make_reduce_scatter(const C& comm, I&& input, O&& output, Op op, Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of reduce_scatter must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  const auto n = static_cast<std::size_t>(comm.size());
  check(in.size() == n * out.size(), "reduce_scatter",
        "the input has " + std::to_string(in.size()) + " elements; it needs a piece for each of " +
            std::to_string(n) + " ranks, " + std::to_string(n * out.size()));
  if (!is_piece_of(out, in, comm.rank())) check_overlap(in, out, "reduce_scatter");
  return reduce_scatter_call<C, T, Op, Alg>{in, out, op, algorithm};
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
  const auto call = detail::make_reduce_scatter(comm, in, out, op, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>> work reduce_scatter_async(C& comm, I&& in, O&& out, Op op = {},
                                                                  Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_reduce_scatter(comm, in, out, op, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
