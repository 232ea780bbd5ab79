// SPDX-License-Identifier: BSL-1.0
// One rank's part in a table: for each size, time and check both forms of the collective.
#pragma once

#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "collectives.hpp"
#include "plan.hpp"
#include "report.hpp"

namespace perf {

/// A form of a collective at one size, with its buffers.
struct task {
  std::function<void(unsigned seed)> prepare;  // inputs of that seed, and rubbish where the output goes
  std::function<void()> run;
  std::function<std::int64_t(unsigned seed)> wrong;  // how many elements are not what `seed` must give
};

/// The time of the slowest rank and all ranks' wrong elements; of meaning on rank 0 only.
template <class Comm>
result measure(Comm& comm, const plan& todo, const task& task) {
  struct report {
    double seconds;
    std::int64_t wrong;
  };
  report mine{0, todo.check_iterations > 0 ? 0 : -1};

  task.prepare(0);
  for (int i = 0; i < todo.warmup_iterations; ++i) task.run();
  task.prepare(0);
  ddpp::barrier(comm);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < todo.iterations; ++i) task.run();
  mine.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  for (int i = 1; i <= todo.check_iterations; ++i) {
    const auto seed = static_cast<unsigned>(i);
    task.prepare(seed);
    task.run();
    mine.wrong += task.wrong(seed);
  }

  if (comm.rank() != 0) {
    ddpp::send(comm, std::span<const report>(&mine, 1), 0);
  } else {
    for (int rank = 1; rank < comm.size(); ++rank) {
      report other{};
      ddpp::recv(comm, std::span(&other, 1), rank);
      mine.seconds = std::max(mine.seconds, other.seconds);
      if (other.wrong > 0) mine.wrong += other.wrong;
    }
  }
  return {.measured = true, .microseconds = mine.seconds / todo.iterations * 1e6, .wrong = mine.wrong};
}

/// Fills `rows` (their sizes are given) on rank 0, and prints each as soon as it is there.
template <class Collective, class T, class Comm, class Op, class Algorithm>
void measure_table(Comm& comm, const plan& todo, std::span<row> rows, Op op, Algorithm algorithm) {
  const int rank = comm.rank(), ranks = comm.size();
  const layout most = Collective::layout_of(rows.back().count, rank, ranks);
  std::vector<T> input(Collective::out_of_place ? most.in : 0), output(std::max(most.in, most.out));

  for (row& row : rows) {
    const layout at = Collective::layout_of(row.count, rank, ranks);
    const auto task_on = [&](std::span<T> in, std::span<T> out) {
      return task{.prepare =
                      [&, in, out](unsigned seed) {
                        const values<T, Op> put_in{ranks, seed};
                        std::memset(static_cast<void*>(out.data()), 0xa5, out.size_bytes());
                        for (std::size_t i = 0; i < in.size(); ++i) in[i] = put_in.element(rank, i);
                      },
                  .run = [&, in, out] { Collective::run(comm, in, out, op, todo.root, algorithm); },
                  .wrong =
                      [&, out](unsigned seed) {
                        const values<T, Op> put_in{ranks, seed};
                        std::int64_t wrong = 0;
                        for (std::size_t i = 0; i < out.size(); ++i) {
                          wrong += !(out[i] == Collective::expected(put_in, row.count, rank, todo.root, i));
                        }
                        return wrong;
                      }};
    };
    const auto finish = [&](result found) {
      found.algbw = static_cast<double>(row.bytes) / found.microseconds / 1e3;
      found.busbw = found.algbw * Collective::bus_factor(ranks);
      return found;
    };
    if constexpr (Collective::out_of_place) {
      const auto in = std::span(input).first(at.in), out = std::span(output).first(at.out);
      row.out_of_place = finish(measure(comm, todo, task_on(in, out)));
    }
    if constexpr (Collective::in_place) {
      const std::span both(output);
      const auto in = both.subspan(at.in_place_in, at.in), out = both.subspan(at.in_place_out, at.out);
      row.in_place = finish(measure(comm, todo, task_on(in, out)));
    }
    if (rank == 0) print_row(todo, row);
  }
}

}  // namespace perf
