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

/// Of all deaths in a group that exists, how soon the survivors knew.
std::string summary(const table& results) {
  cell all;
  for (const auto& [place, one] : results) {
    const auto [during, what] = place;
    if (is_init(during) || what == fault::stopped) continue;
    all.seconds.insert(all.seconds.end(), one.seconds.begin(), one.seconds.end());
  }
  std::sort(all.seconds.begin(), all.seconds.end());
  const std::size_t count = all.seconds.size();
  return std::to_string(count) + " observations: median " + cell::milliseconds(all.seconds[count / 2]) +
         " ms, 99 of 100 within " + cell::milliseconds(all.seconds[count * 99 / 100]) + " ms, all within " +
         cell::milliseconds(all.seconds.back()) + " ms";
}

void write_table(std::ofstream& file, const std::string& transport, table results) {
  file << "## `" << transport << "`\n\nOnce the group exists, but for SIGSTOP: " << summary(results)
       << ".\n\n|";
  for (const fault what : all_faults) file << " | " << name_of(what);
  file << " |\n|---";
  for (std::size_t i = 0; i < all_faults.size(); ++i) file << "|---";
  file << "|\n";
  for (int p = 0; p < phases; ++p) {
    const auto during = static_cast<phase>(p);
    file << "| " << name_of(during);
    for (const fault what : all_faults) file << " | " << results[{during, what}].text();
    file << " |\n";
  }
  file << "\n";
}

constexpr const char* introduction = R"(# What survivors see

One rank meets with a fault, at 0, 5 or 50 ms after it has begun what the row says. The cells have what all the
others were thrown, and after how many milliseconds: the median and the maximum over all survivors, three runs to
a cell, 2 to 8 ranks, any of which may be hit. Made by a run of `tests/failure/fault_table.cpp` on two cores:

    DDPP_TEST_FULL=1 DDPP_FAULT_TABLE=docs/failure-table.md build/tests/failure_fault_table --test-case='the table*'

which also checks that each error names the rank that was hit, that every survivor ends, that none uses the
processor afterwards, and that nothing is left in /dev/shm and no process.

- `peer_lost`, `revoked_error` and `mismatch_error` have the rank as `rank()`; `timeout_error` and `init_error` name it
  in the text.
- A stopped rank is alive, and only a timeout tells that it is absent: it was 1 s here (2 s in the rows of init). On
  tcp up to three seconds more go by with asking all ranks where they stand, and where the stopped one is rank 0,
  through which they hear of each other, with doing without it. Where it also serves the store, as in these rows of
  subgroup, each call of the store takes five seconds to give up.
- An exception leaves the function given to `launch`, which revokes the group. Elsewhere it is caught by nobody and
  aborts, or unwinds the stack and so is a return.
- init: who dies before it has come cannot be told from one that is late: the others wait until `init_timeout`
  (2 s here). Who dies after that is missed within half a second. In `launch` an exit status of 0 is no failure, so
  that one who exits so before it has come is waited for, too. Where several ranks give up, the error may name one of those.
- SIGSTOP, then SIGKILL: 100 ms later; the time is that from SIGKILL.
- between operations: the others call an all_reduce 50 ms after the fault; the time is that from the call.
- destruction of one: the others are in an all_reduce. Destruction of all: nobody wants anything any more, and
  nobody is told anything.

)";

}  // namespace

TEST_CASE_TEMPLATE("faults of all kinds in phases of all kinds", T, ddpp::shm, ddpp::tcp) { run<T>(11); }

TEST_SUITE("full") {
  TEST_CASE("the table: every fault in every phase" * doctest::timeout(3600)) {
    const table shm = run<ddpp::shm>(1), tcp = run<ddpp::tcp>(1);
    const char* const path = std::getenv("DDPP_FAULT_TABLE");
    if (path == nullptr) return;
    std::ofstream file(path);
    file << introduction;
    write_table(file, "shm", shm);
    write_table(file, "tcp", tcp);
    CHECK(file.good());
  }
}
