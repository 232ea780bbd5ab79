// SPDX-License-Identifier: BSL-1.0
// One rank's part in a table: for each size, time and check both forms of the collective.
#pragma once

#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "operation.hpp"
#include "plan.hpp"
#include "report.hpp"

namespace perf {

/// Both forms of an operation at one size.
template <class Comm>
class measurement {
 public:
  using bytes = std::span<std::byte>;

  measurement(Comm& comm, const plan& todo, const operation<Comm>& operation, const place& at)
      : comm_(comm), todo_(todo), operation_(operation), at_(at) {}

  /// Of meaning on rank 0 only.
  result of(bytes in, bytes out) {
    prepare(in, out, 0);
    for (int i = 0; i < todo_.warmup_iterations; ++i) operation_.run(comm_, in, out, at_);
    prepare(in, out, 0);
    report mine{time(in, out), todo_.check_iterations > 0 ? 0 : -1};
    for (int i = 1; i <= todo_.check_iterations; ++i) {
      const auto seed = static_cast<unsigned>(i);
      prepare(in, out, seed);
      operation_.run(comm_, in, out, at_);
      mine.wrong += operation_.wrong(out, at_, seed);
    }
    const report all = join(mine);
    return {.measured = true, .microseconds = all.seconds / todo_.iterations * 1e6, .wrong = all.wrong};
  }

 private:
  struct report {
    double seconds;
    std::int64_t wrong;
  };

  void prepare(bytes in, bytes out, unsigned seed) {
    std::fill(out.begin(), out.end(), std::byte(0xa5));
    operation_.fill(in, at_, seed);
  }

  double time(bytes in, bytes out) {
    ddpp::barrier(comm_);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < todo_.iterations; ++i) operation_.run(comm_, in, out, at_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  /// The slowest rank's time and all wrong elements, on rank 0: by point-to-point, whatever is being
  /// measured.
  report join(report mine) {
    if (at_.rank != 0) {
      ddpp::send(comm_, std::span<const report>(&mine, 1), 0);
      return mine;
    }
    for (int rank = 1; rank < at_.ranks; ++rank) {
      report other{};
      ddpp::recv(comm_, std::span(&other, 1), rank);
      mine.seconds = std::max(mine.seconds, other.seconds);
      if (other.wrong > 0) mine.wrong += other.wrong;
    }
    return mine;
  }

  Comm& comm_;
  const plan& todo_;
  const operation<Comm>& operation_;
  place at_;
};

/// Fills `rows`, whose sizes are given, on rank 0, and prints each as soon as it is there.
template <class Comm>
void measure_table(Comm& comm, const plan& todo, const operation<Comm>& operation, std::span<row> rows) {
  const int rank = comm.rank(), ranks = comm.size();
  const layout most = operation.layout_of({rows.back().count, rank, ranks, todo.root});
  std::vector<std::byte> input(operation.out_of_place ? most.in * operation.element_size : 0);
  std::vector<std::byte> output(std::max(most.in_place_in + most.in, most.in_place_out + most.out) *
                                operation.element_size);
  const auto part = [&](std::vector<std::byte>& of, std::size_t from, std::size_t count) {
    return std::span(of).subspan(from * operation.element_size, count * operation.element_size);
  };
  for (row& row : rows) {
    const place here{row.count, rank, ranks, todo.root};
    const layout at = operation.layout_of(here);
    measurement<Comm> measure(comm, todo, operation, here);
    const auto finish = [&](result found) {
      found.algbw = static_cast<double>(row.bytes) / found.microseconds / 1e3;
      found.busbw = found.algbw * operation.bus_factor(ranks);
      return found;
    };
    if (operation.out_of_place) {
      row.out_of_place = finish(measure.of(part(input, 0, at.in), part(output, 0, at.out)));
    }
    if (operation.in_place) {
      row.in_place =
          finish(measure.of(part(output, at.in_place_in, at.in), part(output, at.in_place_out, at.out)));
    }
    if (rank == 0) print_row(todo, row);
  }
}

}  // namespace perf
