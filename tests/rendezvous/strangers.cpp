// SPDX-License-Identifier: BSL-1.0
// Strangers at all ports of a job, while its ranks come together and while they train: the job goes on, and
// they cost it little.
#include "../support/strangers.hpp"

#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/tcp_listener.hpp>
#include <ddpp/init.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/tcp_store.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../skip.hpp"
#include "../support/process.hpp"
#include "../support/ranks.hpp"

namespace {

using namespace std::chrono_literals;
using support::stranger_kind;
using support::strangers;

constexpr int ranks = 2;

// Sanitizers keep freed memory for a while, and are slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool costs_count = false;
#elif defined(__has_feature)
constexpr bool costs_count = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool costs_count = true;
#endif

/// What the processes share.
struct board {
  std::atomic<int> ports[ranks];
  std::atomic<bool> strangers_are_here, is_measured[ranks];
};

class shared_board {
 public:
  shared_board()
      : memory_(::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    new (memory_) board{};
  }
  ~shared_board() { ::munmap(memory_, sizeof(board)); }
  shared_board(const shared_board&) = delete;
  shared_board& operator=(const shared_board&) = delete;
  board& operator*() const noexcept { return *static_cast<board*>(memory_); }

 private:
  void* memory_;
};

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::size_t resident_bytes() {
  std::ifstream memory("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  memory >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void reduce_and_check(ddpp::communicator<ddpp::tcp>& comm, int times) {
  std::vector<float> data(5'000);
  for (int i = 0; i < times; ++i) {
    data.assign(data.size(), float(i + comm.rank()));
    ddpp::all_reduce(comm, data);
    EXPECT(data.front() == float(2 * i + 1) && data.back() == data.front());
  }
}

/// The largest part of a core's time that an idle rank may lose to them: silent ones cost nothing, and of
/// those that come anew all the time the listener takes so many as a fifth of a core can refuse.
double largest_share(stranger_kind kind) {
  return kind == stranger_kind::silent || kind == stranger_kind::slow || kind == stranger_kind::half ? 0.25
                                                                                                     : 0.6;
}

/// A rank, while the strangers are at its port and at the store's.
void run_rank(board& shared, const std::string& url, int rank, stranger_kind kind) {
  auto comm = ddpp::init<ddpp::tcp>({.init_method = url, .rank = rank, .world_size = ranks, .timeout = 60s});
  const auto ports = support::listening_ports();
  EXPECT(ports.size() == 1);
  shared.ports[rank] = ports.front();
  while (!shared.strangers_are_here) std::this_thread::sleep_for(1ms);

  const auto arrival = std::chrono::steady_clock::now();
  reduce_and_check(comm, 50);  // its first connections are made among theirs
  // The silent ones make room for a rank, instead of staying as long as they may.
  EXPECT(std::chrono::steady_clock::now() - arrival < ddpp::detail::tcp_listener::longest_stay - 1s);
  const std::size_t memory = resident_bytes(), descriptors = support::open_descriptors();
  const double used = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(700ms);
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double share = (processor_seconds() - used) / passed;
  reduce_and_check(comm, 200);
  const std::size_t grown = std::max(resident_bytes(), memory) - memory;
  std::printf("rank %d: %.1f %% of a core, %zu descriptors, %zu KiB grown\n", rank, 100 * share, descriptors,
              grown / 1024);
  std::fflush(stdout);
  EXPECT(support::open_descriptors() < 64 + ddpp::detail::tcp_listener::most_strangers);
  if (!costs_count) return;
  EXPECT(share < largest_share(kind));
  EXPECT(grown < (std::size_t{4} << 20));
}

/// So many strangers at the store's port from before the ranks meet until they have trained, and as many at
/// the ports of the ranks.
void train_among(stranger_kind kind, std::size_t most) {
  const shared_board shared;
  ddpp::tcp_store store("127.0.0.1", 0, ddpp::tcp_store::server, {.timeout = 60s});
  const std::string url = "tcp://127.0.0.1:" + std::to_string(store.port());
  std::optional<strangers> at_store;
  auto running = ddpp::start_processes(ranks, [&](int rank) {
    ddpp::tcp_store("127.0.0.1", store.port(), ddpp::tcp_store::client, {.timeout = 60s}).get("strangers");
    run_rank(*shared, url, rank, kind);
  });
  at_store.emplace(kind, std::vector{store.port()}, most);
  const auto come = [&](const strangers& who, std::size_t times) {
    while (who.connections() < times) {
      if (running.join(5ms)) FAIL("the ranks have ended");
    }
  };
  come(*at_store, most);
  store.set("strangers", "are here");
  while ((*shared).ports[0] == 0 || (*shared).ports[1] == 0) {
    if (running.join(5ms)) FAIL("the ranks have ended");
  }
  const std::vector<std::uint16_t> ports = {static_cast<std::uint16_t>((*shared).ports[0]),
                                            static_cast<std::uint16_t>((*shared).ports[1])};
  const strangers at_ranks(kind, ports, most);
  come(at_ranks, most);
  (*shared).strangers_are_here = true;
  running.join();
  CHECK(at_ranks.connections() >= most);
  CHECK(store.get("strangers") == "are here");
}

/// Descriptors for so many connections in this process, and their other ends.
bool has_descriptors_for(std::size_t connections) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= connections + 1'000;
}

}  // namespace

TEST_CASE(
    "hundreds of strangers at each port, more than it has room for: the job goes on, and they cost little") {
  for (const auto& [kind, name] : support::all_strangers) {
    std::printf("those that %s\n", name);
    std::fflush(stdout);
    CHECK_NOTHROW(train_among(kind, 600));
  }
}

TEST_CASE("10,000 connections" * doctest::test_suite("full") * doctest::timeout(600)) {
  if (!has_descriptors_for(10'000)) return ddpp::testing::skip("the limit of open files is too low");
  for (const auto& [kind, name] : support::all_strangers) {
    std::printf("10,000 that %s\n", name);
    std::fflush(stdout);
    CHECK_NOTHROW(train_among(kind, 5'000));
  }
}

TEST_CASE("strangers leave a process with few descriptors most of them") {
  CHECK(support::in_child([] {
          const rlimit few{64, 64};
          ::setrlimit(RLIMIT_NOFILE, &few);
          ddpp::tcp_store store("127.0.0.1", 0, ddpp::tcp_store::server, {.timeout = 20s});
          const pid_t outside = support::fork_child([port = store.port()] {
            const rlimit many{1024, 1024};
            ::setrlimit(RLIMIT_NOFILE, &many);
            const strangers silent(stranger_kind::silent, {port}, 200);
            ::pause();
          });
          const std::size_t before = support::open_descriptors();
          for (int i = 0; i < 5'000 && support::open_descriptors() < before + 16; ++i)
            std::this_thread::sleep_for(1ms);
          std::this_thread::sleep_for(300ms);  // they would take more by now
          const std::size_t taken = support::open_descriptors() - before;
          std::vector<ddpp::detail::descriptor> files;
          while (files.size() < 30) {
            files.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (!files.back()) break;
          }
          const bool has_room = bool(files.back());
          files.clear();
          store.set("key", "value");
          ::kill(outside, SIGKILL);
          support::status_of(outside);
          std::printf("of 64 descriptors strangers take %zu\n", taken);
          return taken >= 4 && taken <= 16 && has_room && store.get("key") == "value" ? 0 : 1;
        }) == 0);
}
