// SPDX-License-Identifier: BSL-1.0
// A picture of bus bandwidth over size, drawn by gnuplot.
#pragma once

#include <vector>

#include "plan.hpp"

namespace perf {

/// Throws bad_input where there is no gnuplot, or the file cannot be written.
void check_plot(const plan& todo);

/// An SVG file: a line for each table. Throws bad_input when it cannot be written.
void write_plot(const plan& todo, const std::vector<table>& tables);

}  // namespace perf
