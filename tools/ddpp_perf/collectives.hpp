// SPDX-License-Identifier: BSL-1.0
// The collectives that ddpp-perf knows. To add one: a struct like those below and its place in
// `all_collectives`.
#pragma once

#include <ddpp/ddpp.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>

#include "place.hpp"
#include "values.hpp"

namespace perf {

/// Numbers of elements, and where the input and the output lie in the one buffer of the in-place form.
struct layout {
  std::size_t in, out, in_place_in = 0, in_place_out = 0;
};

struct all_reduce {
  static constexpr const char* name = "all_reduce";
  static constexpr bool reduces = true, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int n) { return 2.0 * (n - 1) / n; }

  static layout layout_of(const place& at) { return {at.count, at.count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, const place&, Algorithm algorithm) {
    if (in.data() == out.data())
      ddpp::all_reduce(comm, out, op, algorithm);
    else
      ddpp::all_reduce(comm, in, out, op, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<float> data) {
    a.all_reduce(comm, data, ddpp::sum);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place&, std::size_t i) {
    return put_in.reduced(i);
  }
};

template <class Spread>
struct reduce_scatter_of {
  static constexpr const char* name = Spread::has_counts ? "reduce_scatter_v" : "reduce_scatter";
  static constexpr bool reduces = true, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(const place& at) {
    const pieces<Spread> all{at};
    return {all.total(), all.own_size(), 0, all.own_offset()};
  }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, const place& at,
                  Algorithm algorithm) {
    if constexpr (Spread::has_counts)
      ddpp::reduce_scatter_v(comm, in, out, pieces<Spread>{at}.counts(), op, algorithm);
    else
      ddpp::reduce_scatter(comm, in, out, op, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const float> in,
                                           std::span<float> out, const ddpp::detail::partition& blocks) {
    a.reduce_scatter(comm, in, out, blocks, ddpp::sum);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    return put_in.reduced(pieces<Spread>{at}.own_offset() + i);
  }
};

template <class Spread>
struct all_gather_of {
  static constexpr const char* name = Spread::has_counts ? "all_gather_v" : "all_gather";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(const place& at) {
    const pieces<Spread> all{at};
    return {all.own_size(), all.total(), all.own_offset(), 0};
  }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, const place& at, Algorithm algorithm) {
    if constexpr (Spread::has_counts)
      ddpp::all_gather_v(comm, in, out, pieces<Spread>{at}.counts(), algorithm);
    else
      ddpp::all_gather(comm, in, out, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<std::byte> data,
                                           const ddpp::detail::partition& blocks) {
    a.all_gather(comm, data, blocks);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    const pieces<Spread> all{at};
    const int owner = all.owner(i);
    return put_in.element(owner, i - all.offset(owner));
  }
};

struct broadcast {
  static constexpr const char* name = "broadcast";
  static constexpr bool reduces = false, has_root = true, out_of_place = false, in_place = true;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(const place& at) { return {at.count, at.count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T>, std::span<T> out, Op, const place& at, Algorithm algorithm) {
    ddpp::broadcast(comm, out, at.root, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<std::byte> data) {
    a.broadcast(comm, data, 0);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    return put_in.element(at.root, i);
  }
};

struct reduce {
  static constexpr const char* name = "reduce";
  static constexpr bool reduces = true, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(const place& at) { return {at.count, at.rank == at.root ? at.count : 0}; }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const float> in,
                                           std::span<float> out) {
    a.reduce(comm, in, out, ddpp::sum, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, const place& at,
                  Algorithm algorithm) {
    ddpp::reduce(comm, in, out, op, at.root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place&, std::size_t i) {
    return put_in.reduced(i);
  }
};

template <class Spread>
struct gather_of {
  static constexpr const char* name = Spread::has_counts ? "gather_v" : "gather";
  static constexpr bool reduces = false, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(const place& at) {
    const pieces<Spread> all{at};
    if (at.rank != at.root) return {all.own_size(), 0};
    return {all.own_size(), all.total(), all.own_offset(), 0};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.gather(comm, in, out, blocks, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, const place& at, Algorithm algorithm) {
    if constexpr (Spread::has_counts)
      ddpp::gather_v(comm, in, out, pieces<Spread>{at}.counts(), at.root, algorithm);
    else
      ddpp::gather(comm, in, out, at.root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    return all_gather_of<Spread>::expected(put_in, at, i);
  }
};

template <class Spread>
struct scatter_of {
  static constexpr const char* name = Spread::has_counts ? "scatter_v" : "scatter";
  static constexpr bool reduces = false, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(const place& at) {
    const pieces<Spread> all{at};
    if (at.rank != at.root) return {0, all.own_size()};
    return {all.total(), all.own_size(), 0, all.own_offset()};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.scatter(comm, in, out, blocks, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, const place& at, Algorithm algorithm) {
    if constexpr (Spread::has_counts)
      ddpp::scatter_v(comm, in, out, pieces<Spread>{at}.counts(), at.root, algorithm);
    else
      ddpp::scatter(comm, in, out, at.root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    return put_in.element(at.root, pieces<Spread>{at}.own_offset() + i);
  }
};

/// Each rank spreads its elements alike, so that with counts those who get more get it from everyone.
template <class Spread>
struct all_to_all_of {
  static constexpr const char* name = Spread::has_counts ? "all_to_all_v" : "all_to_all";
  static constexpr bool reduces = false, has_root = false, out_of_place = true;
  static constexpr bool in_place = !Spread::has_counts;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(const place& at) {
    const pieces<Spread> sent{at};
    return {sent.total(), sent.own_size() * static_cast<std::size_t>(at.ranks)};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.all_to_all(comm, in, blocks, out, blocks);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, const place& at, Algorithm algorithm) {
    if constexpr (Spread::has_counts) {
      const pieces<Spread> sent{at};
      const std::vector<std::size_t> received(static_cast<std::size_t>(at.ranks), sent.own_size());
      ddpp::all_to_all_v(comm, in, sent.counts(), out, received, algorithm);
    } else {
      ddpp::all_to_all(comm, in, out, algorithm);
    }
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    const pieces<Spread> sent{at};
    return put_in.element(static_cast<int>(i / sent.own_size()), sent.own_offset() + i % sent.own_size());
  }
};

/// What cannot name an algorithm.
template <class Algorithm>
inline constexpr bool is_automatic = std::same_as<Algorithm, ddpp::algorithms::automatic>;

/// Each rank sends to the next and receives from the one before, at once.
struct sendrecv {
  static constexpr const char* name = "sendrecv";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = false;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(const place& at) { return {at.count, at.count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, const place& at, Algorithm) {
    const int next = (at.rank + 1) % at.ranks, previous = (at.rank + at.ranks - 1) % at.ranks;
    auto received = ddpp::irecv(comm, out, previous);
    auto sent = ddpp::isend(comm, in, next);
    sent.wait();
    received.wait();
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = is_automatic<Algorithm>;
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, const place& at, std::size_t i) {
    return put_in.element((at.rank + at.ranks - 1) % at.ranks, i);
  }
};

/// Moves nothing: a single row, of no bytes.
struct barrier {
  static constexpr const char* name = "barrier";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = false;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 0; }

  static layout layout_of(const place&) { return {0, 0}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T>, std::span<T>, Op, const place&, Algorithm algorithm) {
    if constexpr (is_automatic<Algorithm>)
      ddpp::barrier(comm);
    else
      comm.run({.op = ddpp::collective::barrier}, [&](Comm& inside) { algorithm.barrier(inside); });
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm) {
    a.barrier(comm);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>&, const place&, std::size_t) {
    return {};
  }
};
inline bool has_sizes(std::string_view collective) { return collective != barrier::name; }

using all_collectives = std::tuple<all_reduce, reduce_scatter_of<even>, reduce_scatter_of<growing>,
                                   all_gather_of<even>, all_gather_of<growing>, broadcast, reduce,
                                   gather_of<even>, gather_of<growing>, scatter_of<even>, scatter_of<growing>,
                                   all_to_all_of<even>, all_to_all_of<growing>, sendrecv, barrier>;
using all_algorithms =
    std::tuple<ddpp::algorithms::automatic, ddpp::algorithms::ring, ddpp::algorithms::recursive_doubling,
               ddpp::algorithms::halving_doubling, ddpp::algorithms::tree, ddpp::algorithms::reproducible,
               ddpp::algorithms::bruck, ddpp::algorithms::direct, ddpp::algorithms::scatter_gather,
               ddpp::algorithms::dissemination>;

}  // namespace perf
