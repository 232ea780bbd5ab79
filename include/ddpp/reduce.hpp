// SPDX-License-Identifier: BSL-1.0
// reduce: the root gets the reduction of everyone's buffer.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>

namespace ddpp {
namespace detail {

template <class C, class T, class Op, class Alg>
void reduce_binary(C& inside, std::span<const T> in, std::span<T> out, const Op& op, int root,
                   const Alg& algorithm) {
  using chosen = chosen_algorithm<C, Alg>;
  if constexpr (requires(const chosen& a) { a.reduce(inside, in, out, op, root); }) {
    algorithm_object<C>(algorithm).reduce(inside, in, out, op, root);
  } else {
    static_assert(!is_named<Alg>,
                  "ddpp: this algorithm has no reduce(communicator, in, out, operation, root)");
    algorithms::automatic{}.reduce(inside, in, out, op, root);
  }
}

template <class C, class T, class Op, class Alg>
struct reduce_call {
  std::span<const T> in;
  std::span<T> out;  // empty where this rank is not the root
  Op op;
  int root;
  Alg algorithm;

  fingerprint print() const {
    return fingerprint_of<T>(collective::reduce, in.size(), root, reduction_code<Op>(),
                             algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C>) {
      require_native_reduction<C, T, Op, Alg>();
      inside.transport().reduce(in, out, op, root, inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    if constexpr (is_premul_sum<Op>) {
      scratch<T> scaled(in.size());  // the input is the caller's to keep
      copy_elements(in, scaled.span());
      multiply(scaled.data(), in.size(), op.factor);
      reduce_sum(inside, std::span<const T>(scaled.span()), 1);
    } else if constexpr (std::is_same_v<Op, avg_t>) {
      reduce_sum(inside, in, inside.size());
    } else if constexpr (std::is_same_v<Op, sum_t>) {
      reduce_sum(inside, in, 1);
    } else {
      reduce_binary(inside, in, out, op, root, algorithm);
    }
  }

  void reduce_sum(C& inside, std::span<const T> input, int divisor) const {
    if constexpr (is_short_float<T> && leaves_choice<C, Alg>) {
      algorithms::direct{}.reduce_in_float(inside, input, out, divisor, root);
    } else {
      reduce_binary(inside, input, out, sum, root, algorithm);
      if constexpr (number<T>) {
        if (divisor != 1) divide(out.data(), out.size(), divisor);
      }
    }
  }
};

template <class C, class I, class O, class Op, class Alg>
auto make_reduce(const C& comm, I&& input, O&& output, Op op, int root, Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of reduce must have the same element type");
  check_peer(comm, root, "reduce", "root");
  const std::span<const T> in = as_span(input);
  std::span<T> out = as_span(output);
  if (comm.rank() == root) {
    check(in.size() == out.size(), "reduce", "the input has ", in.size(), " elements and the root's output ",
          out.size(), "; they must have the same number");
    if (in.data() != out.data()) check_overlap(in, out, "reduce");
  } else {
    out = {};
  }
  check_memory(comm, in, "reduce");
  check_memory(comm, out, "reduce");
  return reduce_call<C, T, Op, Alg>{in, out, op, root, algorithm};
}

}  // namespace detail

/// Afterwards the root's buffer holds the reduction of all ranks' buffers; the others' stay as they were. All
/// ranks bring the same number of elements of the same type and name the same root. Operations as for
/// all_reduce. Blocks until this rank's part is done. Throws `peer_lost`, `mismatch_error`, `timeout_error`,
/// `revoked_error`.
template <detail::any_communicator C, mutable_buffer B, class Op = sum_t, class Alg = the_communicators>
requires reduction_op<Op, element_t<B>>
void reduce(C& comm, B&& data, Op op = {}, int root = 0, Alg algorithm = {}) {
  const auto call = detail::make_reduce(comm, data, data, op, root, algorithm);
  comm.run(call.print(), call);
}

/// The same from `in` to the root's `out`; elsewhere `out` is not looked at.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>>
void reduce(C& comm, I&& in, O&& out, Op op = {}, int root = 0, Alg algorithm = {}) {
  const auto call = detail::make_reduce(comm, in, out, op, root, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffer belongs to the operation until the work is done.
template <detail::any_communicator C, mutable_buffer B, class Op = sum_t, class Alg = the_communicators>
requires reduction_op<Op, element_t<B>> work reduce_async(C& comm, B&& data, Op op = {}, int root = 0,
                                                          Alg algorithm = {}) {
  detail::require_lasting<B>();
  const auto call = detail::make_reduce(comm, data, data, op, root, algorithm);
  return comm.start(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>> work reduce_async(C& comm, I&& in, O&& out, Op op = {}, int root = 0,
                                                          Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_reduce(comm, in, out, op, root, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
