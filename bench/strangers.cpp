// SPDX-License-Identifier: BSL-1.0
// What those cost who connect to a job's ports and do not belong to it: processor time and memory of the
// ranks, and the time of an all_reduce, two ranks over TCP on this host. The strangers run here too, on the
// same cores, with the lowest priority. usage: bench_strangers [CONNECTIONS], per kind; 300 unless told.
#include "../tests/support/strangers.hpp"

#include <ddpp/ddpp.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr int ranks = 2;
constexpr int scenes = 1 + static_cast<int>(support::all_strangers.size());

struct measured {
  double idle_percent = 0;  // processor time of an idle rank, of the time that passes
  double microseconds = 0;  // per all_reduce of 64 KiB
  double memory_mb = 0;     // resident
  double descriptors = 0;
};

/// What the processes share.
struct board {
  std::atomic<int> ports[ranks];
  std::atomic<int> scene, done;
  measured figures[scenes][ranks];
};

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * double(::sysconf(_SC_PAGESIZE)) / 1e6;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

measured measure(ddpp::communicator<ddpp::tcp>& comm) {
  measured result;
  const double used = processor_seconds();
  const auto idle = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(2s);
  result.idle_percent = 100 * (processor_seconds() - used) / seconds_since(idle);

  std::vector<float> buffer(16'384, 1);
  ddpp::barrier(comm);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int times = 10'000;
  for (int i = 0; i < times; ++i) ddpp::all_reduce(comm, buffer, ddpp::max);
  result.microseconds = 1e6 * seconds_since(begin) / times;
  result.memory_mb = resident_mb();
  const std::filesystem::directory_iterator open("/proc/self/fd"), end;
  result.descriptors = double(std::distance(open, end));
  return result;
}

void run_rank(board& shared) {
  auto comm = ddpp::init<ddpp::tcp>();
  measure(comm);  // warm
  shared.ports[comm.rank()] = support::listening_ports().front();
  for (int scene = 0; scene < scenes; ++scene) {
    while (shared.scene != scene) std::this_thread::sleep_for(1ms);
    shared.figures[scene][comm.rank()] = measure(comm);
    ++shared.done;
  }
}

void print(const char* what, double connections, const measured (&of)[ranks]) {
  std::printf("%-34s %14.0f %9.1f %12.0f %9.1f %12.0f\n", what, connections,
              (of[0].idle_percent + of[1].idle_percent) / 2, of[0].microseconds,
              (of[0].memory_mb + of[1].memory_mb) / 2, (of[0].descriptors + of[1].descriptors) / 2);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t connections = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 300;
  void* const memory =
      ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::perror("mmap"), 1;
  board& shared = *new (memory) board;
  shared.scene = -1;
  auto running = ddpp::start_processes(ranks, [&](int) { run_rank(shared); });
  while (shared.ports[0] == 0 || shared.ports[1] == 0) {
    if (running.join(10ms)) return 1;
  }
  ::setpriority(PRIO_PROCESS, 0, 19);
  std::printf("%-34s %14s %9s %12s %9s %12s\n", "strangers", "connections/s", "idle CPU%", "all_reduce us",
              "MB", "descriptors");
  const auto play = [&](int scene) {
    shared.done = 0;
    shared.scene = scene;
    while (shared.done < ranks) running.join(10ms);
  };
  play(0);
  print("none", 0, shared.figures[0]);
  const std::vector<std::uint16_t> ports = {static_cast<std::uint16_t>(shared.ports[0]),
                                            static_cast<std::uint16_t>(shared.ports[1])};
  for (int scene = 1; scene < scenes; ++scene) {
    const auto [kind, name] = support::all_strangers[static_cast<std::size_t>(scene - 1)];
    const support::strangers outside(kind, ports, connections);
    std::this_thread::sleep_for(500ms);
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t before = outside.connections();
    play(scene);
    print(name, double(outside.connections() - before) / seconds_since(begin), shared.figures[scene]);
  }
  running.join();
}
