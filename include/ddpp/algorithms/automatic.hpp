// SPDX-License-Identifier: BSL-1.0
// The default: for each collective the algorithm that a table of transports, sizes and numbers of ranks
// names.
#pragma once

#include <ddpp/algorithms/bruck.hpp>
#include <ddpp/algorithms/direct.hpp>
#include <ddpp/algorithms/dissemination.hpp>
#include <ddpp/algorithms/halving_doubling.hpp>
#include <ddpp/algorithms/recursive_doubling.hpp>
#include <ddpp/algorithms/reproducible.hpp>
#include <ddpp/algorithms/ring.hpp>
#include <ddpp/algorithms/scatter_gather.hpp>
#include <ddpp/algorithms/staged.hpp>
#include <ddpp/algorithms/table.hpp>
#include <ddpp/algorithms/tree.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>

namespace ddpp::algorithms {

/// The rows of each collective; the first that fits counts. Bytes are those of the whole buffer: of the
/// root's for gather and scatter, of the output of all_gather, of a rank's input of the others. Limits of up
/// to eight ranks are measured, larger ones follow the steps and bytes in docs/algorithms.md.
///
/// Derive from it to replace some of the tables:
///
///   using namespace ddpp::algorithms;
///   struct my_table : default_table {
///     static constexpr std::string_view name = "my_table";  // the same on all ranks
///     static constexpr std::tuple broadcast{row{"tcp", 1 << 20, any, tree{}},
///                                           row{"", any, any, my_broadcast{}}};
///   };
///   auto comm = ddpp::init<ddpp::tcp, automatic_with<my_table>>();
struct default_table {
  static constexpr std::string_view name = "automatic";

  static constexpr std::tuple all_reduce{
      row{"threads", any, any, staged{}},
      row{"shm", any, any, staged{}},
      row{"tcp", 32 << 10, any, recursive_doubling{}},
      row{"tcp", 512 << 10, any, halving_doubling{}},
      row{"tcp", any, any, ring{}},
      row{"", 16 << 10, any, recursive_doubling{}},
      row{"", any, any, ring{}},
  };
  static constexpr std::tuple reduce_scatter{
      row{"threads", any, any, staged{}},         row{"shm", any, any, staged{}}, row{"", any, 3, ring{}},
      row{"", 16 << 10, any, halving_doubling{}}, row{"", any, any, ring{}},
  };
  static constexpr std::tuple all_gather{
      row{"threads", any, any, staged{}},
      row{"shm", any, any, staged{}},
      row{"", 64 << 10, any, bruck{}},
      row{"", any, any, ring{}},
  };
  static constexpr std::tuple broadcast{
      row{"threads", any, any, staged{}},      row{"shm", any, any, staged{}},
      row{"", 256 << 10, any, tree{}},         row{"", any, 16, ring{}},
      row{"", 8 << 20, any, scatter_gather{}}, row{"", any, any, ring{}},
  };
  static constexpr std::tuple reduce{
      row{"", any, 8, tree{}},
      row{"", 256 << 10, any, tree{}},
      row{"", any, any, scatter_gather{}},
  };
  static constexpr std::tuple gather{
      row{"", any, 8, direct{}},
      row{"", 16 << 10, any, tree{}},
      row{"", any, any, direct{}},
  };
  static constexpr std::tuple scatter{
      row{"", any, 8, direct{}},
      row{"", 16 << 10, any, tree{}},
      row{"", any, any, direct{}},
  };
  static constexpr std::tuple all_to_all{
      row{"", any, 3, direct{}},
      row{"", 16 << 10, any, bruck{}},
      row{"", any, any, direct{}},
  };
};

template <class Table>
struct automatic_with {
  static constexpr std::string_view name = Table::name;

  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, const Op& op) const {
    choose<Table::all_reduce>(comm, data.size_bytes(),
                              [&](const auto& chosen) { chosen.all_reduce(comm, data, op); });
  }

  template <class Comm, class T, class Op>
  void reduce_scatter(Comm& comm, std::span<const T> in, std::span<T> out, const detail::partition& blocks,
                      const Op& op) const {
    choose<Table::reduce_scatter>(
        comm, in.size_bytes(), [&](const auto& chosen) { chosen.reduce_scatter(comm, in, out, blocks, op); });
  }

  template <class Comm, class T, class Op>
  void reduce(Comm& comm, std::span<const T> in, std::span<T> out, const Op& op, int root) const {
    choose<Table::reduce>(comm, in.size_bytes(),
                          [&](const auto& chosen) { chosen.reduce(comm, in, out, op, root); });
  }

  template <class Comm>
  void gather(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
              const detail::partition& blocks, int root) const {
    choose<Table::gather>(comm, blocks.total(),
                          [&](const auto& chosen) { chosen.gather(comm, in, out, blocks, root); });
  }

  template <class Comm>
  void scatter(Comm& comm, std::span<const std::byte> in, std::span<std::byte> out,
               const detail::partition& blocks, int root) const {
    choose<Table::scatter>(comm, blocks.total(),
                           [&](const auto& chosen) { chosen.scatter(comm, in, out, blocks, root); });
  }

  /// With counts of their own no rank knows how much the others send: only a row without a limit of bytes
  /// fits.
  template <class Comm>
  void all_to_all(Comm& comm, std::span<const std::byte> in, const detail::partition& sent,
                  std::span<std::byte> out, const detail::partition& received) const {
    choose<Table::all_to_all>(comm, sent.even() ? in.size() : any,
                              [&](const auto& chosen) { chosen.all_to_all(comm, in, sent, out, received); });
  }

  template <class Comm>
  void all_gather(Comm& comm, std::span<std::byte> data, const detail::partition& blocks) const {
    choose<Table::all_gather>(comm, data.size(),
                              [&](const auto& chosen) { chosen.all_gather(comm, data, blocks); });
  }

  template <class Comm>
  void broadcast(Comm& comm, std::span<std::byte> data, int root) const {
    choose<Table::broadcast>(comm, data.size(),
                             [&](const auto& chosen) { chosen.broadcast(comm, data, root); });
  }

  template <class Comm>
  void barrier(Comm& comm) const {
    if constexpr (has_shared_slots<typename Comm::transport_type>)
      staged{}.barrier(comm);
    else
      dissemination{}.barrier(comm);
  }

 private:
  template <const auto& Rows, class Comm, class F>
  static void choose(const Comm& comm, std::size_t bytes, F&& f) {
    detail::with_first_fit<Rows, typename Comm::transport_type>(bytes, comm.size(), f);
  }
};

using automatic = automatic_with<default_table>;

}  // namespace ddpp::algorithms
