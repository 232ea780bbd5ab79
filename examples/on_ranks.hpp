// SPDX-License-Identifier: BSL-1.0
// Ranks for the programs here, which run alone and under launchers.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>

/// How many ranks on_ranks<T>(wanted, f) has.
inline int number_of_ranks(int wanted) {
  const int launched = ddpp::launched_ranks();
  return launched > 0 ? launched : wanted;
}

/// Calls f(communicator) on `wanted` new ranks. Where a launcher has started this program as its ranks, on
/// those.
template <ddpp::transport T, class F>
void on_ranks(int wanted, F f) {
  if (ddpp::launched_ranks() == 0) return ddpp::launch<T>(wanted, f);
  auto comm = ddpp::init<T>();
  f(comm);
}
