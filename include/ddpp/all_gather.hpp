// SPDX-License-Identifier: BSL-1.0
// all_gather: every rank gets everyone's buffer, in the order of ranks.
#pragma once

#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/layout.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace ddpp {
namespace detail {

template <class C, class T, class Alg>
struct all_gather_call {
  collective op;
  std::span<const T> in;
  std::span<T> out;
  layout pieces;
  Alg algorithm;

  fingerprint print() const {
    fingerprint print = fingerprint_of<T>(op, op == collective::all_gather ? in.size() : out.size(), -1, 0,
                                          algorithm_code<C, Alg>());
    print.counts = pieces.hash();
    return print;
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C, Alg>) {
      refuse_algorithm<Alg>();
      if (op == collective::all_gather)
        inside.transport().all_gather(in, out, inside.deadline());
      else
        inside.transport().all_gather(std::as_bytes(in), std::as_writable_bytes(out),
                                      pieces.blocks().scaled(sizeof(T)), inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    using chosen = chosen_algorithm<C, Alg>;
    copy_elements(in, pieces.block(out, inside.rank()));
    if (inside.size() == 1) return;
    const auto bytes = std::as_writable_bytes(out);
    const auto blocks = pieces.blocks().scaled(sizeof(T));
    if constexpr (prefers_native<C, Alg> && has_all_gather<typename C::transport_type, T>) {
      if (op == collective::all_gather) return inside.transport().all_gather(in, out, inside.deadline());
    }
    if constexpr (requires(const chosen& a) { a.all_gather(inside, bytes, blocks); }) {
      algorithm_object<C>(algorithm).all_gather(inside, bytes, blocks);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no all_gather(communicator, span of bytes, partition)");
      algorithms::automatic{}.all_gather(inside, bytes, blocks);
    }
  }
};

template <class C, class I, class O, class Alg>
auto make_all_gather(const C& comm, collective op, I&& input, O&& output, layout pieces, Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of all_gather must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  check_total(out.size(), pieces, name_of(op), "output");
  check_piece(in.size(), pieces, comm.rank(), name_of(op), "input");
  if (in.data() != pieces.block(out, comm.rank()).data()) check_overlap(in, out, name_of(op));
  check_memory<Alg>(comm, in, name_of(op));
  check_memory<Alg>(comm, out, name_of(op));
  return all_gather_call<C, T, Alg>{op, in, out, std::move(pieces), algorithm};
}

}  // namespace detail

/// Afterwards `out` holds rank r's `in` at offset r * in.size(), for all r. All ranks bring the same number
/// of elements of the same type; out has size() times as many. In place: `in` is this rank's place in `out`.
/// Blocks. Throws `peer_lost`, `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void all_gather(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  const auto call = detail::make_all_gather(comm, collective::all_gather, in, out,
                                            detail::layout(as_span(in).size(), comm.size()), algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work all_gather_async(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_all_gather(comm, collective::all_gather, in, out,
                                            detail::layout(as_span(in).size(), comm.size()), algorithm);
  return comm.start(call.print(), call);
}

/// all_gather with counts[r] elements from rank r, one after the other in `out`. The counts are the same on
/// all ranks.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void all_gather_v(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, Alg algorithm = {}) {
  const auto call = detail::make_all_gather(comm, collective::all_gather_v, in, out,
                                            detail::layout(counts, comm.size(), "all_gather_v"), algorithm);
  comm.run(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work all_gather_v_async(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_all_gather(comm, collective::all_gather_v, in, out,
                                            detail::layout(counts, comm.size(), "all_gather_v"), algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
