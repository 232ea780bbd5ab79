// SPDX-License-Identifier: BSL-1.0
#include "run.hpp"
#include "run_on.hpp"

void perf::run_on_threads(const plan& todo, const std::string& algorithm, std::span<row> rows) {
  run_on<ddpp::threads>(todo, algorithm, rows);
}
