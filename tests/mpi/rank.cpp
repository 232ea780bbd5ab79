// SPDX-License-Identifier: BSL-1.0
// A rank of tests/mpi/test_mpi.py: does what its first argument names. Says 'rank R of N: done' if all is
// well.
#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/backends/mpi.hpp>
#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using communicator = ddpp::communicator<ddpp::mpi>;
using namespace std::chrono_literals;

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("not true: ") + what);
}
#define REQUIRE(...) require((__VA_ARGS__), #__VA_ARGS__)

template <class E, class F>
std::string text_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  throw std::logic_error("nothing was thrown");
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void check_types(communicator& comm) {
  const auto number = comm.rank() + 1, size = comm.size();
  const auto check = [&]<class T>(T, std::size_t count) {
    std::vector<T> x(count, static_cast<T>(static_cast<float>(number)));
    ddpp::all_reduce(comm, x, ddpp::max);
    REQUIRE(static_cast<float>(x.front()) == static_cast<float>(size) && x.back() == x.front());
    ddpp::all_reduce(comm, x);
    REQUIRE(static_cast<float>(x.back()) == static_cast<float>(size * size));
    ddpp::all_reduce(comm, x, ddpp::avg);
    REQUIRE(static_cast<float>(x.back()) == static_cast<float>(size * size));
  };
  for (const std::size_t count : {1u, 1000u, 100'003u}) {
    check(ddpp::half(), count);
    check(ddpp::bfloat16(), count);
    check(float(), count);
    check(double(), count);
    check(std::int8_t(), count);
    check(std::uint64_t(), count);
  }
  struct point {
    std::array<std::int32_t, 3> at;
  };
  struct largest {
    point operator()(const point& a, const point& b) const { return a.at[0] > b.at[0] ? a : b; }
  };
  std::vector<point> points(777, point{{number, 2 * number, 3 * number}}), own(3),
      all(3 * static_cast<std::size_t>(size), point{{number, 0, -number}});
  ddpp::all_reduce(comm, points, largest());
  REQUIRE(points[776].at[2] == 3 * size);
  ddpp::reduce_scatter(comm, all, own, largest());
  REQUIRE(own[2].at[2] == -size);
  int modulus = 1000;  // an operation with a state, which MPI could not call
  std::vector<std::int64_t> x(100, 999);
  ddpp::all_reduce(comm, x, [modulus](std::int64_t a, std::int64_t b) { return a * b % modulus; });
  REQUIRE(x[99] == (size % 2 == 0 ? 1 : 999));
  std::vector<double> y(50, comm.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  ddpp::all_reduce(comm, y, ddpp::min);
  REQUIRE(std::isnan(y[49]));
}

/// A line through points, of which each rank has its own: all find the same one as without ranks.
template <class C>
void check_training(C& comm) {
  std::vector<double> line(2, comm.rank()), gradient(2);
  ddpp::distributed_data_parallel ddp(comm, {ddpp::parameter("line", line, gradient)});
  REQUIRE(line[1] == 0);
  for (int step = 0; step < 200; ++step) {
    ddp.prepare();
    std::fill(gradient.begin(), gradient.end(), 0.0);
    for (int i = 0; i < 8; ++i) {
      const double x = (comm.rank() * 8 + i) / (8.0 * comm.size()),
                   error = line[0] + line[1] * x - (3 - 2 * x);
      gradient[0] += error / 4;
      gradient[1] += error * x / 4;
    }
    ddp.mark_ready(0);
    ddp.wait();
    for (std::size_t k = 0; k < 2; ++k) line[k] -= 0.7 * gradient[k];
  }
  REQUIRE(std::abs(line[0] - 3) < 1e-3 && std::abs(line[1] + 2) < 1e-3);
}

void check_groups(communicator& comm) {
  auto half = comm.split(comm.rank() % 2);
  auto reversed = comm.split(0, -comm.rank());
  REQUIRE(reversed.rank() == comm.size() - 1 - comm.rank());
  std::vector<int> x(10, comm.rank());
  ddpp::broadcast(reversed, x);
  REQUIRE(x[9] == comm.size() - 1);
  auto work = ddpp::all_reduce_async(half, x, ddpp::min);
  ddpp::barrier(comm);
  work.wait();
  REQUIRE(x[0] == comm.size() - 1);
  const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<int> large(3'000'000, comm.rank()), got(large.size());
  auto receiving = ddpp::irecv(comm, got, before, 5);
  ddpp::send(comm, large, next, 5);
  receiving.wait();
  REQUIRE(got.front() == before && got.back() == before);
}

void check_mismatch(communicator& comm) {
  std::vector<float> x(comm.rank() == 1 ? 11 : 10);
  const auto text = text_of<ddpp::mismatch_error>([&] { ddpp::all_reduce(comm, x); });
  REQUIRE(says(text, "rank 1 called something else") && says(text, "sum of 11 float"));
  REQUIRE(says(text_of<ddpp::mismatch_error>([&] { ddpp::barrier(comm); }), "rank 1 called"));
}

/// All ranks give MPI what fits together; what differs is the operation, which only a comparison shows.
void check_levels(const ddpp::init_options& options) {
  for (const auto& [level, number] : {std::pair(ddpp::mpi_checks::off, 0),
                                      {ddpp::mpi_checks::sampled, 32},
                                      {ddpp::mpi_checks::sampled, 64},
                                      {ddpp::mpi_checks::always, 41}}) {
    auto comm = ddpp::init<ddpp::mpi>(options, {.checks = level});
    std::vector<int> x(8, 1);
    for (int i = 1; i < (number == 0 ? 1000 : number); ++i) ddpp::all_reduce(comm, x, ddpp::max);
    if (number == 0) continue;
    const auto text = text_of<ddpp::mismatch_error>([&] {
      if (comm.rank() == 1)
        ddpp::all_reduce(comm, x, ddpp::min);
      else
        ddpp::all_reduce(comm, x, ddpp::max);
    });
    REQUIRE(says(text, "min of 8") && says(text, "max of 8"));
  }
}

/// Shared memory inside two hosts of which every rank says on which it is, MPI across.
void check_hierarchy(const ddpp::init_options& options) {
  using hosts = ddpp::hierarchical<ddpp::shm, ddpp::mpi>;
  const bool even = ddpp::local_rank() % 2 == 0;
  auto comm = ddpp::init<hosts>(options, {.host = even ? "even" : "odd"});
  const int size = comm.size();
  REQUIRE(comm.transport().hosts() == 2);
  std::vector<double> x(100'003, comm.rank());
  ddpp::all_reduce(comm, x);
  REQUIRE(x.front() == size * (size - 1) / 2 && x.back() == x.front());
  std::vector<ddpp::half> y(5001, ddpp::half(2));
  ddpp::all_reduce(comm, y, ddpp::avg);
  REQUIRE(static_cast<float>(y.back()) == 2);
  std::vector<int> all(static_cast<std::size_t>(size));
  ddpp::all_gather(comm, std::vector<int>{comm.rank()}, all);
  REQUIRE(all.back() == size - 1);
  check_training(comm);
  auto one_host = comm.split(even ? 0 : 1);
  REQUIRE(one_host.transport().hosts() == 1);

  // What fails the group ends waiting for a rank of the same host, which uses shared memory alone.
  if (comm.rank() == 1) comm.revoke("rank 1 has had enough");
  std::vector<int> from_nobody(10);
  const int peer = comm.rank() + (comm.rank() + 2 < size ? 2 : -2);
  const auto text = text_of<ddpp::revoked_error>([&] { ddpp::recv(comm, from_nobody, peer, 3); });
  REQUIRE(says(text, "rank 1 has had enough"));
}

void run(std::string_view what) {
  const ddpp::init_options options{.timeout = 30s};
  const bool own = what == "own" || what == "too late";
  if (what == "single" || own) {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, own ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
  }
  if (what == "single") {
    const auto text = text_of<ddpp::init_error>([&] { (void)ddpp::init<ddpp::mpi>(options); });
    REQUIRE(says(text, "MPI_THREAD_SINGLE") && says(text, "MPI_THREAD_MULTIPLE"));
  } else if (what == "strangers") {
    const auto text = text_of<ddpp::init_error>([&] { (void)ddpp::init<ddpp::mpi>(options); });
    REQUIRE(says(text, "not of one MPI job"));
  } else if (what == "hierarchy") {
    check_hierarchy(options);
  } else if (what == "levels") {
    check_levels(options);
  } else {
    auto comm = ddpp::init<ddpp::mpi>(options);
    if (what == "types") check_types(comm);
    if (what == "training") check_training(comm);
    if (what == "groups" || what == "own") check_groups(comm);
    if (what == "mismatch") check_mismatch(comm);
    if (what == "too late") {  // the communicator outlives MPI
      ddpp::barrier(comm);
      MPI_Finalize();
      std::printf("rank %d of %d: done\n", comm.rank(), comm.size());
      return;
    }
    if (what == "throw") {
      if (comm.rank() == 1) throw std::runtime_error("rank 1 has had enough");
      std::vector<float> x(10);
      ddpp::all_reduce(comm, x);
    }
  }
  int rank = 0, size = 0, ended = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (what == "own" || what == "single") {
    MPI_Finalized(&ended);
    REQUIRE(!ended);
    MPI_Finalize();
  }
  std::printf("rank %d of %d: done\n", rank, size);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
