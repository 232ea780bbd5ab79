// SPDX-License-Identifier: BSL-1.0
// What a process holds - descriptors, threads, mappings, memory - is after many groups and many collectives
// what it was after a few.
#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/reduce_scatter.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <new>
#include <string>
#include <unistd.h>
#include <vector>

#include "../support/ports.hpp"
#include "../support/process.hpp"
#include "../support/ranks.hpp"

namespace {

using namespace std::chrono_literals;

std::atomic<std::size_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const place = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (place == nullptr) throw std::bad_alloc();
  return place;
}

struct holdings {
  std::size_t descriptors = 0, threads = 0, mappings = 0, resident = 0;  ///< the last in bytes

  static holdings now() {
    holdings result{support::open_descriptors(), support::running_threads(), 0, 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++result.mappings;
    std::ifstream memory("/proc/self/statm");
    std::size_t pages = 0;
    memory >> pages >> result.resident;
    result.resident *= static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return result;
  }
};

// Sanitizers keep freed memory for a while, and a record of each thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_counts = false;
#elif defined(__has_feature)
constexpr bool memory_counts = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool memory_counts = true;
#endif

/// An allocator keeps some for later, and cuts what it keeps differently from time to time.
constexpr std::size_t memory_noise = std::size_t{4} << 20, mapping_noise = 4;

/// Of ranks that are threads of one process only one looks: to look opens files.
template <class C>
bool looks(const C& comm) {
  return C::transport_type::launch == ddpp::launch_kind::processes || comm.rank() == 0;
}

/// Does `f` a few times, then `times` times. Nothing may grow meanwhile.
template <class F>
void expect_flat(const std::string& what, int times, bool looking, F&& f) {
  for (int i = 0; i < times / 10 + 10; ++i) f();
  const holdings before = looking ? holdings::now() : holdings();
  for (int i = 0; i < times; ++i) f();
  if (!looking) return;
  const holdings after = holdings::now();
  std::printf(
      "%s, %d times: descriptors %zu, %zu; threads %zu, %zu; mappings %zu, %zu; resident %zu, %zu KiB\n",
      what.c_str(), times, before.descriptors, after.descriptors, before.threads, after.threads,
      before.mappings, after.mappings, before.resident / 1024, after.resident / 1024);
  EXPECT(after.descriptors <= before.descriptors);
  EXPECT(after.threads <= before.threads);
  if (!memory_counts) return;
  EXPECT(after.mappings <= before.mappings + mapping_noise);
  EXPECT(after.resident <= before.resident + memory_noise);
}

/// All counts are for the full set; the ordinary one takes a hundredth.
int some_of(int times) {
  const char* const full = std::getenv("DDPP_TEST_FULL");
  return full != nullptr && *full != '\0' ? times : times / 100;
}

template <class C>
void many_collectives(C& comm, const std::string& transport) {
  std::vector<float> data(16);
  ddpp::all_reduce_async(comm, data).wait();
  ddpp::barrier(comm);  // both have their threads
  expect_flat(transport + ", all_reduce of 16 floats", some_of(300'000), looks(comm),
              [&] { ddpp::all_reduce(comm, data); });
  expect_flat(transport + ", all_reduce_async of 16 floats", some_of(100'000), looks(comm),
              [&] { ddpp::all_reduce_async(comm, data).wait(); });
  std::size_t size = 0;
  const auto reduce_new_buffer = [&] {
    size = size % 5000 + 7;
    std::vector<float> fresh(size);
    ddpp::all_reduce(comm, fresh);
  };
  // The room for slots in shared memory becomes resident page by page, as they go around it.
  for (int i = 0; i < 3000; ++i) reduce_new_buffer();
  expect_flat(transport + ", all_reduce of a new buffer", some_of(100'000), looks(comm), reduce_new_buffer);
}

/// Once warm, an operation that blocks allocates nothing. (One that does not has its `work`.)
template <class C>
void expect_no_allocation(C& comm) {
  const int other = (comm.rank() + 1) % comm.size(), another = (comm.rank() + comm.size() - 1) % comm.size();
  for (const std::size_t count : {2u, 1000u, 300'000u}) {
    std::vector<float> all(count * static_cast<std::size_t>(comm.size())), part(count);
    const auto each_operation = [&] {
      ddpp::all_reduce(comm, all);
      ddpp::broadcast(comm, part);
      ddpp::all_gather(comm, part, all);
      ddpp::reduce_scatter(comm, all, part);
      ddpp::send_recv(comm, std::span(all).first(count), other, part, another);
      ddpp::barrier(comm);
    };
    constexpr int times = 50;
    for (int i = 0; i < times; ++i) each_operation();
    // What a connection keeps of messages that nobody has asked for yet may still grow. And where a rank was
    // kept from going on for long, the others have asked where it is: then all try again.
    std::vector<std::size_t> most(1);
    for (int tries = 0; tries < 3 && (tries == 0 || most[0] >= times / 2); ++tries) {
      const std::size_t before = allocations;
      for (int i = 0; i < times; ++i) each_operation();
      most[0] = allocations - before;
      ddpp::all_reduce(comm, most, ddpp::max);
    }
    EXPECT(most[0] < times / 2);
    ddpp::barrier(comm);
  }
}

template <class T>
void many_groups_of_processes(ddpp::communicator<T>& all) {
  const std::string name(T::name);
  std::vector<int> port{all.rank() == 0 ? support::free_port() : 0};
  ddpp::broadcast(all, port);
  expect_flat(name + ", init, use and destroy", some_of(10'000), looks(all), [&] {
    auto comm = ddpp::init<T>({.init_method = "tcp://127.0.0.1:" + std::to_string(port[0]),
                               .rank = all.rank(),
                               .world_size = all.size(),
                               .timeout = 60s});
    ddpp::barrier(comm);
  });
  expect_flat(name + ", split, use and destroy", some_of(10'000), looks(all), [&] {
    auto part = all.split(0);
    ddpp::barrier_async(part).wait();
  });
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete(void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }

TEST_CASE_TEMPLATE("operations allocate nothing", T, ddpp::shm, ddpp::tcp) {
  ddpp::launch<T>(3, [](auto& comm) { expect_no_allocation(comm); }, {.timeout = 60s});
}

TEST_CASE_TEMPLATE("many groups of processes" * doctest::timeout(1800), T, ddpp::shm, ddpp::tcp) {
  ddpp::launch<T>(2, [](auto& comm) { many_groups_of_processes<T>(comm); }, {.timeout = 60s});
}

TEST_CASE("many groups of threads" * doctest::timeout(1800)) {
  expect_flat("threads, launch, use and end", some_of(10'000), true, [] {
    ddpp::launch<ddpp::threads>(2, [](auto& comm) { ddpp::barrier_async(comm).wait(); }, {.timeout = 60s});
  });
}

TEST_CASE_TEMPLATE("many collectives of processes" * doctest::timeout(1800), T, ddpp::shm, ddpp::tcp) {
  ddpp::launch<T>(2, [](auto& comm) { many_collectives(comm, std::string(T::name)); }, {.timeout = 60s});
}

TEST_CASE("many collectives of threads" * doctest::timeout(1800)) {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) { many_collectives(comm, "threads"); }, {.timeout = 60s});
}
