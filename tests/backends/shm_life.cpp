// SPDX-License-Identifier: BSL-1.0
// What becomes of a shared segment when ranks die, do not come, come twice, or fork.
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/point_to_point.hpp>
#include <ddpp/work.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "../support/transport_life.hpp"

namespace {

using namespace std::chrono_literals;
using ddpp::shm;
using support::bootstrap_of;
using support::cause_of;
using support::contains;
using support::files_in;
using support::fork_child;
using support::meet;
using support::message_of;
using support::receive;
using support::scratch_directory;
using support::send;
using support::soon;
using support::status_of;
using support::store_in;

std::size_t segments_in_dev_shm() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("ddpp-")) ++count;
  }
  return count;
}

void kill_the_last(const std::function<void(shm&, const std::function<void()>&)>& victim,
                   const std::function<void(shm&)>& survivor) {
  support::kill_one<shm>(3, 2, "rank 2 died", victim, survivor);
}

}  // namespace

TEST_CASE("one rank needs no store") {
  shm alone(bootstrap_of(0, 1, nullptr), {});
  ddpp::threads also(bootstrap_of(0, 1, nullptr), {});
  alone.progress_in_background();
  send(alone, 100, 0, 1);
  receive(alone, 100, 0, 1);
  CHECK(alone.survey(soon()).size() == 1);
}

TEST_CASE("a rank that is killed at rest is missed by all who wait") {
  kill_the_last([](shm&, const auto& ready) { ready(); },
                [](shm& t) { receive(t, 1, t.rank() == 0 ? 2 : 0, 0); });
}

TEST_CASE("a rank that is killed in mid-transfer") {
  kill_the_last(
      [](shm& t, const auto& ready) {
        const std::vector<std::byte> data(20'000'000);
        auto first = t.isend(data, 0, 0);
        auto second = t.isend(data, 1, 0);
        ready();
        first.wait(soon());
        second.wait(soon());
      },
      [](shm& t) {
        receive(t, 20'000'000, 2, 0);
        receive(t, 20'000'000, 2, 0);
      });
}

TEST_CASE("a rank that is killed while others send to it") {
  kill_the_last([](shm& t, const auto& ready) { receive(t, 1, 0, 1), ready(); },
                [](shm& t) {
                  if (t.rank() == 0) send(t, 1, 2, 1);
                  send(t, 20'000'000, 2, 0);
                });
}

TEST_CASE("a rank that is only stopped is not lost") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] {
    shm t(bootstrap_of(1, 2, store_in(directory)), {});
    receive(t, 1, 0, 0);
  });
  {
    shm t(bootstrap_of(0, 2, store_in(directory)), {});
    ::kill(child, SIGSTOP);
    std::vector<std::byte> data(1);
    bool passed = false;
    try {
      t.irecv(data, 1, 0).wait(soon(200ms));
    } catch (const ddpp::deadline_passed&) {
      passed = true;
    }
    CHECK(passed);
    CHECK(!t.failed());
    ::kill(child, SIGCONT);
    send(t, 1, 1, 0);
  }
  CHECK(status_of(child) == 0);
}

TEST_CASE("ranks that do not come are named") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::vector<std::thread> threads;
  std::array<std::string, 4> texts;
  const auto until = soon(2s);
  for (const int rank : {0, 3}) {
    threads.emplace_back([&, rank] {
      auto boot = bootstrap_of(rank, 4, store);
      boot.deadline = until;
      texts[static_cast<std::size_t>(rank)] = message_of<ddpp::error>([&] { shm t(boot, {}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 3}) CHECK(contains(texts[static_cast<std::size_t>(rank)], "rank 1, rank 2"));

  auto boot = bootstrap_of(1, 4, std::make_shared<ddpp::hash_store>());
  boot.deadline = soon(100ms);
  CHECK(contains(message_of<ddpp::timeout_error>([&] { shm t(boot, {}); }), "rank 0"));
  CHECK(contains(message_of<ddpp::timeout_error>([&] { ddpp::threads t(boot, {}); }), "rank 0"));
}

TEST_CASE("a rank that dies while the group comes together") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] { shm t(bootstrap_of(1, 3, store_in(directory)), {}); });
  const ddpp::detail::joining_thread killer([&] {
    std::this_thread::sleep_for(2s);  // by then it has come
    ::kill(child, SIGKILL);
  });
  const std::string text =
      message_of<ddpp::init_error>([&] { shm t(bootstrap_of(0, 3, store_in(directory)), {}); });
  CHECK(contains(text, "rank 1 died"));
  CHECK(status_of(child) == SIGKILL);
}

TEST_CASE("rank 0 has died before another comes") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] { shm t(bootstrap_of(0, 2, store_in(directory)), {}); });
  store_in(directory)->wait({"shm/segment"}, 20s);
  ::kill(child, SIGKILL);
  CHECK(status_of(child) == SIGKILL);
  CHECK(contains(message_of<ddpp::init_error>([&] { shm t(bootstrap_of(1, 2, store_in(directory)), {}); }),
                 "rank 0 died"));
}

TEST_CASE("a rank that is there twice") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(3);
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      auto boot = bootstrap_of(i == 0 ? 0 : 1, 3, store);
      boot.deadline = soon(2s);
      texts[i] = message_of<ddpp::error>([&] { shm t(boot, {}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK((contains(texts[1], "rank 1 is there twice") || contains(texts[2], "rank 1 is there twice")));
}

TEST_CASE("threads joins one process only, and says so on all ranks") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] {
    EXPECT(contains(
        message_of<ddpp::init_error>([&] { ddpp::threads t(bootstrap_of(1, 2, store_in(directory)), {}); }),
        "use `shm`"));
  });
  CHECK(contains(
      message_of<ddpp::init_error>([&] { ddpp::threads t(bootstrap_of(0, 2, store_in(directory)), {}); }),
      "use `shm`"));
  CHECK(status_of(child) == 0);
}

TEST_CASE("a rank on another host is told to use tcp") {
  const auto store = std::make_shared<ddpp::hash_store>();
  store->set("shm/segment", "another-boot 1 2 3 0123456789abcdef0123456789abcdef");
  CHECK(contains(message_of<ddpp::init_error>([&] { shm t(bootstrap_of(1, 2, store), {}); }), "tcp"));
  CHECK(store->check({"refused"}));
}

TEST_CASE("making and destroying groups leaves nothing behind") {
  const auto cycle = [] {
    const auto both = []<class T>(std::type_identity<T>) {
      support::as_threads<T>::run(2, [](T& t) {
        t.progress_in_background();
        meet(t);
      });
    };
    both(std::type_identity<shm>());
    both(std::type_identity<ddpp::threads>());
  };
  const auto maps = [] {
    std::ifstream file("/proc/self/maps");
    std::size_t lines = 0;
    for (std::string line; std::getline(file, line);) {
      if (contains(line, "memfd:ddpp")) ++lines;
    }
    return lines;
  };
  for (int i = 0; i < 5; ++i) cycle();
  const std::size_t descriptors = files_in("/proc/self/fd"), threads = files_in("/proc/self/task");
  for (int i = 0; i < 300; ++i) cycle();
  CHECK(files_in("/proc/self/fd") == descriptors);
  CHECK(files_in("/proc/self/task") == threads);
  CHECK(maps() == 0);
  CHECK(segments_in_dev_shm() == 0);
}

TEST_CASE_TEMPLATE("a forked child cannot use its parent's group, and cannot harm it", T, shm,
                   ddpp::threads) {
  support::as_threads<T>::run(2, [](T& t) {
    t.progress_in_background();
    std::vector<std::byte> in(10), out(10);
    auto receiving = t.irecv(in, 1 - t.rank(), 0);
    meet(t);
    if (t.rank() == 0) {
      const pid_t child = fork_child([&] {
        EXPECT(contains(message_of<ddpp::usage_error>([&] { t.isend({}, 1, 0); }), "fork"));
        t.abort({ddpp::failure_kind::revoked, 0, "a child's"});
        { const auto dropped = std::move(receiving); }
        t.~T();
        ::_exit(0);
      });
      EXPECT(status_of(child) == 0);
    }
    meet(t);
    EXPECT(!t.failed());
    auto sending = t.isend(out, 1 - t.rank(), 0);
    receiving.wait(soon());
    sending.wait(soon());
  });
}

TEST_CASE("a forked child does not wait for its parent's pending work") {
  ddpp::communicator<shm> comm(bootstrap_of(0, 1, nullptr));
  std::atomic<bool> running{false}, go_on{false};
  std::vector<int> x(1), y(1);
  auto received = ddpp::irecv(comm, x, 0);
  auto script = comm.start({.op = ddpp::collective::user}, [&](auto&) {
    running = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
  });
  while (!running) std::this_thread::sleep_for(1ms);
  const pid_t child = fork_child([&] {
    EXPECT(!received.done() && !script.done());
    EXPECT(contains(message_of<ddpp::usage_error>([&] { received.wait(); }), "fork"));
    EXPECT(contains(message_of<ddpp::usage_error>([&] { script.wait(); }), "fork"));
    { const ddpp::work dropped = std::move(received), dropped_too = std::move(script); }
    ::_exit(0);
  });
  CHECK(status_of(child) == 0);
  go_on = true;
  script.wait();
  ddpp::send(comm, y, 0);
  received.wait();
}

TEST_CASE("no thread for asynchronous work is an error that leaves the communicator usable") {
  ddpp::communicator<shm> comm(bootstrap_of(0, 1, nullptr));
  pthread_attr_t usual, absurd;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&absurd) == 0);
  REQUIRE(::pthread_attr_setstacksize(&absurd, std::size_t{1} << 50) == 0);
  REQUIRE(::pthread_setattr_default_np(&absurd) == 0);
  CHECK_THROWS_AS((void)ddpp::barrier_async(comm), ddpp::resource_error);
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  ddpp::barrier(comm);
  ddpp::barrier_async(comm).wait();
  ::pthread_attr_destroy(&usual);
  ::pthread_attr_destroy(&absurd);
}

TEST_CASE("a child that outlives its parent does not keep the parent alive for the group") {
  const scratch_directory directory;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t parent = fork_child([&] {
    shm t(bootstrap_of(1, 2, store_in(directory)), {});
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ready[0]);
      ::pause();
      ::_exit(0);
    }
    (void)!::write(ready[1], &child, sizeof child);
    ::pause();
  });
  {
    shm t(bootstrap_of(0, 2, store_in(directory)), {});
    pid_t child = 0;
    REQUIRE(::read(ready[0], &child, sizeof child) == sizeof child);
    ::kill(parent, SIGKILL);
    const ddpp::failure cause = cause_of([&] { receive(t, 1, 1, 0); });
    CHECK(cause.text == "rank 1 died");
    ::kill(child, SIGKILL);
  }
  CHECK(status_of(parent) == SIGKILL);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("interrupted system calls are not failures") {
  const scratch_directory directory;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(fork_child([&] {
      struct sigaction action = {};
      action.sa_handler = [](int) {};
      EXPECT(::sigaction(SIGALRM, &action, nullptr) == 0);
      const itimerval every{{0, 1000}, {0, 1000}};
      EXPECT(::setitimer(ITIMER_REAL, &every, nullptr) == 0);
      shm t(bootstrap_of(rank, 3, store_in(directory)), {});
      for (int round = 0; round < 20; ++round) {
        send(t, 50'000, (rank + 1) % 3, 0);
        if (rank == 0) std::this_thread::sleep_for(5ms);
        receive(t, 50'000, (rank + 2) % 3, 0);
      }
    }));
  }
  for (const pid_t child : children) CHECK(status_of(child) == 0);
}

TEST_CASE("a failure is known without waiting") {
  support::as_threads<shm>::run(2, [](shm& t) {
    if (t.rank() == 0) t.abort({ddpp::failure_kind::revoked, 0, "enough"});
    while (!t.failed()) std::this_thread::yield();
    EXPECT(t.cause().text == "enough");
  });
}

TEST_CASE("a death is noticed by who waits while others talk") {
  const scratch_directory directory;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork_child([&] {
      shm t(bootstrap_of(rank, 3, store_in(directory)), {});
      std::thread talk([&] {
        cause_of([&] {
          for (;;) {
            std::vector<std::byte> out(1000), in(1000);
            auto sending = t.isend(out, 1 - rank, 0);
            t.irecv(in, 1 - rank, 0).wait(soon());
            sending.wait(soon());
          }
        });
      });
      const ddpp::failure cause = cause_of([&] { receive(t, 1, 2, 1); });
      talk.join();
      EXPECT(cause.text == "rank 2 died");
    }));
  }
  children.push_back(fork_child([&] {
    const shm t(bootstrap_of(2, 3, store_in(directory)), {});
    std::this_thread::sleep_for(50ms);
    ::kill(::getpid(), SIGKILL);
  }));
  CHECK(status_of(children[0]) == 0);
  CHECK(status_of(children[1]) == 0);
  CHECK(status_of(children[2]) == SIGKILL);
}

TEST_CASE("one who has left after something else than the others is a mismatch") {
  support::as_threads<shm>::run(2, [](shm& t) {
    ddpp::fingerprint print;
    print.sequence = 1;
    print.op = t.rank() == 0 ? ddpp::collective::all_reduce : ddpp::collective::broadcast;
    t.enter(print);
    if (t.rank() == 1) return t.leave();
    std::vector<std::byte> in(8);
    EXPECT(cause_of([&] { t.irecv(in, 1, -1).wait(soon()); }).kind == ddpp::failure_kind::mismatch);
  });
}

TEST_CASE("one who has gone through more collectives than the others, and left, is a mismatch") {
  std::atomic<bool> went_on{false};
  support::as_threads<shm>::run(2, [&](shm& t) {
    ddpp::fingerprint print;
    print.op = ddpp::collective::all_reduce;
    print.sequence = 1;
    print.count = t.rank() == 0 ? 5 : 0;
    while (t.rank() == 0 && !went_on) std::this_thread::sleep_for(1ms);  // else it sees that #1 differs
    t.enter(print);
    if (t.rank() == 1) {
      t.leave();
      print.sequence = 2;
      t.enter(print);
      t.leave();
      went_on = true;
      return;
    }
    std::vector<std::byte> in(8);
    const ddpp::failure cause = cause_of([&] { t.irecv(in, 1, -1).wait(soon()); });
    EXPECT(cause.kind == ddpp::failure_kind::mismatch);
    EXPECT(contains(cause.text, "rank 1: left the group after all_reduce #2"));
  });
}

TEST_CASE("many ranks") {
  support::as_processes<shm>::run(32, [](shm& t) {
    for (int distance = 1; distance < 32; distance *= 2) {
      send(t, 100, (t.rank() + distance) % 32, 0);
      receive(t, 100, (t.rank() + 32 - distance) % 32, 0);
    }
  });
}

TEST_CASE("a rank that waits sleeps") {
  support::as_threads<shm>::run(2, [](shm& t) {
    if (t.rank() == 0) {
      timespec before{}, after{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
      std::vector<std::byte> data(1);
      try {
        t.irecv(data, 1, 0).wait(soon(500ms));
      } catch (const ddpp::deadline_passed&) {
      }
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
      const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                             1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
      EXPECT(seconds < 0.1);
      send(t, 1, 1, 1);
    } else {
      receive(t, 1, 0, 1);
    }
  });
}
