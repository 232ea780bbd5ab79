// SPDX-License-Identifier: BSL-1.0
// Communication hooks: how the gradients of a bucket become their average. A hook is any
//     void operator()(Comm&, gradient_bucket&)
// that leaves in the bucket the sum over ranks of bucket.scale() times the gradients. It is blocking code: it
// runs on the progress thread, buckets in order, and every collective that it calls on the communicator it is
// given runs at once; on a device it issues, on the thread that starts the bucket, and its own kernels belong
// on the stream() of that communicator. What it throws fails the group. A hook with `static constexpr bool
// takes_scaled_gradients = true` lets the scale be applied on the way into the bucket where gradients are
// copied there, which costs no pass over memory; bucket.scale() is 1 then, and only then.
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/device_memory.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/gradient_bucket.hpp>

#include <span>

namespace ddpp::hooks {

/// What is done without a hook. Gradients that live in the bucket are averaged by the all-reduce itself,
/// which may scale as it goes; else they are scaled, then summed, as torch does.
struct all_reduce {
  static constexpr bool takes_scaled_gradients = true;

  template <class C>
  void operator()(C& comm, gradient_bucket& bucket) const {
    bucket.visit([&]<class T>(std::span<T> gradients) {
      if (sums_are_safe<C, T> && bucket.is_mean()) {
        ddpp::all_reduce(comm, gradients, ddpp::avg);
      } else if constexpr (detail::is_on_device<C>) {
        // Also where this rank's scale is 1: others' may not be, and all must ask NCCL for the same.
        ddpp::all_reduce(comm, gradients,
                         ddpp::premul_sum(static_cast<detail::arithmetic_t<T>>(bucket.scale())));
      } else {
        detail::scale(gradients, bucket.scale());
        ddpp::all_reduce(comm, gradients);
      }
    });
  }

 private:
  /// Sums that are rounded to 16 bits on the way may be too large for them before they are divided. NCCL
  /// divides before it adds.
  template <class C, class T>
  static constexpr bool sums_are_safe =
      !is_16_bit_float<T> || detail::is_on_device<C> ||
      (detail::leaves_choice<C, the_communicators> && !has_all_reduce<typename C::transport_type, T, sum_t>);
};

/// Scales and rounds float and double gradients to Narrow, hands them to the inner hook, and widens the
/// result.
template <class Narrow, class Inner>
struct compress_to {
  static constexpr bool takes_scaled_gradients = false;

  [[no_unique_address]] Inner inner = {};
  detail::kept_room room = {};

  template <class C>
  void operator()(C& comm, gradient_bucket& bucket) {
    bucket.visit([&]<class T>(std::span<T> gradients) {
      if constexpr (is_16_bit_float<T>) {
        inner(comm, bucket);
      } else {
        const std::span<Narrow> narrow = room.of<Narrow>(comm, gradients.size());
        detail::narrow_scaled(comm, narrow, std::span<const T>(gradients), static_cast<T>(bucket.scale()));
        auto compressed = bucket.represented_by(narrow, 1.0);
        inner(comm, compressed);
        detail::widen(comm, gradients, std::span<const Narrow>(narrow));
      }
    });
  }
};

/// Half the traffic of float: gradients travel as IEEE 754 binary16 (range 6e-8 to 65504). Sums are in float
/// where the algorithm allows.
template <class Inner = all_reduce>
struct fp16_compress : compress_to<half, Inner> {};

/// Half the traffic of float, with float's range and 8 bits of precision.
template <class Inner = all_reduce>
struct bf16_compress : compress_to<bfloat16, Inner> {};

}  // namespace ddpp::hooks
