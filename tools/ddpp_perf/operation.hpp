// SPDX-License-Identifier: BSL-1.0
// A collective of one element type, reduction and algorithm, behind function pointers: what is done with it
// is compiled once, not once for each of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "collectives.hpp"
#include "place.hpp"
#include "values.hpp"

namespace perf {

template <class Comm>
struct operation {
  using bytes = std::span<std::byte>;

  bool out_of_place, in_place;
  std::size_t element_size;
  double (*bus_factor)(int ranks);
  layout (*layout_of)(const place& at);
  void (*fill)(bytes in, const place& at, unsigned seed);
  std::int64_t (*wrong)(bytes out, const place& at, unsigned seed);  // elements that `seed` does not explain
  void (*run)(Comm& comm, bytes in, bytes out, const place& at);
};

template <class T>
std::span<T> elements(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T, class Op>
void fill(std::span<std::byte> in, const place& at, unsigned seed) {
  const values<T, Op> put_in{at.ranks, seed};
  std::size_t i = 0;
  for (T& element : elements<T>(in)) element = put_in.element(at.rank, i++);
}

template <class Collective, class T, class Op>
std::int64_t wrong(std::span<std::byte> out, const place& at, unsigned seed) {
  const values<T, Op> put_in{at.ranks, seed};
  std::int64_t found = 0;
  std::size_t i = 0;
  for (const T& element : elements<T>(out)) found += !(element == Collective::expected(put_in, at, i++));
  return found;
}

template <class Comm, class Collective, class T, class Op, class Algorithm>
void run(Comm& comm, std::span<std::byte> in, std::span<std::byte> out, const place& at) {
  Collective::run(comm, elements<T>(in), elements<T>(out), Op{}, at, Algorithm{});
}

/// What is only moved is moved as integers of its size, so that it is compiled once for all types of that
/// size.
template <class T>
using moved_as =
    std::conditional_t<sizeof(T) == 1, std::uint8_t,
                       std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                          std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

template <class Comm, class Collective, class T, class Op, class Algorithm>
constexpr operation<Comm> make_operation() {
  return {Collective::out_of_place,
          Collective::in_place,
          sizeof(T),
          Collective::bus_factor,
          Collective::layout_of,
          fill<T, Op>,
          wrong<Collective, T, Op>,
          run<Comm, Collective, std::conditional_t<Collective::reduces, T, moved_as<T>>, Op, Algorithm>};
}

}  // namespace perf
