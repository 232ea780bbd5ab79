// SPDX-License-Identifier: BSL-1.0
// The collectives that ddpp-perf knows. To add one: a struct like those below and its place in
// `all_collectives`.
#pragma once

#include <ddpp/ddpp.hpp>

#include <cstddef>
#include <span>
#include <tuple>

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

  static layout layout_of(std::size_t count, int, int, int) { return {count, count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, int, Algorithm algorithm) {
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
  static T expected(const values<T, Op>& put_in, std::size_t, int, int, std::size_t i) {
    return put_in.reduced(i);
  }
};

struct reduce_scatter {
  static constexpr const char* name = "reduce_scatter";
  static constexpr bool reduces = true, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(std::size_t count, int rank, int ranks, int) {
    return {count * static_cast<std::size_t>(ranks), count, 0, count * static_cast<std::size_t>(rank)};
  }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, int, Algorithm algorithm) {
    ddpp::reduce_scatter(comm, in, out, op, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const float> in,
                                           std::span<float> out, const ddpp::detail::partition& blocks) {
    a.reduce_scatter(comm, in, out, blocks, ddpp::sum);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t count, int rank, int, std::size_t i) {
    return put_in.reduced(count * static_cast<std::size_t>(rank) + i);
  }
};

struct all_gather {
  static constexpr const char* name = "all_gather";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(std::size_t count, int rank, int ranks, int) {
    return {count, count * static_cast<std::size_t>(ranks), count * static_cast<std::size_t>(rank), 0};
  }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, int, Algorithm algorithm) {
    ddpp::all_gather(comm, in, out, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<std::byte> data,
                                           const ddpp::detail::partition& blocks) {
    a.all_gather(comm, data, blocks);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t count, int, int, std::size_t i) {
    return put_in.element(static_cast<int>(i / count), i % count);
  }
};

struct broadcast {
  static constexpr const char* name = "broadcast";
  static constexpr bool reduces = false, has_root = true, out_of_place = false, in_place = true;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(std::size_t count, int, int, int) { return {count, count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T>, std::span<T> out, Op, int root, Algorithm algorithm) {
    ddpp::broadcast(comm, out, root, algorithm);
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<std::byte> data) {
    a.broadcast(comm, data, 0);
  };
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t, int, int root, std::size_t i) {
    return put_in.element(root, i);
  }
};

struct reduce {
  static constexpr const char* name = "reduce";
  static constexpr bool reduces = true, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(std::size_t count, int rank, int, int root) {
    return {count, rank == root ? count : 0};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const float> in,
                                           std::span<float> out) {
    a.reduce(comm, in, out, ddpp::sum, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op op, int root, Algorithm algorithm) {
    ddpp::reduce(comm, in, out, op, root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t, int, int, std::size_t i) {
    return put_in.reduced(i);
  }
};

struct gather {
  static constexpr const char* name = "gather";
  static constexpr bool reduces = false, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(std::size_t count, int rank, int ranks, int root) {
    if (rank != root) return {count, 0};
    return {count, count * static_cast<std::size_t>(ranks), count * static_cast<std::size_t>(rank), 0};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.gather(comm, in, out, blocks, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, int root, Algorithm algorithm) {
    ddpp::gather(comm, in, out, root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t count, int, int, std::size_t i) {
    return put_in.element(static_cast<int>(i / count), i % count);
  }
};

struct scatter {
  static constexpr const char* name = "scatter";
  static constexpr bool reduces = false, has_root = true, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(std::size_t count, int rank, int ranks, int root) {
    if (rank != root) return {0, count};
    return {count * static_cast<std::size_t>(ranks), count, 0, count * static_cast<std::size_t>(rank)};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.scatter(comm, in, out, blocks, 0);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, int root, Algorithm algorithm) {
    ddpp::scatter(comm, in, out, root, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t count, int rank, int root, std::size_t i) {
    return put_in.element(root, count * static_cast<std::size_t>(rank) + i);
  }
};

struct all_to_all {
  static constexpr const char* name = "all_to_all";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = true;
  static constexpr bool size_is_of_all_ranks = true;
  static constexpr double bus_factor(int n) { return (n - 1.0) / n; }

  static layout layout_of(std::size_t count, int, int ranks, int) {
    const std::size_t all = count * static_cast<std::size_t>(ranks);
    return {all, all};
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use = requires(Algorithm a, Comm& comm, std::span<const std::byte> in,
                                           std::span<std::byte> out, const ddpp::detail::partition& blocks) {
    a.all_to_all(comm, in, blocks, out, blocks);
  };
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, int, Algorithm algorithm) {
    ddpp::all_to_all(comm, in, out, algorithm);
  }
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t count, int rank, int, std::size_t i) {
    return put_in.element(static_cast<int>(i / count), count * static_cast<std::size_t>(rank) + i % count);
  }
};

/// Each rank sends to the next and receives from the one before, at once.
struct sendrecv {
  static constexpr const char* name = "sendrecv";
  static constexpr bool reduces = false, has_root = false, out_of_place = true, in_place = false;
  static constexpr bool size_is_of_all_ranks = false;
  static constexpr double bus_factor(int) { return 1; }

  static layout layout_of(std::size_t count, int, int, int) { return {count, count}; }
  template <class Comm, class T, class Op, class Algorithm>
  static void run(Comm& comm, std::span<T> in, std::span<T> out, Op, int, Algorithm) {
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    auto received = ddpp::irecv(comm, out, previous);
    auto sent = ddpp::isend(comm, in, next);
    sent.wait();
    received.wait();
  }
  template <class Algorithm, class Comm>
  static constexpr bool can_use =
      std::same_as<Algorithm, ddpp::algorithms::automatic>;  // there is nothing to choose
  template <class T, class Op>
  static T expected(const values<T, Op>& put_in, std::size_t, int rank, int, std::size_t i) {
    return put_in.element((rank + put_in.ranks - 1) % put_in.ranks, i);
  }
};

using all_collectives = std::tuple<all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter,
                                   all_to_all, sendrecv>;
using all_algorithms =
    std::tuple<ddpp::algorithms::automatic, ddpp::algorithms::ring, ddpp::algorithms::recursive_doubling,
               ddpp::algorithms::halving_doubling, ddpp::algorithms::tree, ddpp::algorithms::reproducible>;

}  // namespace perf
