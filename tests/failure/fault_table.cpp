// SPDX-License-Identifier: BSL-1.0
// Fault by phase: what each survivor sees, and how soon. Run in full (DDPP_TEST_FULL=1) with DDPP_FAULT_TABLE
// set to a file's name, it writes docs/failure-table.md there.
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fault_table_incident.hpp"
#include "fault_table_run.hpp"

namespace {

using namespace fault_table;

constexpr std::array moments{0ms, 5ms, 50ms};

/// What was seen in one cell of the table: fault by phase.
struct cell {
  std::map<seen, int> what;
  std::vector<double> seconds;

  std::string text() {
    if (what.empty()) return "";
    std::string result;
    for (const auto& [kind, count] : what) {
      if (kind != seen::nothing || what.size() == 1)
        result += (result.empty() ? "" : ", ") + std::string(name_of(kind));
    }
    if (seconds.empty()) return result;
    std::sort(seconds.begin(), seconds.end());
    return result + " " + milliseconds(seconds[seconds.size() / 2]) + " / " + milliseconds(seconds.back());
  }
  static std::string milliseconds(double seconds) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), seconds < 0.01 ? "%.1f" : "%.0f", seconds * 1000);
    return text.data();
  }
};

using table = std::map<std::pair<phase, fault>, cell>;

template <class T>
void happen(const incident& plan, table& results) {
  trial<T> one(plan);
  const std::string problems = one.run();
  if (!problems.empty()) std::printf("%s: %s", std::string(T::name).c_str(), problems.c_str());
  CHECK(problems == "");
  cell& where = results[{plan.during, plan.what}];
  one.for_survivors([&](int, const observation& mine) { ++where.what[mine.what]; });
  for (const double seconds : one.seconds_until_seen()) where.seconds.push_back(seconds);
  if (std::getenv("DDPP_FAULT_VERBOSE") != nullptr) {
    std::printf("%s %s:", std::string(T::name).c_str(), plan.text().c_str());
    one.for_survivors([&](int rank, const observation& mine) {
      std::printf("\n    %d %s(%d) %s | %s", rank, name_of(mine.what), mine.about, mine.operation, mine.text);
    });
    for (const double seconds : one.seconds_until_seen()) std::printf(" %.1f", seconds * 1000);
    std::printf(" end %.1f\n", one.longest_end() * 1000);
    std::fflush(stdout);
  }
}

/// Every fault in every phase at every moment; how many ranks there are, and which of them it hits, changes
/// from one to the next. Of these, each `stride`-th.
std::vector<incident> incidents(std::size_t stride) {
  std::vector<incident> list;
  std::size_t number = 0, kept = 0;
  for (int p = 0; p < phases; ++p) {
    for (const fault what : all_faults) {
      for (const auto moment : moments) {
        incident plan{what, static_cast<phase>(p), moment};
        if (!plan.makes_sense() || number++ % stride != 0) continue;
        plan.ranks = 2 + static_cast<int>(kept % 7);
        plan.victim = static_cast<int>(kept / 7 * 3 + kept) % plan.ranks;
        ++kept;
        list.push_back(plan);
      }
    }
  }
  return list;
}

template <class T>
table run(std::size_t stride) {
  table results;
  for (const incident& plan : incidents(stride)) happen<T>(plan, results);
  return results;
}

}  // namespace

TEST_CASE_TEMPLATE("faults of all kinds in phases of all kinds", T, ddpp::shm, ddpp::tcp) { run<T>(11); }

TEST_SUITE("full") {
  TEST_CASE("the table: every fault in every phase" * doctest::timeout(3600)) {
    table shm = run<ddpp::shm>(1), tcp = run<ddpp::tcp>(1);
    (void)shm, (void)tcp;
  }
}
