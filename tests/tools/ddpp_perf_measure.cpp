// SPDX-License-Identifier: BSL-1.0
// A wrong answer is infinitely fast: ddpp-perf's checks see operations that do nothing, or not everything.
#include <ddpp/ddpp.hpp>

#include <array>
#include <doctest/doctest.h>
#include <span>

#include "measure.hpp"
#include "report.hpp"

namespace {

using communicator = ddpp::communicator<ddpp::threads>;
using bytes = std::span<std::byte>;

perf::table measured_on_threads(void (*run)(communicator&, bytes, bytes, const perf::place&)) {
  auto operation =
      perf::make_operation<communicator, perf::all_reduce, float, ddpp::sum_t, ddpp::algorithms::automatic>();
  operation.run = run;
  perf::plan todo;
  todo.collective = "all_reduce";
  todo.iterations = 2;
  todo.check_iterations = 2;
  todo.type = "float";
  todo.op = "sum";
  perf::table table{"threads", "automatic", 3, {perf::row{4000, 1000, {}, {}}}};
  ddpp::launch<ddpp::threads>(3, [&](communicator& comm) {
    std::array<perf::row, 1> others{table.rows[0]};
    perf::measure_table(comm, todo, operation, comm.rank() == 0 ? std::span(table.rows) : std::span(others));
  });
  return table;
}

}  // namespace

TEST_CASE("a right operation has no wrong elements") {
  const auto table = measured_on_threads([](communicator& comm, bytes in, bytes out, const perf::place&) {
    ddpp::all_reduce(comm, perf::elements<float>(in), perf::elements<float>(out));
  });
  CHECK(perf::wrong_elements(table) == 0);
  CHECK(table.rows[0].in_place.measured);
  CHECK(table.rows[0].in_place.microseconds > 0);
  CHECK(table.rows[0].in_place.busbw / table.rows[0].in_place.algbw == doctest::Approx(4.0 / 3));
}

TEST_CASE("an operation that does nothing is wrong everywhere") {
  const auto table = measured_on_threads([](communicator&, bytes, bytes, const perf::place&) {});
  CHECK(table.rows[0].out_of_place.wrong == 2 * 3 * 1000);
}

TEST_CASE("one wrong element on one rank is seen") {
  const auto table = measured_on_threads([](communicator& comm, bytes in, bytes out, const perf::place&) {
    ddpp::all_reduce(comm, perf::elements<float>(in), perf::elements<float>(out));
    if (comm.rank() == 2) perf::elements<float>(out)[999] += 1;
  });
  CHECK(table.rows[0].out_of_place.wrong == 2);
  CHECK(table.rows[0].in_place.wrong == 2);
}
