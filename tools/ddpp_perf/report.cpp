// SPDX-License-Identifier: BSL-1.0
#include "report.hpp"

#include <ddpp/version.hpp>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comparison.hpp"
#include "replaced_file.hpp"

namespace perf {
namespace {

void print_result(const result& result) {
  if (!result.measured) {
    std::printf("  %7s  %6s  %6s %6s", "N/A", "N/A", "N/A", "N/A");
    return;
  }
  const int digits = result.microseconds >= 10000 ? 0 : result.microseconds >= 100 ? 1 : 2;
  std::printf("  %7.*f  %6.2f  %6.2f", digits, result.microseconds, result.algbw, result.busbw);
  if (result.wrong < 0)
    std::printf(" %6s", "N/A");
  else
    std::printf(" %6lld", static_cast<long long>(result.wrong));
}

nlohmann::json json_of(const result& result) {
  if (!result.measured) return nullptr;
  nlohmann::json json{{"time_us", result.microseconds}, {"algbw", result.algbw}, {"busbw", result.busbw}};
  json["wrong"] = result.wrong < 0 ? nlohmann::json(nullptr) : nlohmann::json(result.wrong);
  return json;
}

double average_busbw(const table& table) {
  double total = 0;
  int count = 0;
  for (const row& row : table.rows) {
    for (const result* result : {&row.out_of_place, &row.in_place}) {
      if (result->measured) total += result->busbw, ++count;
    }
  }
  return count == 0 ? 0 : total / count;
}

std::string name_of(const table& table) { return table.transport + " " + table.algorithm; }

nlohmann::ordered_json json_of_comparison(const std::vector<table>& tables) {
  nlohmann::ordered_json columns = nlohmann::json::array(), rows = nlohmann::json::array();
  for (const table& table : tables) columns.push_back(name_of(table));
  for (std::size_t i = 0; i < tables[0].rows.size(); ++i) {
    nlohmann::ordered_json times = nlohmann::json::array();
    for (const table& table : tables) times.push_back(representative(table.rows[i]).microseconds);
    rows.push_back(nlohmann::ordered_json{{"size", tables[0].rows[i].bytes},
                                          {"time_us", times},
                                          {"fastest", name_of(tables[fastest(tables, i)])}});
  }
  return {{"columns", columns}, {"rows", rows}};
}

}  // namespace

void print_header(const plan& todo, const table& table) {
  std::printf("# ddpp-perf %s: %s, %d rank%s on %u cores, transport %s, algorithm %s\n", ddpp::version,
              todo.collective.c_str(), table.ranks, table.ranks == 1 ? "" : "s",
              std::thread::hardware_concurrency(), table.transport.c_str(), table.algorithm.c_str());
  const bool by_factor = todo.step_factor != 0;
  std::printf("# minbytes %zu maxbytes %zu step %zu (%s) warmup iters %d iters %d check iters %d\n#\n",
              todo.min_bytes, todo.max_bytes, by_factor ? todo.step_factor : todo.step_bytes,
              by_factor ? "factor" : "bytes", todo.warmup_iterations, todo.iterations, todo.check_iterations);
  std::printf("#%11s  %12s  %8s  %6s  %6s  %32s  %31s\n", "", "", "", "", "", "out-of-place          ",
              "in-place           ");
  std::printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n", "size", "count", "type",
              "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
  std::printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s\n", "(B)", "(elements)", "", "",
              "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
  std::fflush(stdout);
}

void print_row(const plan& todo, const row& row) {
  std::printf("%12zu  %12zu  %8s  %6s  %6d", row.bytes, row.count, todo.type.c_str(), todo.op.c_str(),
              todo.root);
  print_result(row.out_of_place);
  print_result(row.in_place);
  std::printf("\n");
  std::fflush(stdout);
}

void print_footer(const table& table) {
  const auto wrong = wrong_elements(table);
  std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong),
              wrong == 0 ? "OK" : "FAILED");
  std::printf("# Avg bus bandwidth    : %g\n#\n", average_busbw(table));
  std::fflush(stdout);
}

std::int64_t wrong_elements(const table& table) {
  std::int64_t wrong = 0;
  for (const row& row : table.rows) {
    for (const result* result : {&row.out_of_place, &row.in_place})
      wrong += result->wrong > 0 ? result->wrong : 0;
  }
  return wrong;
}

void check_json_file(const plan& todo) {
  if (!todo.json_file.empty()) replaced_file(todo.json_file).check();
}

void write_json(const plan& todo, const std::vector<table>& tables) {
  nlohmann::ordered_json json{{"ddpp_perf", ddpp::version},
                              {"collective", todo.collective},
                              {"minbytes", todo.min_bytes},
                              {"maxbytes", todo.max_bytes},
                              {"stepfactor", todo.step_factor},
                              {"stepbytes", todo.step_bytes},
                              {"warmup_iters", todo.warmup_iterations},
                              {"iters", todo.iterations},
                              {"check_iters", todo.check_iterations},
                              {"type", todo.type},
                              {"redop", todo.op},
                              {"root", todo.root},
                              {"cores", std::thread::hardware_concurrency()},
                              {"tables", nlohmann::json::array()}};
  for (const table& table : tables) {
    nlohmann::ordered_json rows = nlohmann::json::array();
    for (const row& row : table.rows) {
      rows.push_back(nlohmann::ordered_json{{"size", row.bytes},
                                            {"count", row.count},
                                            {"out_of_place", json_of(row.out_of_place)},
                                            {"in_place", json_of(row.in_place)}});
    }
    json["tables"].push_back(nlohmann::ordered_json{{"transport", table.transport},
                                                    {"algorithm", table.algorithm},
                                                    {"ranks", table.ranks},
                                                    {"average_busbw", average_busbw(table)},
                                                    {"wrong", wrong_elements(table)},
                                                    {"rows", rows}});
  }
  if (tables.size() > 1) json["comparison"] = json_of_comparison(tables);
  replaced_file file(todo.json_file);
  std::ofstream stream(file.temporary_name());
  stream << json.dump(2) << '\n';
  stream.close();
  if (!stream) file.refuse();
  file.keep();
}

}  // namespace perf
