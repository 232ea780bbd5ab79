// SPDX-License-Identifier: BSL-1.0
// The record of a rank's latest operations: when it is written, where, and what is in it.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/detail/small_file.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/point_to_point.hpp>

#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "../support/process.hpp"
#include "../support/ranks.hpp"

using namespace std::chrono_literals;
using support::expect;
using support::says;

namespace {

std::string content_of(const std::string& file) { return ddpp::detail::read_small_file(file.c_str()); }

/// Empty if it does not come.
std::string await_content(const std::string& file) {
  for (int tries = 0; tries < 3000; ++tries) {
    if (const std::string content = content_of(file); !content.empty()) return content;
    std::this_thread::sleep_for(10ms);
  }
  return {};
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Until that rank is in its second collective.
template <class C>
void await_second_call(C& comm, std::size_t rank) {
  while (comm.transport().survey(support::soon())[rank].last.sequence < 2) std::this_thread::sleep_for(1ms);
}

/// What happens on SIGUSR2.
bool is_default() {
  struct sigaction action = {};
  ::sigaction(SIGUSR2, nullptr, &action);
  return action.sa_handler == SIG_DFL;
}

}  // namespace

TEST_CASE("on SIGUSR2: the latest collectives and messages, and the ranks go on") {
  const support::scratch_directory directory;
  ddpp::launch<ddpp::shm>(
      2,
      [&](auto& comm) {
        std::vector<float> x(10, 1.0f), y(3);
        for (int i = 0; i < 100; ++i) ddpp::all_reduce(comm, x, ddpp::max);
        auto received = ddpp::irecv(comm, y, 1 - comm.rank(), 7);
        ddpp::barrier(comm);
        ::raise(SIGUSR2);
        const std::string file = directory.file("record.world.rank" + std::to_string(comm.rank()) + ".json");
        const std::string written = await_content(file);
        expect(says(written, "\"reason\": \"SIGUSR2\""), written);
        expect(says(written, "barrier #101") && !says(written, "\"sequence\": 37,"),
               "the latest: " + written);
        expect(occurrences(written, "\"operation\": \"all_reduce\"") == 63, "64 in all: " + written);
        expect(says(written, "\"operation\": \"irecv\", \"peer\": ") && says(written, "\"tag\": 7"), written);
        expect(says(written, "\"state\": \"running\""), "the receive waits: " + written);
        ddpp::send(comm, std::vector<float>(3), 1 - comm.rank(), 7);
        received.wait();
        ddpp::barrier(comm);
      },
      {.timeout = 60s, .flight_recorder = directory.file("record")});
}

TEST_CASE("on failure: every rank says why, in which operation, and only of the first failure") {
  const support::scratch_directory directory;
  CHECK_THROWS(ddpp::launch<ddpp::shm>(
      3,
      [&](auto& comm) {
        std::vector<int> x(10);
        ddpp::barrier(comm);
        if (comm.rank() == 1) {
          await_second_call(comm, 0);  // else it might be they who differ, or are too late to call anything
          await_second_call(comm, 2);
          ddpp::broadcast(comm, x);
        } else {
          ddpp::all_reduce(comm, x);
        }
        ddpp::barrier(comm);
      },
      {.timeout = 60s, .flight_recorder = directory.file("record")}));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string written =
        content_of(directory.file("record.world.rank" + std::to_string(rank) + ".json"));
    CHECK(says(written, "rank 1 called something else than the others"));
    CHECK(says(written, rank == 1 ? "\"operation\": \"broadcast\"" : "\"operation\": \"all_reduce\""));
  }
}

TEST_CASE("groups have files of their own; a time-out of a message is written too") {
  const support::scratch_directory directory;
  ::setenv("DDPP_FLIGHT_RECORDER", directory.file("from-environment").c_str(), 1);
  CHECK_THROWS_AS(ddpp::launch<ddpp::threads>(2,
                                              [&](auto& comm) {
                                                auto part = comm.split(0);
                                                std::vector<int> x(1);
                                                if (comm.rank() == 0) ddpp::recv(part, x, 1);
                                              },
                                              {.timeout = 3s, .init_timeout = 60s}),
                  ddpp::error);
  ::unsetenv("DDPP_FLIGHT_RECORDER");
  std::string names;
  for (const auto& entry : std::filesystem::directory_iterator(directory.file("")))
    names += entry.path().filename().string() + " ";
  CAPTURE(names);
  const std::string part = content_of(directory.file("from-environment.world.split.1.0.rank0.json"));
  CHECK(says(part, "recv #1 from rank 1 (tag 0)"));
  CHECK(!says(names, "from-environment.world.rank0.json"));
}

TEST_CASE("the signal and the thread are given back, and a program's own handler is left alone") {
  const support::scratch_directory directory;
  const auto threads = support::running_threads();
  const ddpp::init_options options{.timeout = 60s, .flight_recorder = directory.file("record")};
  ddpp::launch<ddpp::threads>(
      1, [&](auto&) { CHECK(!is_default()); }, options);
  CHECK(is_default());
  CHECK(support::running_threads() == threads);
  static int asked = 0;
  ::signal(SIGUSR2, [](int) { asked = 1; });
  ddpp::launch<ddpp::threads>(
      1, [&](auto&) { ::raise(SIGUSR2); }, options);
  CHECK(asked == 1);
  ::signal(SIGUSR2, SIG_DFL);
  ddpp::launch<ddpp::threads>(
      1, [&](auto&) { ::signal(SIGUSR2, [](int) { asked = 2; }); }, options);  // after the recorder was made
  ::raise(SIGUSR2);
  CHECK(asked == 2);
  ::signal(SIGUSR2, SIG_DFL);
}

TEST_CASE("nothing is written, and SIGUSR2 is the program's, unless it was asked for") {
  ddpp::launch<ddpp::threads>(1, [&](auto& comm) {
    CHECK(is_default());
    ddpp::barrier(comm);
  });
}
