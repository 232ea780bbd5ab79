// SPDX-License-Identifier: BSL-1.0
// MPI_Allreduce, started by mpirun, whose options choose the transport: in place, or from a buffer of its
// own.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <mpi.h>
#include <span>
#include <string>
#include <vector>

#include "measurement.hpp"

namespace {

struct mpi_rank {
  bool in_place;
  std::vector<float> input = {};

  int rank() const { return of(MPI_Comm_rank); }
  int size() const { return of(MPI_Comm_size); }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  std::vector<float> make_buffer(std::size_t count) {
    if (!in_place) peers::values(rank(), size()).fill(input = std::vector<float>(count));
    return std::vector<float>(count);
  }
  void call(std::vector<float>& buffer) {
    MPI_Allreduce(in_place ? MPI_IN_PLACE : input.data(), buffer.data(), static_cast<int>(buffer.size()),
                  MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  std::size_t wrong_after(int calls, const std::vector<float>& buffer, const peers::values& random) {
    return random.wrong_after(in_place ? calls : std::min(calls, 1), buffer);
  }

 private:
  static int of(int (*ask)(MPI_Comm, int*)) {
    int number = 0;
    ask(MPI_COMM_WORLD, &number);
    return number;
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const peers::arguments given(argc, argv);
    mpi_rank self{given.more.empty() || given.more[0] != "out_of_place"};
    peers::obey(given.path, given.name, self);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
