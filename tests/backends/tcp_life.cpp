// SPDX-License-Identifier: BSL-1.0
// What becomes of a group over TCP when ranks die, leave, do not come, fork, or have strangers at the door.
#include <ddpp/backends/tcp.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/hash_store.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <signal.h>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../support/transport_life.hpp"

namespace {

using namespace std::chrono_literals;
using ddpp::tcp;
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

double processor_seconds_of_process() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void kill_one(int size, int victim_rank,
              const std::function<void(tcp&, const std::function<void()>&)>& victim,
              const std::function<void(tcp&)>& survivor) {
  support::kill_one<tcp>(size, victim_rank, "rank " + std::to_string(victim_rank) + " was lost", victim,
                         survivor);
}

/// The port on which rank 0 listens, by what it published.
std::uint16_t port_of_rank_0(const std::string& text) {
  const std::size_t host = text.find(' ') + 1, port = text.find(' ', host) + 1;
  return static_cast<std::uint16_t>(std::stoi(text.substr(port)));
}

}  // namespace

TEST_CASE("tcp: one rank needs no store") {
  tcp alone(bootstrap_of(0, 1, nullptr), {});
  alone.progress_in_background();
  send(alone, 100, 0, 1);
  receive(alone, 100, 0, 1);
  CHECK(alone.survey(soon()).size() == 1);
}

TEST_CASE("tcp: one rank that fails has nobody's ruling to wait for") {
  const auto until = std::chrono::steady_clock::now() + 30s;
  for (int i = 0; i < 60; ++i) {
    tcp alone(bootstrap_of(0, 1, nullptr), {});
    alone.abort({ddpp::failure_kind::revoked, 0, "enough"});
    CHECK(alone.cause().text == "enough");
  }
  CHECK(std::chrono::steady_clock::now() < until);
}

TEST_CASE("tcp: a rank that is killed at rest is missed by all who wait, whoever it is") {
  for (const int victim : {0, 1, 2}) {
    kill_one(
        3, victim, [](tcp&, const auto& ready) { ready(); },
        [&](tcp& t) { receive(t, 1, (t.rank() + 1) % 3, 0); });
  }
}

TEST_CASE("tcp: a rank that is killed in mid-transfer") {
  for (const int victim : {0, 2}) {
    kill_one(
        3, victim,
        [](tcp& t, const auto& ready) {
          const std::vector<std::byte> data(50'000'000);
          std::vector<ddpp::detail::engine_request> sends;
          for (int peer = 0; peer < 3; ++peer) {
            if (peer != t.rank()) sends.push_back(t.isend(data, peer, 0));
          }
          ready();
          for (auto& each : sends) each.wait(soon());
        },
        [&](tcp& t) {
          receive(t, 50'000'000, victim, 0);
          receive(t, 50'000'000, victim, 0);
        });
  }
}

TEST_CASE("tcp: a rank that is killed while others send to it") {
  kill_one(
      3, 2, [](tcp& t, const auto& ready) { receive(t, 1, 0, 1), ready(); },
      [](tcp& t) {
        if (t.rank() == 0) send(t, 1, 2, 1);
        for (;;) send(t, 20'000'000, 2, 0);
      });
}

TEST_CASE("tcp: a rank that is only stopped is not lost, and a survey says that it does not answer") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] {
    tcp t(bootstrap_of(1, 2, store_in(directory)), {});
    receive(t, 1, 0, 0);
  });
  {
    tcp t(bootstrap_of(0, 2, store_in(directory)), {});
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
    CHECK(t.survey(soon(100ms))[1].is == ddpp::rank_state::presence::unknown);
    ::kill(child, SIGCONT);
    send(t, 1, 1, 0);
  }
  CHECK(status_of(child) == 0);
}

TEST_CASE("tcp: ranks that do not come are named") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::vector<std::thread> threads;
  std::array<std::string, 4> texts;
  const auto until = soon(2s);
  for (const int rank : {0, 3}) {
    threads.emplace_back([&, rank] {
      auto boot = bootstrap_of(rank, 4, store);
      boot.deadline = until;
      texts[static_cast<std::size_t>(rank)] = message_of<ddpp::error>([&] { tcp t(boot, {}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 3}) CHECK(contains(texts[static_cast<std::size_t>(rank)], "rank 1, rank 2"));

  auto boot = bootstrap_of(1, 4, std::make_shared<ddpp::hash_store>());
  boot.deadline = soon(100ms);
  CHECK(contains(message_of<ddpp::timeout_error>([&] { tcp t(boot, {}); }), "rank 0"));
}

TEST_CASE("tcp: a rank that dies while the group comes together") {
  const scratch_directory directory;
  const pid_t child = fork_child([&] { tcp t(bootstrap_of(1, 3, store_in(directory)), {}); });
  const ddpp::detail::joining_thread killer([&] {
    std::this_thread::sleep_for(2s);  // by then it has come
    ::kill(child, SIGKILL);
  });
  const std::string text =
      message_of<ddpp::init_error>([&] { tcp t(bootstrap_of(0, 3, store_in(directory)), {}); });
  CHECK(contains(text, "rank 1 was lost"));
  CHECK(status_of(child) == SIGKILL);
}

TEST_CASE("tcp: another secret is refused, and the group says who is missing") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::thread first([&] {
    auto boot = bootstrap_of(0, 2, store);
    boot.secret = "right";
    boot.deadline = soon(2s);
    CHECK_THROWS_AS(tcp(boot, {}), ddpp::timeout_error);
  });
  auto boot = bootstrap_of(1, 2, store);
  boot.secret = "wrong";
  CHECK_THROWS_AS(tcp(boot, {}), ddpp::authentication_error);
  first.join();
}

TEST_CASE("tcp: with a secret, with security::none, and with neither on one host") {
  const auto exchange = []<class T>(T*, const std::string& secret) {
    const auto store = std::make_shared<ddpp::hash_store>();
    std::vector<std::thread> threads;
    std::atomic<int> met{0};
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto boot = bootstrap_of(rank, 3, store);
        boot.secret = secret;
        T t(boot, {});
        meet(t);
        ++met;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(met == 3);
  };
  exchange(static_cast<tcp*>(nullptr), "a secret");
  exchange(static_cast<tcp*>(nullptr), "");
  exchange(static_cast<ddpp::basic_tcp<ddpp::security::none>*>(nullptr), "");
}

TEST_CASE("tcp: the hub leaves, the others go on and still notice a death") {
  const scratch_directory directory;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 4; ++rank) {
    children.push_back(fork_child([&] {
      tcp t(bootstrap_of(rank, 4, store_in(directory)), {});
      meet(t);
      if (rank == 0) return;
      while (t.survey(soon(5s))[0].is != ddpp::rank_state::presence::left) std::this_thread::sleep_for(1ms);
      for (int round = 0; round < 100; ++round) {  // until the next hub answers
        const auto states = t.survey(soon(1s));
        if (states[1].is == ddpp::rank_state::presence::here &&
            states[2].is == ddpp::rank_state::presence::here &&
            states[3].is == ddpp::rank_state::presence::here)
          break;
        EXPECT(round < 99);
      }
      send(t, 1, 1 + rank % 3, 1);
      receive(t, 1, 1 + (rank + 1) % 3, 1);
      if (rank == 3) {  // dies when the others need nothing more of it
        for (const int peer : {1, 2}) receive(t, 1, peer, 3);
        (void)!::write(ready[1], "x", 1);
        ::pause();
      }
      send(t, 1, 3, 3);
      // Nobody waits for rank 3 itself.
      const ddpp::failure cause = cause_of([&] { receive(t, 1, 3 - rank, 2); });
      EXPECT(cause.kind == ddpp::failure_kind::peer_lost && cause.rank == 3);
    }));
  }
  char x = 0;
  REQUIRE(::read(ready[0], &x, 1) == 1);
  CHECK(status_of(children[0]) == 0);
  ::kill(children[3], SIGKILL);
  CHECK(status_of(children[1]) == 0);
  CHECK(status_of(children[2]) == 0);
  CHECK(status_of(children[3]) == SIGKILL);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("tcp: ranks that leave one after the other, in any order") {
  for (const bool rising : {true, false}) {
    support::as_processes<tcp>::run(5, [&](tcp& t) {
      meet(t);
      const int place = rising ? t.rank() : 4 - t.rank();
      const int next = rising ? t.rank() + 1 : t.rank() - 1, before = rising ? t.rank() - 1 : t.rank() + 1;
      if (place > 0) receive(t, 1, before, 1);
      std::this_thread::sleep_for(20ms);
      if (place < 4) send(t, 1, next, 1);
    });
  }
}

TEST_CASE("tcp: what was sent arrives though the sender left with mail unread") {
  support::as_processes<tcp>::run(2, [](tcp& t) {
    constexpr std::size_t size = 300'000;
    if (t.rank() == 0) {
      receive(t, 1, 1, 1);
      const std::vector<std::byte> data(size, std::byte{7});
      t.isend(data, 1, 0).wait(soon());
    } else {
      send(t, 1, 0, 1);
      const std::vector<std::byte> unwanted(100);
      t.isend(unwanted, 0, 2).wait(soon());
      std::this_thread::sleep_for(100ms);
      std::vector<std::byte> in(size);
      t.irecv(in, 0, 0).wait(soon());
      EXPECT(in.back() == std::byte{7});
    }
  });
}

TEST_CASE("tcp: who left after another collective has differed, not just left") {
  for (const bool connected : {true, false}) {
    support::as_processes<tcp>::run(2, [=](tcp& t) {
      if (connected) meet(t);
      ddpp::fingerprint print;
      print.sequence = 5;
      print.op = t.rank() == 0 ? ddpp::collective::barrier : ddpp::collective::broadcast;
      t.enter(print);
      if (t.rank() == 0) return;
      const ddpp::failure cause = cause_of([&] { receive(t, 1, 0, -1); });
      EXPECT(cause.kind == ddpp::failure_kind::mismatch);
      EXPECT(contains(cause.text, "barrier #5") && contains(cause.text, "broadcast #5"));
    });
  }
}

TEST_CASE("tcp: strangers at the door change nothing") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::atomic<bool> stop{false}, is_at_the_door{false};
  std::atomic<int> visits{0};
  std::thread stranger([&] {
    store->wait({"tcp/0"}, 20s);
    const std::uint16_t port = port_of_rank_0(store->get("tcp/0"));
    is_at_the_door = true;
    is_at_the_door.notify_all();
    std::vector<ddpp::detail::descriptor> silent;
    for (unsigned i = 0; !stop; ++i) {
      try {
        auto fd = ddpp::detail::connect_to("127.0.0.1", port, soon(200ms));
        const std::string noise(1 + i % 3000, static_cast<char>(i));
        if (i % 3 != 0) ddpp::detail::send_all(fd.get(), std::as_bytes(std::span(noise)), {});
        if (i % 3 != 1 && silent.size() < 300) silent.push_back(std::move(fd));
        ++visits;
      } catch (const ddpp::error&) {  // the group has gone
      }
    }
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto boot = bootstrap_of(rank, 4, store);
      boot.secret = "a secret";
      if (rank == 3) is_at_the_door.wait(false);  // once all have come the address is forgotten
      tcp t(boot, {});
      const int to = (rank + 1) % 4, from = (rank + 3) % 4;
      // Rank 0 says whether there will be another round; the others hand it on.
      std::byte more{1};
      for (int i = 0; more == std::byte{1}; ++i) {
        if (rank == 0) more = std::byte(i < 200 || visits < 500);
        std::vector<std::byte> out(50'000, more), in(50'000);
        if (rank == 0) t.isend(out, to, 0).wait(soon());
        t.irecv(in, from, 0).wait(soon());
        more = in[0];
        if (rank != 0) t.isend(in, to, 0).wait(soon());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  stranger.join();
  CHECK(visits >= 500);
}

TEST_CASE("tcp: making and destroying groups leaves nothing behind") {
  const auto cycle = [] {
    support::as_threads<tcp>::run(3, [](tcp& t) {
      t.progress_in_background();
      meet(t);
    });
  };
  for (int i = 0; i < 3; ++i) cycle();
  const std::size_t descriptors = files_in("/proc/self/fd"), threads = files_in("/proc/self/task");
  for (int i = 0; i < 100; ++i) cycle();
  CHECK(files_in("/proc/self/fd") == descriptors);
  CHECK(files_in("/proc/self/task") == threads);
}

TEST_CASE("tcp: a forked child cannot use its parent's group, and cannot harm it") {
  support::as_threads<tcp>::run(2, [](tcp& t) {
    t.progress_in_background();
    std::vector<std::byte> in(10), out(10);
    auto receiving = t.irecv(in, 1 - t.rank(), 0);
    meet(t);
    if (t.rank() == 0) {
      const pid_t child = fork_child([&] {
        EXPECT(contains(message_of<ddpp::usage_error>([&] { t.isend({}, 1, 0); }), "fork"));
        t.abort({ddpp::failure_kind::revoked, 0, "a child's"});
        { const auto dropped = std::move(receiving); }
        t.~tcp();
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

TEST_CASE("tcp: a child that outlives its parent does not keep the parent alive for the group") {
  const scratch_directory directory;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t parent = fork_child([&] {
    tcp t(bootstrap_of(1, 2, store_in(directory)), {});
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
    tcp t(bootstrap_of(0, 2, store_in(directory)), {});
    pid_t child = 0;
    REQUIRE(::read(ready[0], &child, sizeof child) == sizeof child);
    ::kill(parent, SIGKILL);
    const ddpp::failure cause = cause_of([&] { receive(t, 1, 1, 0); });
    CHECK(contains(cause.text, "rank 1 was lost"));
    ::kill(child, SIGKILL);
  }
  CHECK(status_of(parent) == SIGKILL);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("tcp: a rank that waits sleeps, and so do the control threads") {
  support::as_processes<tcp>::run(2, [](tcp& t) {
    meet(t);
    const double before = processor_seconds_of_process();
    if (t.rank() == 0) {
      std::vector<std::byte> data(1);
      try {
        t.irecv(data, 1, 0).wait(soon(500ms));
      } catch (const ddpp::deadline_passed&) {
      }
      EXPECT(processor_seconds_of_process() - before < 0.1);
      send(t, 1, 1, 1);
    } else {
      receive(t, 1, 0, 1);
      EXPECT(processor_seconds_of_process() - before < 0.1);
    }
  });
}

TEST_CASE("tcp: a peer that talks nonsense on its connection is as good as lost, whatever it says") {
  using namespace ddpp::detail;
  for (int kind = 0; kind < 4; ++kind) {
    const auto store = std::make_shared<ddpp::hash_store>();
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    std::atomic<bool> over{false};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank == 1) store->set("kept", store->get("tcp/0"));
        tcp t(bootstrap_of(rank, 2, store), {});
        if (rank == 1) {
          while (!over) std::this_thread::sleep_for(1ms);
          return;
        }
        const std::string published = store->get("kept");
        const group_id group = group_id_from(std::string_view(published).substr(0, published.find(' ')));
        const descriptor liar = connect_and_prove("127.0.0.1", port_of_rank_0(published), {},
                                                  {purpose::data, group, 1, 0}, soon());
        frame_header header;
        header.tag = 3;
        header.bytes = 100;
        if (kind == 0) header.kind = static_cast<frame_kind>(0x12345678);
        if (kind == 1) header.bytes = ~std::uint64_t{0};
        if (kind == 2) header.bytes = std::uint64_t{1} << 40;  // more than was asked for
        send_all(liar.get(), std::as_bytes(std::span(&header, 1)), soon());
        if (kind == 3)
          send_all(liar.get(), std::as_bytes(std::span(&header, 1)), soon());  // cut off in the middle
        if (kind == 3) ::shutdown(liar.get(), SHUT_RDWR);
        const ddpp::failure cause = cause_of([&] { receive(t, 100, 1, 3); });
        if (cause.kind == (kind == 2 ? ddpp::failure_kind::mismatch : ddpp::failure_kind::peer_lost)) ++right;
        over = true;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 1);
  }
}

TEST_CASE("tcp: a timer that interrupts every system call changes nothing") {
  const scratch_directory directory;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(fork_child([&] {
      struct sigaction action {};
      action.sa_handler = [](int) {};
      ::sigaction(SIGALRM, &action, nullptr);  // no SA_RESTART
      itimerval every{};
      every.it_interval.tv_usec = every.it_value.tv_usec = 1000;
      ::setitimer(ITIMER_REAL, &every, nullptr);
      tcp t(bootstrap_of(rank, 3, store_in(directory)), {});
      for (int i = 0; i < 20; ++i) {
        std::vector<std::byte> out(1'000'000, std::byte(i)), in(1'000'000);
        auto sending = t.isend(out, (rank + 1) % 3, 0);
        t.irecv(in, (rank + 2) % 3, 0).wait(soon());
        sending.wait(soon());
        EXPECT(in.back() == std::byte(i));
      }
      meet(t);
    }));
  }
  for (const pid_t child : children) CHECK(status_of(child) == 0);
}

TEST_CASE("tcp: no descriptor left for a connection is an error that says so, on all ranks") {
  support::as_processes<tcp>::run(2, [](tcp& t) {
    if (t.rank() == 0) {
      const rlimit none{3, 3};
      ::setrlimit(RLIMIT_NOFILE, &none);
      t.enter({.sequence = 1});
    } else {  // rank 0 has no descriptor before it is asked for one
      while (t.survey(soon())[0].last.sequence == 0) {
      }
    }
    const ddpp::failure cause = cause_of([&] {
      if (t.rank() == 0) send(t, 1, 1, 0);
      receive(t, 1, 1 - t.rank(), 7);
    });
    EXPECT(cause.kind == ddpp::failure_kind::revoked && cause.rank == 0);
    EXPECT(contains(cause.text, "descriptors"));
  });
}
