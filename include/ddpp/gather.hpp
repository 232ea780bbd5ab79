// SPDX-License-Identifier: BSL-1.0
// gather: the root gets everyone's buffer, in the order of ranks.
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
struct gather_call {
  collective op;
  std::span<const T> in;
  std::span<T> out;  // empty where this rank is not the root
  layout pieces;
  int root;
  Alg algorithm;

  fingerprint print() const {
    fingerprint print = fingerprint_of<T>(op, op == collective::gather ? in.size() : pieces.total(), root, 0,
                                          algorithm_code<C, Alg>());
    print.counts = pieces.hash();
    return print;
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C>) {
      refuse_algorithm<Alg>();
      inside.transport().gather(std::as_bytes(in), std::as_writable_bytes(out),
                                pieces.blocks().scaled(sizeof(T)), root, inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    using chosen = chosen_algorithm<C, Alg>;
    const auto piece = std::as_bytes(in);
    const auto whole = std::as_writable_bytes(out);
    const auto blocks = pieces.blocks().scaled(sizeof(T));
    if (inside.rank() == root) copy_elements(in, pieces.block(out, root));
    if constexpr (requires(const chosen& a) { a.gather(inside, piece, whole, blocks, root); }) {
      algorithm_object<C>(algorithm).gather(inside, piece, whole, blocks, root);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no gather(communicator, in, out, partition, root)");
      algorithms::automatic{}.gather(inside, piece, whole, blocks, root);
    }
  }
};

template <class C, class I, class O, class Alg>
auto make_gather(const C& comm, collective op, I&& input, O&& output, layout pieces, int root,
                 Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of gather must have the same element type");
  check_peer(comm, root, name_of(op), "root");
  const std::span<const T> in = as_span(input);
  std::span<T> out = as_span(output);
  check_piece(in.size(), pieces, comm.rank(), name_of(op), "input");
  if (comm.rank() == root) {
    check_total(out.size(), pieces, name_of(op), "root's output");
    if (in.data() != pieces.block(out, root).data()) check_overlap(in, out, name_of(op));
  } else {
    out = {};
  }
  check_memory(comm, in, name_of(op));
  check_memory(comm, out, name_of(op));
  return gather_call<C, T, Alg>{op, in, out, std::move(pieces), root, algorithm};
}

}  // namespace detail

/// Afterwards the root's `out` holds rank r's `in` at offset r * in.size(), for all r; elsewhere `out` is not
/// looked at. All ranks bring the same number of elements of the same type and name the same root. In place:
/// the root's `in` is its place in `out`. Blocks until this rank's part is done. Throws `peer_lost`,
/// `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void gather(C& comm, I&& in, O&& out, int root = 0, Alg algorithm = {}) {
  const auto call = detail::make_gather(comm, collective::gather, in, out,
                                        detail::layout(as_span(in).size(), comm.size()), root, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work gather_async(C& comm, I&& in, O&& out, int root = 0, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_gather(comm, collective::gather, in, out,
                                        detail::layout(as_span(in).size(), comm.size()), root, algorithm);
  return comm.start(call.print(), call);
}

/// gather with counts[r] elements from rank r, one after the other in `out`. The counts are the same on all
/// ranks.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void gather_v(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, int root = 0,
              Alg algorithm = {}) {
  const auto call = detail::make_gather(comm, collective::gather_v, in, out,
                                        detail::layout(counts, comm.size(), "gather_v"), root, algorithm);
  comm.run(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work gather_v_async(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, int root = 0,
                    Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_gather(comm, collective::gather_v, in, out,
                                        detail::layout(counts, comm.size(), "gather_v"), root, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
