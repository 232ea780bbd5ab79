// SPDX-License-Identifier: BSL-1.0
// Backends by name, and init over each of them in one program.
#include <ddpp/all_reduce.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/visit_backend.hpp>

#include <chrono>
#include <doctest/doctest.h>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <type_traits>
#include <vector>

#include "../support/process.hpp"
#include "../support/ranks.hpp"

using support::open_descriptors;

namespace {

class counting_shm : public ddpp::shm {
 public:
  using ddpp::shm::shm;
  static constexpr const char* name = "counting_shm";
};

template <class C>
void add_up(C& comm, int size) {
  std::vector<int> x(10, comm.rank());
  ddpp::all_reduce(comm, x);
  if (comm.size() != size || x[9] != size * (size - 1) / 2) throw std::logic_error("wrong sum");
}

}  // namespace

TEST_CASE("visit_backend: each name gives its transport") {
  for (const std::string name : {"threads", "shm", "tcp"}) {
    const std::string got = ddpp::visit_backend(name, [](auto tag) {
      using transport = typename decltype(tag)::type;
      ddpp::launch<transport>(3, [](auto& comm) { add_up(comm, 3); });
      return std::string(transport::name);
    });
    CHECK(got == name);
  }
  CHECK(ddpp::visit_backend<counting_shm>(
      "counting_shm", [](auto tag) { return std::is_same_v<typename decltype(tag)::type, counting_shm>; }));
}

TEST_CASE("visit_backend: an unknown name lists those there are") {
  for (const std::string name : {"", "TCP", "shm ", "carrier-pigeon"}) {
    std::string text;
    try {
      ddpp::visit_backend<counting_shm>(name, [](auto) {});
    } catch (const ddpp::usage_error& e) {
      text = e.what();
    }
    CHECK(text == "there is no backend \"" + name + "\"; there are threads, shm, tcp, counting_shm");
  }
}

TEST_CASE("init: groups over several transports side by side, again and again, leave nothing behind") {
  ddpp::spawn(3, [](int) {
    const auto round = [] {
      auto by_shm = ddpp::init<ddpp::shm>();
      auto by_tcp = ddpp::init<ddpp::tcp>();
      auto named = ddpp::init<ddpp::shm>({.group_name = "named"});
      add_up(by_tcp, 3);
      add_up(named, 3);
      add_up(by_shm, 3);
    };
    round();
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 20; ++i) round();
    if (open_descriptors() > before) throw std::logic_error("descriptors are left open");
  });
}

TEST_CASE("init: one rank leaves at once, whichever serves the store") {
  const int port = [] { return int(ddpp::detail::store_listener("127.0.0.1", 0).port()); }();
  const std::string url = "tcp://127.0.0.1:" + std::to_string(port);
  ddpp::spawn(3, [&](int rank) {
    for (int i = 0; i < 10; ++i) ddpp::init<ddpp::shm>({.init_method = url, .rank = rank, .world_size = 3});
    for (int i = 0; i < 10; ++i) ddpp::init<ddpp::tcp>({.init_method = url, .rank = rank, .world_size = 3});
  });
}

TEST_CASE("fifty jobs start at once: no address is in use, and none meets another") {
  std::vector<pid_t> jobs;
  for (int job = 0; job < 50; ++job) {
    jobs.push_back(support::fork_child([job] {
      ddpp::spawn(2, [job](int) {
        auto comm = ddpp::init<ddpp::tcp>({.timeout = std::chrono::minutes(1)});
        std::vector<int> values{job, 1};
        ddpp::all_reduce(comm, values);
        if (values != std::vector<int>{2 * job, 2}) throw std::logic_error("another job's numbers");
      });
    }));
  }
  for (const pid_t job : jobs) CHECK(support::status_of(job) == 0);
}
