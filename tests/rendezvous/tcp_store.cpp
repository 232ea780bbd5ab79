// SPDX-License-Identifier: BSL-1.0
#include <ddpp/tcp_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <doctest/doctest.h>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../skip.hpp"
#include "../support/process.hpp"

using ddpp::tcp_store;
using support::in_child;
using support::open_descriptors;
using namespace std::chrono_literals;

namespace {

tcp_store server_on_any_port() { return tcp_store("127.0.0.1", 0, tcp_store::server, {.timeout = 20s}); }

tcp_store client_of(const tcp_store& server) {
  return tcp_store("127.0.0.1", server.port(), tcp_store::client, {.timeout = 20s});
}

}  // namespace

TEST_CASE("tcp_store: what each function does, seen from another client") {
  tcp_store server = server_on_any_port(), client = client_of(server);
  client.set("key", "value");
  CHECK(server.get("key") == "value");
  CHECK(client.add("counter", 21) == 21);
  CHECK(server.add("counter", 0) == 21);
  CHECK(client.get("counter") == "21");
  CHECK_THROWS_AS(client.add("key", 1), ddpp::usage_error);
  CHECK(client.compare_set("lock", "", "mine") == "mine");
  CHECK(client.compare_set("lock", "", "yours") == "mine");
  CHECK(client.compare_set("lock", "mine", "yours") == "yours");
  CHECK(client.compare_set("absent", "x", "y").empty());
  client.append("log", "a");
  client.append("log", "b");
  CHECK(server.get("log") == "ab");
  CHECK(client.check({"key", "log"}));
  CHECK_FALSE(client.check({"key", "absent"}));
  CHECK(client.check({}));
  client.wait({});
  CHECK(client.num_keys() == 4);
  CHECK(client.delete_key("log"));
  CHECK_FALSE(client.delete_key("log"));
  client.multi_set({"x", "y", "z"}, {"1", "", std::string("3\0 3", 4)});
  CHECK(server.multi_get({"z", "y", "x"}) == std::vector<std::string>{std::string("3\0 3", 4), "", "1"});
  CHECK_THROWS_AS(client.multi_set({"x"}, {}), ddpp::usage_error);
  client.queue_push("queue", "first");
  client.queue_push("queue", "second");
  CHECK(client.queue_length("queue") == 2);
  CHECK(server.queue_pop("queue") == "first");
  CHECK(server.queue_pop("queue") == "second");
  CHECK(client.queue_length("queue") == 0);
  CHECK(client.local_address() == "127.0.0.1");
}

TEST_CASE("tcp_store: sizes up to the limits, and an error beyond them") {
  tcp_store server = server_on_any_port(), client = client_of(server);
  const std::string longest_key(4096, 'k'), large(64u << 20, 'v');
  client.set(longest_key, large);
  CHECK(client.get(longest_key) == large);
  CHECK_THROWS_AS(client.set(longest_key + 'k', ""), ddpp::usage_error);
  CHECK_THROWS_AS(client.set("key", large + 'v'), ddpp::usage_error);
  CHECK_THROWS_AS(client.append(longest_key, "v"), ddpp::usage_error);
  client.set("other", large);
  CHECK_THROWS_AS(client.multi_get({longest_key, "other"}), ddpp::usage_error);
  CHECK(client.get("other").size() == large.size());
}

TEST_CASE("tcp_store: waiting, and giving up without residue") {
  tcp_store server = server_on_any_port(), client = client_of(server);
  std::thread later([&] {
    client.wait({"a", "b"});
    client.set("c", client.get("a") + client.get("b"));
  });
  server.set("b", "2");
  server.set("a", "1");
  CHECK(server.get("c") == "12");
  later.join();

  const auto begin = std::chrono::steady_clock::now();
  try {
    client.wait({"a", "never"}, 300ms);
    FAIL("it must time out");
  } catch (const ddpp::timeout_error& e) {
    CHECK(std::chrono::steady_clock::now() - begin >= 300ms);
    const std::string text = e.what();
    CHECK(text.find("\"never\"") != std::string::npos);
    CHECK(text.find("\"a\"") == std::string::npos);
    CHECK(text.find("127.0.0.1:" + std::to_string(server.port())) != std::string::npos);
  }
  client.wait({"a"}, 0ms);

  client.set_timeout(50ms);
  CHECK(client.timeout() == 50ms);
  CHECK_THROWS_AS(client.queue_pop("queue"), ddpp::timeout_error);
  CHECK_THROWS_AS(client.get("never"), ddpp::timeout_error);
  server.queue_push("queue", "stays");  // not lost to the one who gave up
  CHECK(server.queue_length("queue") == 1);
  CHECK(client.queue_pop("queue") == "stays");
}

TEST_CASE("tcp_store: who pops and who gives up at the same time lose nothing") {
  tcp_store server = server_on_any_port(), client = client_of(server);
  client.set_timeout(1ms);
  int popped = 0;
  std::atomic<bool> stop{false};
  std::thread popper([&] {
    while (!stop) {
      try {
        client.queue_pop("queue");
        ++popped;
      } catch (const ddpp::timeout_error&) {
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    server.queue_push("queue", "x");
    std::this_thread::sleep_for(std::chrono::microseconds(500 + i * 5));
  }
  while (server.queue_length("queue") > 0) std::this_thread::sleep_for(1ms);
  stop = true;
  popper.join();
  CHECK(popped == 300);
}

TEST_CASE("tcp_store: a client without a server ends in time and says where it looked") {
  std::uint16_t port = 0;
  {
    const tcp_store gone = server_on_any_port();
    port = gone.port();
  }
  const auto begin = std::chrono::steady_clock::now();
  try {
    tcp_store client("127.0.0.1", port, tcp_store::client, {.timeout = 500ms});
    FAIL("there is no server");
  } catch (const ddpp::timeout_error& e) {
    CHECK(std::chrono::steady_clock::now() - begin >= 500ms);
    CHECK(std::string(e.what()).find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
  }
}

TEST_CASE("tcp_store: a server that ends, ends its clients' calls") {
  auto server = std::make_unique<tcp_store>("127.0.0.1", 0, tcp_store::server);
  tcp_store client = client_of(*server);
  std::thread closer([&] {
    while (client.num_keys() == 0) std::this_thread::sleep_for(1ms);
    server.reset();
  });
  client.set("ready", "");
  CHECK_THROWS_AS(client.get("never"), ddpp::init_error);
  closer.join();
  CHECK_THROWS_AS(client.get("never"), ddpp::error);
}

TEST_CASE("tcp_store: another secret, or none, is refused") {
  tcp_store server("127.0.0.1", 0, tcp_store::server, {.secret = "one"});
  CHECK_THROWS_AS(tcp_store("127.0.0.1", server.port(), tcp_store::client, {.timeout = 20s, .secret = "two"}),
                  ddpp::authentication_error);
  CHECK_THROWS_AS(tcp_store("127.0.0.1", server.port(), tcp_store::client, {.timeout = 20s, .secret = ""}),
                  ddpp::authentication_error);
  tcp_store("127.0.0.1", server.port(), tcp_store::client, {.timeout = 20s, .secret = "one"}).set("a", "b");
  CHECK(server.get("a") == "b");
}

TEST_CASE("tcp_store: 64 clients in threads, with strangers at the door") {
  tcp_store server = server_on_any_port();
  std::atomic<bool> stop{false};
  std::thread strangers([&] {
    std::vector<ddpp::detail::descriptor> silent;
    for (unsigned i = 0; !stop; ++i) {
      auto fd = ddpp::detail::connect_to("127.0.0.1", server.port(), std::chrono::steady_clock::now() + 20s);
      const std::string noise(1 + i % 5000, static_cast<char>(i));
      if (i % 3 != 0) ddpp::detail::send_all(fd.get(), std::as_bytes(std::span(noise)), {});
      if (i % 3 != 1 && silent.size() < 200) silent.push_back(std::move(fd));
    }
  });
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back([&, i] {
      tcp_store client = client_of(server);
      client.set("from " + std::to_string(i), std::to_string(i * i));
      if (client.get("from " + std::to_string((i + 1) % 64)) == std::to_string((i + 1) % 64 * ((i + 1) % 64)))
        ++right;
      for (int k = 0; k < 50; ++k) client.add("sum", k);
      client.add("done", 1);
    });
  }
  for (std::thread& each : clients) each.join();
  stop = true;
  strangers.join();
  CHECK(right == 64);
  CHECK(server.add("sum", 0) == 64 * 50 * 49 / 2);
}

TEST_CASE("tcp_store: thousands of clients wait at one server, and one key wakes them all") {
  using namespace ddpp::detail;
  constexpr std::size_t clients = 2'000;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit enough{before.rlim_max, before.rlim_max};
  if (before.rlim_max < 2 * clients + 200 || ::setrlimit(RLIMIT_NOFILE, &enough) != 0) {
    return ddpp::testing::skip("the limit of open files is too low");
  }
  {
    tcp_store server("127.0.0.1", 0, tcp_store::server, {.timeout = 60s, .secret = "s"});
    const auto until = std::chrono::steady_clock::now() + 100s;
    std::string wait, later;
    encode(wait, store_wire::request::wait, std::vector<std::string_view>{"start", "early"});
    encode(later, store_wire::request::add, std::vector<std::string_view>{"woken", "1"});
    std::vector<descriptor> all;
    server.set("early", "");
    while (all.size() < clients) {
      all.push_back(
          connect_and_prove("127.0.0.1", server.port(), {"s"}, {purpose::store, {}, -1, -1}, until));
      REQUIRE(send_all(all.back().get(), std::as_bytes(std::span(wait)), until) == transfer::done);
    }
    CHECK(support::running_threads() == 2);  // this one and the server's
    CHECK(server.add("woken", 0) == 0);
    server.set("start", "");
    for (const descriptor& each : all) {
      store_wire::header answer;
      REQUIRE(receive_all(each.get(), std::as_writable_bytes(std::span(&answer, 1)), until) ==
              transfer::done);
      CHECK(answer.code == static_cast<std::uint32_t>(store_wire::reply::ok));
      REQUIRE(send_all(each.get(), std::as_bytes(std::span(later)), until) == transfer::done);
    }
    for (const descriptor& each : all) {
      store_wire::header answer;
      REQUIRE(receive_all(each.get(), std::as_writable_bytes(std::span(&answer, 1)), until) ==
              transfer::done);
    }
    CHECK(server.get("woken") == std::to_string(clients));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("tcp_store: one client object, many threads, one of them waiting") {
  tcp_store server = server_on_any_port(), client = client_of(server);
  std::thread waiter([&] { CHECK(client.get("late") == "x"); });
  for (int i = 0; i < 100; ++i) client.set("key " + std::to_string(i), "");
  client.set("late", "x");
  waiter.join();
  CHECK(client.num_keys() == 101);
}

TEST_CASE("tcp_store: 100 servers on one port, one after the other; descriptors come back") {
  std::uint16_t port = server_on_any_port().port();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) {
    tcp_store server("127.0.0.1", port, tcp_store::server), client = client_of(server);
    client.set("round", std::to_string(i));
    CHECK(client.num_keys() == 1);
    CHECK(server.get("round") == std::to_string(i));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("tcp_store: goes on after a fork, and the child is a client like others") {
  auto server = std::make_unique<tcp_store>("127.0.0.1", 0, tcp_store::server);
  auto client = std::make_unique<tcp_store>("127.0.0.1", server->port());
  const int status = in_child([&] {
    client->set("from the child", "1");
    const bool seen = server->get("from the child") == "1";
    client.reset();
    server.reset();
    return seen ? 7 : 1;
  });
  CHECK(status == 7);
  CHECK(client->get("from the child") == "1");
  client->set("from the parent", "2");
  CHECK(server->get("from the parent") == "2");
}

TEST_CASE("tcp_store: listen, fork, serve later") {
  ddpp::detail::ensure_job_secret();
  ddpp::detail::store_listener listener("127.0.0.1", 0);
  const std::uint16_t port = listener.port();
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      tcp_store client("127.0.0.1", port);
      client.set("hello", "from the child");
      ::_exit(client.get("answer") == "yes" ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  tcp_store server(std::move(listener), {.timeout = 20s});
  CHECK(server.get("hello") == "from the child");
  server.set("answer", "yes");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  CHECK(status == 0);
}

TEST_CASE("tcp_store: a client that has proven itself and talks nonsense loses its connection, no more") {
  using namespace ddpp::detail;
  tcp_store server("127.0.0.1", 0, tcp_store::server, {.timeout = 20s, .secret = "s"});
  server.set("key", "value");
  const auto until = std::chrono::steady_clock::now() + 60s;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const descriptor fd = connect_and_prove("127.0.0.1", server.port(), {"s"}, {}, until);
    store_wire::header head{seed % 20, seed % 7, seed % 3 == 0 ? ~std::uint64_t{0} : seed % 100};
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
    for (unsigned i = 0; i < seed % 100; ++i) bytes += static_cast<char>((i * 7919 + seed * 104729) >> 3);
    send_all(fd.get(), std::as_bytes(std::span(bytes)), until);
    ::shutdown(fd.get(), SHUT_WR);
    std::byte answer{};
    while (receive_all(fd.get(), std::span(&answer, 1), until) == transfer::done) {
    }
  }
  CHECK(server.get("key") == "value");
}
