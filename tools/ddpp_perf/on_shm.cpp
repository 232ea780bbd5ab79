// SPDX-License-Identifier: BSL-1.0
#include "run.hpp"
#include "run_on.hpp"

void perf::run_on_shm(const plan& todo, const std::string& algorithm, std::span<row> rows) {
  run_on<ddpp::shm>(todo, algorithm, rows);
}
