// SPDX-License-Identifier: BSL-1.0
// What every part of the conformance suite uses. The suite is compiled once for each transport, which the
// build names in DDPP_TEST_TRANSPORT; a new backend adds a line to tests/meson.build and nothing here.
#pragma once

#include DDPP_TEST_TRANSPORT_HEADER

#include <ddpp/algorithms/automatic.hpp>
#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/all_to_all.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/function_ref.hpp>
#include <ddpp/gather.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/reduce.hpp>
#include <ddpp/reduce_scatter.hpp>
#include <ddpp/scatter.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "../support/expect.hpp"
#include "outside.hpp"

namespace conformance {

using transport = DDPP_TEST_TRANSPORT;
using namespace std::chrono_literals;
using support::says;

/// A limit that no working operation comes near.
inline constexpr auto generous = 60s;

/// Whether ranks that call different things are told so.
template <class T = transport>
bool tells_of_mismatches() {
  if constexpr (requires { T::compares_first(); })
    return T::compares_first();
  else
    return ddpp::has_control_plane<T>;
}
/// Whether a collective can be issued before the other ranks have called it.
template <class T = transport>
bool issues_alone() {
  if constexpr (requires { T::compares_first(); })
    return !T::compares_first();
  else
    return true;
}

/// Whether the transport reduces elements T with Op.
template <class T, class Op>
inline constexpr bool reduces = ddpp::runs_algorithms<transport> || ddpp::has_all_reduce<transport, T, Op>;

template <bool There, class F>
void call_where(F f) {
  if constexpr (There) f.template operator()<There>();
}

/// Runs f(communicator) on n ranks; what they throw fails the test with its text.
template <class T = transport, class A = ddpp::algorithms::automatic>
void on_ranks(int n, std::type_identity_t<ddpp::detail::function_ref<void(ddpp::communicator<T, A>&)>> f,
              std::chrono::milliseconds timeout = generous) {
  CAPTURE(n);
  if (outside* const started = outside::instance()) {
    CHECK_NOTHROW((started->run<T, A>(n, f, timeout, generous)));
    return;
  }
  CHECK_NOTHROW((ddpp::launch<T, A>(n, f, {.timeout = timeout, .init_timeout = generous})));
}

/// Sizes around every border: none, one, fewer than ranks, primes, several segments.
inline constexpr std::size_t counts[] = {0, 1, 2, 7, 64, 1009, 70'001};

/// What takes longest in a loop over ranks and counts, and shows nothing that neighbours do not.
constexpr bool takes_long(int ranks, std::size_t count) { return count > 10'000 && ranks > 5 && ranks != 8; }

/// Numbers of ranks go from 1 to this; sanitizers, which are slow, get by with fewer.
inline const int most_ranks = [] {
  const char* const limit = std::getenv("DDPP_TEST_MOST_RANKS");
  return limit == nullptr ? 9 : std::atoi(limit);
}();

template <class T>
std::uint64_t hash_of(std::span<const T> data) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::byte b : std::as_bytes(data)) hash = (hash ^ static_cast<std::uint8_t>(b)) * 1099511628211u;
  return hash;
}

/// All ranks hold the same bits.
template <class C, class T>
void expect_same_bits(C& comm, const std::vector<T>& data) {
  const std::uint64_t mine = hash_of(std::span<const T>(data));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  ddpp::all_gather(comm, std::span(&mine, 1), all);
  for (const std::uint64_t other : all) EXPECT(other == mine);
}

/// f() leaves the choice to the communicator, f(algorithm) names each of these in turn.
template <class... Algorithms, class F>
void with_each(F f) {
  f();
  if constexpr (ddpp::runs_algorithms<transport>) (f(Algorithms{}), ...);
}

/// Those that have an all_reduce.
template <class F>
void with_each_algorithm(F f) {
  f(ddpp::the_communicators{});
  if constexpr (ddpp::runs_algorithms<transport>) {
    f(ddpp::algorithms::automatic{});
    f(ddpp::algorithms::ring{});
    f(ddpp::algorithms::recursive_doubling{});
    f(ddpp::algorithms::halving_doubling{});
    f(ddpp::algorithms::tree{});
    f(ddpp::algorithms::reproducible{});
  }
  if constexpr (ddpp::has_shared_slots<transport>) f(ddpp::algorithms::staged{});
}

}  // namespace conformance

/// A case for the transports of which `condition`, which may look at the environment, is true.
#define CASE_IF(condition, name) TEST_CASE(name* doctest::skip(!(condition)))

/// A case for the transports of which `condition`, a constant, is true: for others it is not even compiled.
#define CASE_WHERE(condition, name) CONFORMANCE_CASE((condition), name, DOCTEST_ANONYMOUS(conformance_case_))
#define CONFORMANCE_CASE(condition, name, body)                              \
  template <bool>                                                            \
  static void body();                                                        \
  CASE_IF(condition, name) {                                                 \
    conformance::call_where<condition>([]<bool There>() { body<There>(); }); \
  }                                                                          \
  template <bool>                                                            \
  static void body()
