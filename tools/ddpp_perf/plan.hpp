// SPDX-License-Identifier: BSL-1.0
// What ddpp-perf is asked to do and what it found: plain data, free of templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace perf {

/// One line on stderr and exit status 2.
struct bad_input : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct plan {
  std::string collective;
  std::vector<std::string> transports, algorithms;  // each pair of them is a table
  int ranks = 2;
  bool launched = false;  // the ranks were started by somebody else, and this process is one of them
  std::size_t min_bytes = 0, max_bytes = 0;
  std::size_t step_factor = 0, step_bytes = 0;  // one of them is 0
  int iterations = 0, warmup_iterations = 0, check_iterations = 0;
  std::string type, op;
  int root = 0;
  std::string json_file, plot_file;  // empty: none
};

/// How one form of a collective did at one size.
struct result {
  bool measured = false;
  double microseconds = 0;      // per operation, of the slowest rank
  double algbw = 0, busbw = 0;  // GB/s, GB = 1e9
  std::int64_t wrong = -1;      // elements on all ranks; -1: not checked
};

struct row {
  std::size_t bytes = 0, count = 0;
  result out_of_place, in_place;
};

/// One transport and one algorithm.
struct table {
  std::string transport, algorithm;
  int ranks = 0;
  std::vector<row> rows;
};

}  // namespace perf
