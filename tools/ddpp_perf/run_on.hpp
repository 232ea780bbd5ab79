// SPDX-License-Identifier: BSL-1.0
// From names to types, and from this process to ranks, for one transport.
#pragma once

#include <ddpp/ddpp.hpp>

#include <span>
#include <string>

#include "choices.hpp"
#include "measure.hpp"
#include "plan.hpp"

namespace perf {

template <class Comm>
void measure_named(Comm& comm, const plan& todo, const std::string& algorithm_name, std::span<row> rows) {
  const auto with = [&](auto collective, auto type, auto op) {
    visit_algorithm(algorithm_name, [&](auto algorithm) {
      if constexpr (decltype(collective)::template can_use<decltype(algorithm), Comm>) {
        measure_table<decltype(collective), typename decltype(type)::type>(comm, todo, rows, op, algorithm);
      }
    });
  };
  visit_collective(todo.collective, [&](auto collective) {
    visit_named(all_types, todo.type, [&](auto type) {
      if constexpr (decltype(collective)::reduces) {
        visit_named(all_ops, todo.op,
                    [&](auto op) { with(collective, type, typename decltype(op)::type{}); });
      } else {
        with(collective, type, no_op{});
      }
    });
  });
}

template <class Transport>
void run_on(const plan& todo, const std::string& algorithm, std::span<row> rows) {
  const auto rank = [&](auto& comm) { measure_named(comm, todo, algorithm, rows); };
  if (todo.launched) {
    auto comm = ddpp::init<Transport>();
    rank(comm);
  } else {
    ddpp::launch<Transport>(todo.ranks, rank);
  }
}

}  // namespace perf
