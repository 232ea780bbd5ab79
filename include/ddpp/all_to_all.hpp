// SPDX-License-Identifier: BSL-1.0
// all_to_all: every rank sends a piece to every rank.
#pragma once

#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/layout.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace ddpp {
namespace detail {

template <class C, class T, class Alg>
struct all_to_all_call {
  collective op;
  std::span<const T> in;
  std::span<T> out;
  layout outgoing, arriving;
  Alg algorithm;

  fingerprint print() const {
    // Each rank's counts are its own in the _v form; there every message is checked by its size.
    const std::size_t count = op == collective::all_to_all ? outgoing.blocks().size(0) : 0;
    return fingerprint_of<T>(op, count, -1, 0, algorithm_code<C, Alg>());
  }
  void operator()(C& inside) const {
    if constexpr (is_on_device<C>) {
      refuse_algorithm<Alg>();
      inside.transport().all_to_all(std::as_bytes(in), outgoing.blocks().scaled(sizeof(T)),
                                    std::as_writable_bytes(out), arriving.blocks().scaled(sizeof(T)),
                                    inside.deadline());
    } else {
      on_host(inside);
    }
  }

 private:
  void on_host(C& inside) const {
    if (in.data() == out.data() && !in.empty() &&
        inside.size() > 1) {  // in place: what arrives must not meet what is still to go
      scratch<T> copy(in.size());
      copy_elements(in, copy.span());
      exchange_all(inside, std::span<const T>(copy.span()));
    } else {
      exchange_all(inside, in);
    }
  }

  void exchange_all(C& inside, std::span<const T> input) const {
    using chosen = chosen_algorithm<C, Alg>;
    copy_elements(outgoing.block(input, inside.rank()), arriving.block(out, inside.rank()));
    const auto from = std::as_bytes(input);
    const auto into = std::as_writable_bytes(out);
    const auto sent = outgoing.blocks().scaled(sizeof(T)), received = arriving.blocks().scaled(sizeof(T));
    if constexpr (requires(const chosen& a) { a.all_to_all(inside, from, sent, into, received); }) {
      algorithm_object<C>(algorithm).all_to_all(inside, from, sent, into, received);
    } else {
      static_assert(!is_named<Alg>,
                    "ddpp: this algorithm has no all_to_all(communicator, in, partition, out, partition)");
      algorithms::automatic{}.all_to_all(inside, from, sent, into, received);
    }
  }
};

template <class I, class O, class C, class Alg>
auto make_all_to_all(const C& comm, collective op, I&& input, O&& output, layout outgoing, layout arriving,
                     Alg algorithm) {
  using T = element_t<O>;
  static_assert(std::is_same_v<element_t<I>, T>,
                "ddpp: input and output of all_to_all must have the same element type");
  const std::span<const T> in = as_span(input);
  const std::span<T> out = as_span(output);
  check_total(in.size(), outgoing, name_of(op), "input");
  check_total(out.size(), arriving, name_of(op), "output");
  const std::size_t kept = outgoing.blocks().size(comm.rank()), got = arriving.blocks().size(comm.rank());
  check(kept == got, name_of(op), "rank ", comm.rank(), " sends itself ", kept, " elements but receives ",
        got, " from itself");
  if (in.data() != out.data() || in.size() != out.size()) check_overlap(in, out, name_of(op));
  if constexpr (is_on_device<C>)
    check(in.data() != out.data() || in.empty(), name_of(op),
          "in place is not possible on a device; give it an output of its own");
  check_memory(comm, in, name_of(op));
  check_memory(comm, out, name_of(op));
  return all_to_all_call<C, T, Alg>{op, in, out, std::move(outgoing), std::move(arriving), algorithm};
}

template <class C, class I, class O, class Alg>
auto make_even_all_to_all(const C& comm, I&& in, O&& out, Alg algorithm) {
  const auto n = static_cast<std::size_t>(comm.size());
  const std::size_t count = as_span(in).size();
  check(count % n == 0, "all_to_all", "the input has ", count,
        " elements, which do not divide into pieces for ", n, " ranks");
  const layout pieces(count / n, comm.size());
  return make_all_to_all(comm, collective::all_to_all, in, out, pieces, pieces, algorithm);
}

template <class C, class I, class O, class Alg>
auto make_all_to_all_v(const C& comm, I&& in, std::span<const std::size_t> send_counts, O&& out,
                       std::span<const std::size_t> receive_counts, Alg algorithm) {
  return make_all_to_all(comm, collective::all_to_all_v, in, out,
                         layout(send_counts, comm.size(), "all_to_all_v"),
                         layout(receive_counts, comm.size(), "all_to_all_v"), algorithm);
}

}  // namespace detail

/// `in` and `out` have size() pieces of the same number of elements. Afterwards piece r of `out` is rank r's
/// piece rank(). All ranks bring the same number of elements of the same type. In place: the same buffer (a
/// copy is made). Blocks. Throws `peer_lost`, `mismatch_error`, `timeout_error`, `revoked_error`.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void all_to_all(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  const auto call = detail::make_even_all_to_all(comm, in, out, algorithm);
  comm.run(call.print(), call);
}

/// Returns at once. The buffers belong to the operation until the work is done.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work all_to_all_async(C& comm, I&& in, O&& out, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_even_all_to_all(comm, in, out, algorithm);
  return comm.start(call.print(), call);
}

/// all_to_all with send_counts[r] elements for rank r and receive_counts[r] from it, which must be what r
/// sends; any may be 0. Pieces stand one after the other.
template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
void all_to_all_v(C& comm, I&& in, std::span<const std::size_t> send_counts, O&& out,
                  std::span<const std::size_t> receive_counts, Alg algorithm = {}) {
  const auto call = detail::make_all_to_all_v(comm, in, send_counts, out, receive_counts, algorithm);
  comm.run(call.print(), call);
}

template <detail::any_communicator C, buffer I, mutable_buffer O, class Alg = the_communicators>
work all_to_all_v_async(C& comm, I&& in, std::span<const std::size_t> send_counts, O&& out,
                        std::span<const std::size_t> receive_counts, Alg algorithm = {}) {
  detail::require_lasting<I, O>();
  const auto call = detail::make_all_to_all_v(comm, in, send_counts, out, receive_counts, algorithm);
  return comm.start(call.print(), call);
}

}  // namespace ddpp
