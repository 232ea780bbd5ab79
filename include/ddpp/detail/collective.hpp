// SPDX-License-Identifier: BSL-1.0
// What the front doors of the collectives share: the choice of an algorithm, argument checks, fingerprints.
#pragma once

#include <ddpp/buffer.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/op.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

namespace ddpp {

/// Stands for "the algorithms of the communicator" where a call names none.
struct the_communicators {};

namespace detail {

template <class X>
inline constexpr bool is_communicator = false;
template <class T, class A>
inline constexpr bool is_communicator<communicator<T, A>> = true;

/// A communicator, as the first argument of every collective.
template <class C>
concept any_communicator = is_communicator<std::remove_cv_t<C>>;

template <class Alg>
inline constexpr bool is_named = !std::is_same_v<Alg, the_communicators>;

template <class C, class Alg>
using chosen_algorithm = std::conditional_t<is_named<Alg>, Alg, typename C::algorithms_type>;

template <class Alg>
inline constexpr bool is_automatic = false;
template <class Table>
inline constexpr bool is_automatic<algorithms::automatic_with<Table>> = true;

/// Whether no algorithm is named, but perhaps a table of them.
template <class C, class Alg>
inline constexpr bool leaves_choice = is_automatic<chosen_algorithm<C, Alg>>;

/// Native collectives are for those who leave the choice to ddpp, not to a table of their own.
template <class C, class Alg>
inline constexpr bool prefers_native = std::is_same_v<chosen_algorithm<C, Alg>, algorithms::automatic>;

/// Calls f with the algorithm object that a collective shall use: the one named; else the communicator's.
template <class C, class Alg>
constexpr auto algorithm_object(const Alg& named) {
  if constexpr (is_named<Alg>)
    return named;
  else
    return typename C::algorithms_type{};
}

/// Differing algorithms would wait for each other: their names are part of the fingerprint.
template <class C, class Alg>
constexpr std::uint32_t algorithm_code() {
  using chosen = chosen_algorithm<C, Alg>;
  if constexpr (std::is_same_v<chosen, algorithms::automatic>)
    return 0;
  else if constexpr (requires { std::string_view(chosen::name); })
    return hash_of_name(chosen::name);
  else
    return 1;
}

template <class T>
constexpr fingerprint fingerprint_of(collective op, std::size_t count, int root = -1,
                                     std::uint32_t reduction = 0, std::uint32_t algorithm = 0) {
  static_assert(sizeof(T) <= std::numeric_limits<std::uint16_t>::max(),
                "elements may have up to 65,535 bytes");
  return {.count = count,
          .reduction = reduction,
          .algorithm = algorithm,
          .root = root,
          .element_size = static_cast<std::uint16_t>(sizeof(T)),
          .type = static_cast<std::uint8_t>(dtype_of<T>),
          .op = op};
}

/// An asynchronous operation refuses what would be gone before it is done.
template <class... Buffers>
constexpr void require_lasting() {
  static_assert((outlives_the_call<Buffers> && ...),
                "ddpp: an asynchronous operation cannot take a temporary that owns its elements, since they "
                "would be gone "
                "before the work is done: pass a named buffer, or a span of one");
}

[[noreturn, gnu::cold, gnu::noinline]] inline void refuse(const char* operation,
                                                          std::initializer_list<text_piece> why) {
  throw usage_error(text(operation, ": ", join(why)));
}

/// Throws `usage_error` with the text that the pieces make, unless all is good; then it costs a comparison.
template <class... Pieces>
void check(bool good, const char* operation, const Pieces&... why) {
  if (!good) refuse(operation, {text_piece(why)...});
}

template <class C>
void check_peer(const C& comm, int rank, const char* operation, const char* role) {
  check(rank >= 0 && rank < comm.size(), operation, role, " ", rank, " is not a rank of this group of ",
        comm.size());
}

template <class T, class U>
bool are_apart(std::span<T> in, std::span<U> out) {
  const auto a = reinterpret_cast<std::uintptr_t>(in.data()),
             b = reinterpret_cast<std::uintptr_t>(out.data());
  return in.empty() || out.empty() || a + in.size_bytes() <= b || b + out.size_bytes() <= a;
}

/// For buffers that are not the same.
template <class T, class U>
void check_overlap(std::span<T> in, std::span<U> out, const char* operation) {
  check(are_apart(in, out), operation,
        "input and output overlap in part; they must be the same buffer or separate ones");
}

}  // namespace detail
}  // namespace ddpp
