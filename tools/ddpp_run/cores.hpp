// SPDX-License-Identifier: BSL-1.0
// How many ranks a node is good for, and which cores each gets.
#pragma once

#include <string>
#include <vector>

namespace launcher {

/// --nproc-per-node: a number, "cpu" (the cores that this process may keep busy), "gpu" (NVIDIA's devices, as
/// CUDA_VISIBLE_DEVICES restricts them), "auto" (gpu where there are any, else cpu). Throws `bad_input`.
int parse_local_ranks(const std::string& text);

/// Divides the cores that this process may use into `parts` shares of neighbours, as even as can be. Where
/// there are more parts than cores, several have the same one.
std::vector<std::vector<int>> shares_of_cores(int parts);

}  // namespace launcher
