// SPDX-License-Identifier: BSL-1.0
// all_reduce: every rank gets the reduction of everyone's buffer, the same bits on all of them.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>

namespace ddpp {
namespace detail {

/// Reduces `data` in place with a binary operation.
template <class C, class T, class Op, class Alg>
void all_reduce_binary(C& inside, std::span<T> data, const Op& op, const Alg& algorithm) {
  using chosen = chosen_algorithm<C, Alg>;
  if constexpr (prefers_native<C, Alg> && has_all_reduce<typename C::transport_type, T, Op>) {
    inside.transport().all_reduce(data, op, inside.deadline());
  } else if constexpr (requires(const chosen& a) { a.all_reduce(inside, data, op); }) {
    algorithm_object<C>(algorithm).all_reduce(inside, data, op);
  } else {
    static_assert(!is_named<Alg>, "ddpp: this algorithm has no all_reduce(communicator, span, operation)");
    algorithms::automatic{}.all_reduce(inside, data, op);
  }
}

/// Brings avg and premul_sum, which are not binary operations, down to sums.
template <class C, class T, class Op, class Alg>
void all_reduce_in_place(C& inside, std::span<T> data, const Op& op, const Alg& algorithm) {
  constexpr bool averages = std::is_same_v<Op, avg_t>, sums = std::is_same_v<Op, sum_t>;
  constexpr bool has_slots = has_shared_slots<typename C::transport_type> && number<T>;
  if constexpr (is_short_float<T> && (averages || sums) && leaves_choice<C, Alg> &&
                !has_all_reduce<typename C::transport_type, T, sum_t>) {
    const int divisor = averages ? inside.size() : 1;
    if constexpr (has_sums_in_float<typename C::transport_type, T>)
      inside.transport().sum_in_float(data, divisor, inside.deadline());
    else if constexpr (has_slots)
      algorithms::staged{}.sum(inside, data, divisor);
    else
      algorithms::direct{}.sum_in_float(inside, data, divisor);
  } else if constexpr (averages && has_slots && !has_all_reduce<typename C::transport_type, T, sum_t> &&
                       std::is_same_v<chosen_algorithm<C, Alg>, algorithms::automatic>) {
    algorithms::staged{}.sum(inside, data, inside.size());  // each rank divides its slice alone
  } else if constexpr (averages) {
    all_reduce_binary(inside, data, sum, algorithm);
    divide(data.data(), data.size(), inside.size());
  } else if constexpr (is_premul_sum<Op>) {
    multiply(data.data(), data.size(), op.factor);
    all_reduce_in_place(inside, data, sum, algorithm);
  } else {
    all_reduce_binary(inside, data, op, algorithm);
  }
}

template <class C, class T, class Op, class Alg>
struct all_reduce_call {
  std::span<const T> in;
  std::span<T> out;
  Op op;
  Alg algorithm;

  fingerprint print() const {
    return fingerprint_of<T>(collective::all_reduce, out.size(), -1, reduction_code<Op>(),
                             algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C, Alg>) {
      require_native_reduction<C, T, Op, Alg>();
      inside.transport().all_reduce(in, out, op, inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    copy_elements(in, out);
    if (inside.size() > 1 || is_premul_sum<Op>) all_reduce_in_place(inside, out, op, algorithm);
  }
};

template <class C, class I, class O, class Op, class Alg>
auto make_all_reduce(const C& comm, I&& input, O&& output, Op op, Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of all_reduce must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  check(in.size() == out.size(), "all_reduce", "the input has ", in.size(), " elements and the output ",
        out.size(), "; they must have the same number");
  if (in.data() != out.data()) check_overlap(in, out, "all_reduce");
  check_memory<Alg>(comm, in, "all_reduce");
  check_memory<Alg>(comm, out, "all_reduce");
  return all_reduce_call<C, T, Op, Alg>{in, out, op, algorithm};
}

}  // namespace detail

/// Reduces the buffer in place: afterwards element i is op over all ranks' elements i, on every rank. All
/// ranks bring the same number of elements of the same type. `sum`, `avg` and the like, or any associative
/// and commutative callable T(T, T). Sums and averages of 16-bit and 8-bit floats are accumulated in float
/// and rounded once, unless an algorithm is named. Blocks until this rank has the result. Throws `peer_lost`,
/// `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, mutable_buffer B, class Op = sum_t, class Alg = the_communicators>
requires reduction_op<Op, element_t<B>>
void all_reduce(C& comm, B&& data, Op op = {}, Alg algorithm = {}) {
  const auto call = detail::make_all_reduce(comm, data, data, op, algorithm);
  comm.run(call.print(), call);
}

/// The same from `in` to `out`, which have the same number of elements and do not overlap in part.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>>
void all_reduce(C& comm, I&& in, O&& out, Op op = {}, Alg algorithm = {}) {
  const auto call = detail::make_all_reduce(comm, in, out, op, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffer belongs to the operation until the work is done.
template <detail::any_communicator C, mutable_buffer B, class Op = sum_t, class Alg = the_communicators>
requires reduction_op<Op, element_t<B>> work all_reduce_async(C& comm, B&& data, Op op = {},
                                                              Alg algorithm = {}) {
  detail::require_lasting<B>();
  const auto call = detail::make_all_reduce(comm, data, data, op, algorithm);
  return comm.start(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Op = sum_t,
          class Alg = the_communicators>
requires reduction_op<Op, element_t<I>> work all_reduce_async(C& comm, I&& in, O&& out, Op op = {},
                                                              Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_all_reduce(comm, in, out, op, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
