// SPDX-License-Identifier: BSL-1.0
// ddpp-perf: what collectives cost, as NVIDIA's nccl-tests would say it.
// Exit status: 0, 1 when a check fails or ranks fail, 2 for bad input.
#include <ddpp/environment.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "comparison.hpp"
#include "plan.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "run.hpp"
#include "shared_array.hpp"

namespace perf {
namespace {

table measure(const plan& todo, const std::string& transport, const std::string& algorithm, bool prints) {
  table table{transport, algorithm, todo.ranks, rows_of(todo)};
  if (prints) print_header(todo, table);
  const shared_array<row> rows(table.rows.size());
  std::copy(table.rows.begin(), table.rows.end(), rows.elements().begin());
  if (transport == "threads")
    run_on_threads(todo, algorithm, rows.elements());
  else if (transport == "shm")
    run_on_shm(todo, algorithm, rows.elements());
  else
    run_on_tcp(todo, algorithm, rows.elements());
  std::copy(rows.elements().begin(), rows.elements().end(), table.rows.begin());
  if (prints) print_footer(table);
  return table;
}

int run(const plan& todo) {
  const bool first = ddpp::detail::read_environment().rank == 0;
  if (first) {
    check_json_file(todo);
    check_plot(todo);
  }
  std::vector<table> tables;
  for (const std::string& transport : todo.transports) {
    for (const std::string& algorithm : todo.algorithms) {
      tables.push_back(measure(todo, transport, algorithm, first));
    }
  }
  if (first) {
    if (tables.size() > 1) print_comparison(todo, tables);
    if (!todo.json_file.empty()) write_json(todo, tables);
    if (!todo.plot_file.empty()) write_plot(todo, tables);
  }
  const bool right =
      std::all_of(tables.begin(), tables.end(), [](const table& t) { return wrong_elements(t) == 0; });
  return right ? 0 : 1;
}

int fail(int status, const char* what) {
  std::string line(what);
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "ddpp-perf: %s\n", line.c_str());
  return status;
}

}  // namespace
}  // namespace perf

int main(int argc, char** argv) {
  try {
    const perf::plan todo = perf::parse_command_line(argc, argv);
    return perf::run(todo);
  } catch (const perf::bad_input& e) {
    return perf::fail(2, e.what());
  } catch (const ddpp::init_error& e) {
    return perf::fail(2, e.what());
  } catch (const std::exception& e) {
    return perf::fail(1, e.what());
  }
}
