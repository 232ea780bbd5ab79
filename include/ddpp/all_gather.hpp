// SPDX-License-Identifier: BSL-1.0
// all_gather: every rank gets everyone's buffer, in the order of ranks.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>

namespace ddpp {
namespace detail {

template <class C, class T, class Alg>
struct all_gather_call {
  std::span<const T> in;
  std::span<T> out;
  Alg algorithm;

  fingerprint print() const {
    return fingerprint_of<T>(collective::all_gather, in.size(), -1, 0, algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const {
    using chosen = chosen_algorithm<C, Alg>;
    copy_elements(in, out.subspan(in.size() * static_cast<std::size_t>(inside.rank()), in.size()));
    if (inside.size() == 1) return;
    const auto bytes = std::as_writable_bytes(out);
    const auto blocks = partition(out.size(), inside.size()).scaled(sizeof(T));
    if constexpr (leaves_choice<C, Alg> && has_all_gather<typename C::transport_type, T>) {
      inside.transport().all_gather(in, out, inside.deadline());
    } else if constexpr (requires(const chosen& a) { a.all_gather(inside, bytes, blocks); }) {
      algorithm_object<C>(algorithm).all_gather(inside, bytes, blocks);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no all_gather(communicator, span of bytes, partition)");
      algorithms::automatic{}.all_gather(inside, bytes, blocks);
    }
  }
};

template <class C, class I, class O, class Alg>
auto make_all_gather(const C& comm, I&& input, O&& output, Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of all_gather must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  const auto n = static_cast<std::size_t>(comm.size());
  check(out.size() == n * in.size(), "all_gather",
        "the output has " + std::to_string(out.size()) + " elements; it needs those of " + std::to_string(n) +
            " ranks, " + std::to_string(n * in.size()));
  if (!is_piece_of(in, out, comm.rank())) check_overlap(in, out, "all_gather");
  return all_gather_call<C, T, Alg>{in, out, algorithm};
}

}  // namespace detail

/// Afterwards `out` holds rank r's `in` at offset r * in.size(), for all r. All ranks bring the same number
/// of elements of the same type; out has size() times as many. In place: `in` is this rank's place in `out`.
/// Blocks. Throws `peer_lost`, `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void all_gather(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  const auto call = detail::make_all_gather(comm, in, out, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work all_gather_async(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_all_gather(comm, in, out, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
