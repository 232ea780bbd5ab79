// SPDX-License-Identifier: BSL-1.0
// Names on the command line and the types that they stand for. Each visit calls f with one of them and
// returns whether there was one of that name.
#pragma once

#include <ddpp/ddpp.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "collectives.hpp"
#include "values.hpp"

namespace perf {

template <class T>
struct named {
  const char* name;
  std::type_identity<T> type = {};
};

inline constexpr std::tuple all_types{named<float>{"float"},        named<double>{"double"},
                                      named<ddpp::half>{"half"},    named<ddpp::bfloat16>{"bfloat16"},
                                      named<std::int32_t>{"int32"}, named<std::int64_t>{"int64"},
                                      named<std::uint8_t>{"uint8"}};
inline constexpr std::tuple all_ops{named<ddpp::sum_t>{"sum"}, named<ddpp::prod_t>{"prod"},
                                    named<ddpp::min_t>{"min"}, named<ddpp::max_t>{"max"},
                                    named<ddpp::avg_t>{"avg"}};

/// Every operation on every type with every algorithm would take minutes to compile and tell little more.
template <class Collective, class Algorithm, class T, class Op>
inline constexpr bool is_built = [] {
  constexpr bool sums = std::same_as<Op, ddpp::sum_t> || std::same_as<Op, ddpp::avg_t>;
  if (!Collective::reduces) return true;
  if (is_automatic<Algorithm>) return sums || std::same_as<Collective, all_reduce>;
  return sums && (std::same_as<T, float> || std::same_as<T, double>);
}();
inline constexpr const char* what_is_built =
    "all_reduce with the automatic algorithm takes any operation on any type; others take sum and avg, and "
    "with a named algorithm those of float and double";

template <class List, class F>
bool visit_named(const List& list, std::string_view name, F f) {
  return std::apply([&](const auto&... each) { return ((each.name == name && (f(each.type), true)) || ...); },
                    list);
}

template <class F>
bool visit_collective(std::string_view name, F f) {
  return std::apply([&](auto... each) { return ((each.name == name && (f(each), true)) || ...); },
                    all_collectives{});
}

template <class F>
bool visit_algorithm(std::string_view name, F f) {
  return std::apply([&](auto... each) { return ((each.name == name && (f(each), true)) || ...); },
                    all_algorithms{});
}

}  // namespace perf
