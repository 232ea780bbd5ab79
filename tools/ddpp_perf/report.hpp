// SPDX-License-Identifier: BSL-1.0
// The table as nccl-tests prints it, and the JSON file.
#pragma once

#include <string>
#include <vector>

#include "plan.hpp"

namespace perf {

void print_header(const plan& todo, const table& table);
void print_row(const plan& todo, const row& row);
void print_footer(const table& table);

/// Elements that were wrong in all of the table.
std::int64_t wrong_elements(const table& table);

/// Throws bad_input when the file cannot be written; leaves it as it was then.
void write_json(const plan& todo, const std::vector<table>& tables);
/// Whether write_json can succeed, without changing anything. Throws bad_input if not.
void check_json_file(const plan& todo);

}  // namespace perf
