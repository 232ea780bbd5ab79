// SPDX-License-Identifier: BSL-1.0
// scatter: every rank gets its piece of the root's buffer.
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
struct scatter_call {
  collective op;
  std::span<const T> in;  // empty where this rank is not the root
  std::span<T> out;
  layout pieces;
  int root;
  Alg algorithm;

  fingerprint print() const {
    fingerprint print = fingerprint_of<T>(op, op == collective::scatter ? out.size() : pieces.total(), root,
                                          0, algorithm_code<C, Alg>());
    print.counts = pieces.hash();
    return print;
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C>) {
      refuse_algorithm<Alg>();
      inside.transport().scatter(std::as_bytes(in), std::as_writable_bytes(out),
                                 pieces.blocks().scaled(sizeof(T)), root, inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    using chosen = chosen_algorithm<C, Alg>;
    const auto whole = std::as_bytes(in);
    const auto piece = std::as_writable_bytes(out);
    const auto blocks = pieces.blocks().scaled(sizeof(T));
    if (inside.rank() == root) copy_elements(pieces.block(in, root), out);
    if constexpr (requires(const chosen& a) { a.scatter(inside, whole, piece, blocks, root); }) {
      algorithm_object<C>(algorithm).scatter(inside, whole, piece, blocks, root);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no scatter(communicator, in, out, partition, root)");
      algorithms::automatic{}.scatter(inside, whole, piece, blocks, root);
    }
  }
};

template <class C, class I, class O, class Alg>
auto make_scatter(const C& comm, collective op, I&& input, O&& output, layout pieces, int root,
                  Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of scatter must have the same element type");
  check_peer(comm, root, name_of(op), "root");
  std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  check_piece(out.size(), pieces, comm.rank(), name_of(op), "output");
  if (comm.rank() == root) {
    check_total(in.size(), pieces, name_of(op), "root's input");
    if (out.data() != pieces.block(in, root).data()) check_overlap(in, out, name_of(op));
  } else {
    in = {};
  }
  check_memory(comm, in, name_of(op));
  check_memory(comm, out, name_of(op));
  return scatter_call<C, T, Alg>{op, in, out, std::move(pieces), root, algorithm};
}

}  // namespace detail

/// Afterwards rank r's `out` holds the root's elements from r * out.size(); elsewhere `in` is not looked at.
/// All ranks bring the same number of elements of the same type and name the same root. In place: the root's
/// `out` is its place in `in`. Blocks until this rank's part is done. Throws `peer_lost`, `mismatch_error`,
/// `timeout_error`, `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void scatter(C& comm, I&& in, O&& out, int root = 0, Alg algorithm = {}) {
  const auto call = detail::make_scatter(comm, collective::scatter, in, out,
                                         detail::layout(as_span(out).size(), comm.size()), root, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work scatter_async(C& comm, I&& in, O&& out, int root = 0, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_scatter(comm, collective::scatter, in, out,
                                         detail::layout(as_span(out).size(), comm.size()), root, algorithm);
  return comm.start(call.print(), call);
}

/// scatter with counts[r] elements for rank r, one after the other in `in`. The counts are the same on all
/// ranks.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void scatter_v(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, int root = 0,
               Alg algorithm = {}) {
  const auto call = detail::make_scatter(comm, collective::scatter_v, in, out,
                                         detail::layout(counts, comm.size(), "scatter_v"), root, algorithm);
  comm.run(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work scatter_v_async(C& comm, I&& in, O&& out, std::span<const std::size_t> counts, int root = 0,
                     Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_scatter(comm, collective::scatter_v, in, out,
                                         detail::layout(counts, comm.size(), "scatter_v"), root, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
