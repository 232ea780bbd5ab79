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

/// The operation that the plan names; the command line has made sure that there is one.
template <class Comm>
operation<Comm> named_operation(const plan& todo, const std::string& algorithm_name) {
  operation<Comm> chosen{};
  const auto choose = [&]<class Collective, class T, class Op>() {
    visit_algorithm(algorithm_name, [&]<class Algorithm>(Algorithm) {
      if constexpr (Collective::template can_use<Algorithm, Comm> && is_built<Collective, Algorithm, T, Op>) {
        chosen = make_operation<Comm, Collective, T, Op, Algorithm>();
      }
    });
  };
  visit_collective(todo.collective, [&]<class Collective>(Collective) {
    visit_named(all_types, todo.type, [&]<class T>(std::type_identity<T>) {
      if constexpr (!Collective::reduces)
        choose.template operator()<Collective, T, no_op>();
      else
        visit_named(all_ops, todo.op, [&]<class Op>(std::type_identity<Op>) {
          choose.template operator()<Collective, T, Op>();
        });
    });
  });
  return chosen;
}

template <class Transport>
void run_on(const plan& todo, const std::string& algorithm, std::span<row> rows) {
  const auto rank = [&]<class Comm>(Comm& comm) {
    measure_table(comm, todo, named_operation<Comm>(todo, algorithm), rows);
  };
  if (todo.launched) {
    auto comm = ddpp::init<Transport>();
    rank(comm);
  } else {
    ddpp::launch<Transport>(todo.ranks, rank);
  }
}

}  // namespace perf
