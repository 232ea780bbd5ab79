// SPDX-License-Identifier: BSL-1.0
// What ddpp adds to MPI_Allreduce: the same buffer, at each level of checking, all in turn, and another first
// in each round. Medians of the rounds' differences and ratios.
//
//   mpirun -n 2 build/bench/bench_mpi_overhead [ROUNDS]
#include <ddpp/backends/mpi.hpp>
#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

/// Microseconds per call of the slowest rank.
template <class F>
double time_of(int calls, F&& f) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = clock_type::now();
  for (int i = 0; i < calls; ++i) f();
  double mine = std::chrono::duration<double, std::micro>(clock_type::now() - begin).count() / calls,
         slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  auto off = ddpp::init<ddpp::mpi>({}, {.checks = ddpp::mpi_checks::off});
  auto sampled = ddpp::init<ddpp::mpi>({}, {.checks = ddpp::mpi_checks::sampled});
  auto always = ddpp::init<ddpp::mpi>({}, {.checks = ddpp::mpi_checks::always});
  const std::array levels{&off, &sampled, &always};
  if (off.rank() == 0) {
    std::printf("%10s %12s %28s %28s %28s\n", "bytes", "MPI us", "off: more us, bandwidth", "sampled",
                "always");
  }
  for (std::size_t bytes = 8; bytes <= std::size_t{16} << 20; bytes *= 8) {
    std::vector<float> x(bytes / sizeof(float), 1e-30f);
    const int calls = static_cast<int>(std::clamp<std::size_t>((std::size_t{8} << 20) / bytes, 1, 500));
    std::vector<double> plain;
    std::array<std::vector<double>, 3> more, ratio;
    for (int round = 0; round < rounds; ++round) {
      std::array<double, 4> times{};
      for (std::size_t turn = 0; turn < times.size(); ++turn) {
        const std::size_t which = (turn + static_cast<std::size_t>(round)) % times.size();
        times[which] = time_of(calls, [&] {
          if (which == 3)
            MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
          else
            ddpp::all_reduce(*levels[which], x);
        });
      }
      const double alone = times[3];
      plain.push_back(alone);
      for (std::size_t level = 0; level < levels.size(); ++level) {
        more[level].push_back(times[level] - alone);
        ratio[level].push_back(alone / times[level]);
      }
      std::fill(x.begin(), x.end(), 1e-30f);  // sums stay finite
    }
    if (off.rank() != 0) continue;
    std::printf("%10zu %12.2f", bytes, median(plain));
    for (std::size_t level = 0; level < 3; ++level)
      std::printf("         %10.2f %8.3f", median(more[level]), median(ratio[level]));
    std::printf("\n");
  }
}
