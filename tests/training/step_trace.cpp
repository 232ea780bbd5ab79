// SPDX-License-Identifier: BSL-1.0
// The timeline of training steps that DDPP_TRACE asks for.
#include <ddpp/backends/threads.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/launch.hpp>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "../support/ranks.hpp"

namespace {

std::string content_of(const std::string& file) {
  std::ostringstream all;
  all << std::ifstream(file).rdbuf();
  return all.str();
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// One line of a trace. Times in microseconds, a duration of 0 for an instant.
struct event {
  std::string name;
  double begin = 0, duration = 0;
  double end() const { return begin + duration; }
};

std::vector<event> events_of(const std::string& trace) {
  const auto number = [](const std::string& line, const char* key) {
    const std::size_t at = line.find(key);
    return at == std::string::npos ? 0 : std::stod(line.substr(at + std::strlen(key)));
  };
  std::vector<event> events;
  std::istringstream lines(trace);
  const std::string before = "{\"name\": \"";
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(before) || line.find("\"ts\": ") == std::string::npos) continue;
    events.push_back({line.substr(before.size(), line.find('"', before.size()) - before.size()),
                      number(line, "\"ts\": "), number(line, "\"dur\": ")});
  }
  return events;
}

std::vector<event> named(const std::vector<event>& events, const std::string& name) {
  std::vector<event> some;
  for (const event& each : events) {
    if (each.name == name) some.push_back(each);
  }
  return some;
}

void train(int steps) {
  ddpp::launch<ddpp::threads>(2, [steps](auto& comm) {
    std::vector<float> a(300), b(300), a_gradient(300), b_gradient(300);
    ddpp::distributed_data_parallel ddp(
        comm, {ddpp::parameter("a", a, a_gradient), ddpp::parameter("b", b, b_gradient)},
        {.bucket_cap_mb = 1.0 / 1024});
    for (int s = 0; s < steps; ++s) {
      ddp.prepare();
      ddp.mark_ready(1);
      ddp.mark_ready(0);
      ddp.wait();
    }
  });
}

}  // namespace

TEST_CASE("each rank writes when buckets were ready, reduced and waited for") {
  const support::scratch_directory directory;
  ::setenv("DDPP_TRACE", directory.file("trace").c_str(), 1);
  train(3);
  ::unsetenv("DDPP_TRACE");
  for (const int rank : {0, 1}) {
    const std::string trace = content_of(
        directory.file("trace.rank" + std::to_string(rank) + "." + std::to_string(::getpid()) + ".json"));
    CHECK(trace.starts_with("[\n{"));
    CHECK(trace.ends_with("},\n"));
    CHECK(occurrences(trace, "\"name\": \"rank " + std::to_string(rank) + "\"") == 1);
    for (const char* each : {"bucket 0 ready", "bucket 1 ready", "reduction of bucket 0",
                             "reduction of bucket 1", "forward and backward", "\"wait\""}) {
      CAPTURE(each);
      CHECK(occurrences(trace, each) == 3);
    }

    // A step is a computation and then a wait; a bucket's reduction begins when it is ready, after the bucket
    // before it, and ends before the wait does.
    constexpr double rounding = 1e-3;  // of sums
    const std::vector<event> events = events_of(trace);
    CHECK(events.size() == 18);
    for (std::size_t s = 0; s < 3; ++s) {
      const event computation = named(events, "forward and backward")[s], wait = named(events, "wait")[s];
      CHECK(computation.duration > 0);
      CHECK(computation.end() <= wait.begin + rounding);
      double free_from = computation.begin;
      for (const std::string bucket : {"bucket 0", "bucket 1"}) {
        const event ready = named(events, bucket + " ready")[s];
        const event reduction = named(events, "reduction of " + bucket)[s];
        CHECK(ready.begin >= computation.begin);
        CHECK(ready.begin <= computation.end() + rounding);
        CHECK(reduction.begin >= ready.begin);
        CHECK(reduction.begin >= free_from - rounding);
        CHECK(reduction.end() <= wait.end() + rounding);
        free_from = reduction.end();
      }
    }
  }
}

TEST_CASE("nothing is written unless it was asked for, and what cannot be is an error") {
  const support::scratch_directory directory;
  train(1);
  CHECK(std::filesystem::is_empty(directory.file("")));
  ::setenv("DDPP_TRACE", directory.file("missing/trace").c_str(), 1);
  CHECK_THROWS_AS(train(1), ddpp::usage_error);
  ::unsetenv("DDPP_TRACE");
}
