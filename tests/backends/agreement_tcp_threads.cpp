// SPDX-License-Identifier: BSL-1.0
// Agreement over tcp among ranks that are threads of one process, where the thread sanitizer sees all of
// them.
#include <ddpp/agreement.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <thread>

#include "../support/transport_life.hpp"

namespace {

using namespace std::chrono_literals;
using ddpp::attendance;
using ddpp::tcp;
using ranks = support::as_threads<tcp>;

std::ptrdiff_t voters_of(const ddpp::verdict& what) {
  return std::count(what.ranks.begin(), what.ranks.end(), attendance::voted);
}

}  // namespace

TEST_CASE("agreement in threads: ranks leave one after the other, in any order") {
  for (const bool rising : {true, false}) {
    ranks::run(5, [&](tcp& t) {
      const int place = rising ? t.rank() : 4 - t.rank();
      for (int number = 1; number <= place + 1; ++number) {
        const auto what = t.agree(static_cast<std::uint64_t>(number), {}, support::soon());
        EXPECT(voters_of(what) >= 5 - (number - 1));
        EXPECT(what.ranks[static_cast<std::size_t>(t.rank())] == attendance::voted);
      }
      EXPECT(!t.failed());
    });
  }
}

TEST_CASE("agreement in threads: in a group that fails meanwhile, beside messages and surveys") {
  ranks::run(4, [](tcp& t) {
    t.progress_in_background();
    std::thread other([&] {
      (void)support::cause_of([&] {
        for (;;) {
          support::meet(t);
          (void)t.survey(support::soon(1s));
        }
      });
    });
    for (std::uint64_t number = 1; number <= 100; ++number) {
      if (number == 50 && t.rank() == 2) t.abort({ddpp::failure_kind::revoked, 2, "enough"});
      EXPECT(voters_of(t.agree(number, {}, support::soon())) == 4);
    }
    other.join();
  });
}

TEST_CASE("agreement in threads: some are always late") {
  ranks::run(3, [](tcp& t) {
    for (std::uint64_t number = 1; number <= 10; ++number) {
      if (static_cast<int>(number % 3) == t.rank()) std::this_thread::sleep_for(60ms);
      const auto what = t.agree(number, {}, support::soon(30ms));
      EXPECT(what.ranks.size() == 3);
    }
  });
}

TEST_CASE("agreement in threads: descriptors and threads return") {
  const auto cycle = [] {
    ranks::run(4, [](tcp& t) {
      t.agree(1, {}, support::soon());
      if (t.rank() == 0) return;
      t.agree(2, {}, support::soon());
    });
  };
  cycle();
  const std::size_t descriptors = support::files_in("/proc/self/fd");
  const std::size_t threads = support::files_in("/proc/self/task");
  for (int i = 0; i < 10; ++i) cycle();
  CHECK(support::files_in("/proc/self/fd") == descriptors);
  CHECK(support::files_in("/proc/self/task") == threads);
}
