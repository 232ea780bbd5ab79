// SPDX-License-Identifier: BSL-1.0
// Tables of algorithms: one row for each case, of which the first that fits counts. Rows for other transports
// cost nothing, not even compile time.
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace ddpp {
namespace algorithms {

/// As a row's limit: none.
inline constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

/// On this transport (its `name`; "" for any), for buffers of up to `bytes` bytes in groups of up to `ranks`
/// ranks: this algorithm.
template <class Algorithm>
struct row {
  std::string_view transport;
  std::size_t bytes;
  std::size_t ranks;
  Algorithm algorithm;
};
template <class Algorithm>
row(std::string_view, std::size_t, std::size_t, Algorithm) -> row<Algorithm>;

}  // namespace algorithms

namespace detail {

/// The index of the first row from `Index` on that concerns the transport.
template <const auto& Rows, class Transport, std::size_t Index>
constexpr std::size_t next_row() {
  if constexpr (Index < std::tuple_size_v<std::remove_cvref_t<decltype(Rows)>>) {
    constexpr std::string_view transport = std::get<Index>(Rows).transport;
    if constexpr (!transport.empty() && transport != Transport::name) {
      return next_row<Rows, Transport, Index + 1>();
    }
  }
  return Index;
}

/// f(the algorithm of the first row that fits).
template <const auto& Rows, class Transport, std::size_t From = 0, class F>
void with_first_fit(std::size_t bytes, int ranks, F&& f) {
  constexpr std::size_t index = next_row<Rows, Transport, From>();
  constexpr bool found = index < std::tuple_size_v<std::remove_cvref_t<decltype(Rows)>>;
  static_assert(found,
                "ddpp: this table of algorithms has no row without limits for this transport: let "
                "row{\"\", any, any, an algorithm} be its last");
  if constexpr (found) {
    constexpr const auto& row = std::get<index>(Rows);
    constexpr bool always = row.bytes == algorithms::any && row.ranks == algorithms::any;
    if constexpr (always) {
      f(row.algorithm);
    } else {
      if (bytes <= row.bytes && static_cast<std::size_t>(ranks) <= row.ranks)
        f(row.algorithm);
      else
        with_first_fit<Rows, Transport, index + 1>(bytes, ranks, f);
    }
  }
}

}  // namespace detail
}  // namespace ddpp
