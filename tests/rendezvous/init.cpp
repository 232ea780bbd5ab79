// SPDX-License-Identifier: BSL-1.0
// How ranks come together, and every way in which they can fail to.
#include <ddpp/backends/tcp.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/rendezvous.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/init.hpp>
#include <ddpp/spawn.hpp>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../support/process.hpp"

using support::says;
using support::text_of;

using namespace std::chrono_literals;
using ddpp::detail::come_together;
using variables = std::initializer_list<std::pair<const char*, const char*>>;

namespace {

/// Runs f in a child with exactly these of the variables that a launcher could set, and returns the text that
/// it returns.
template <class F>
std::string with_environment(variables set, F&& f) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const char* name : {"DDPP_RANK",
                             "DDPP_WORLD_SIZE",
                             "DDPP_LOCAL_RANK",
                             "DDPP_LOCAL_WORLD_SIZE",
                             "DDPP_INIT_METHOD",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMIX_RANK",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_ID",
                             "JOB_COMPLETION_INDEX",
                             "TORCHELASTIC_USE_AGENT_STORE"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : set) ::setenv(name, value, 1);
    std::string said;
    try {
      said = f();
    } catch (const ddpp::usage_error& e) {
      said = std::string("usage_error: ") + e.what();
    } catch (const ddpp::init_error& e) {
      said = std::string("init_error: ") + e.what();
    } catch (const ddpp::timeout_error& e) {
      said = std::string("timeout_error: ") + e.what();
    } catch (const std::exception& e) {
      said = std::string("another exception: ") + e.what();
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char some[4096];
  for (ssize_t got; (got = ::read(ends[0], some, sizeof some)) > 0;) text.append(some, std::size_t(got));
  ::close(ends[0]);
  ::waitpid(pid, nullptr, 0);
  return text;
}

/// "rank/size local rank/local size", or the error.
std::string launched(variables set) {
  return with_environment(set, [] {
    const auto here = ddpp::detail::read_environment();
    return std::to_string(here.rank) + "/" + std::to_string(here.size) + " " +
           std::to_string(ddpp::local_rank()) + "/" + std::to_string(ddpp::local_size());
  });
}

/// "rank/size where", or the error.
std::string resolved(variables set, const ddpp::init_options& options = {}) {
  return with_environment(set, [&] {
    const auto at = ddpp::detail::resolve_appointment(options);
    const std::string who = std::to_string(at.rank) + "/" + std::to_string(at.size);
    if (at.known) return who + " store";
    switch (at.place.is) {
      case ddpp::detail::init_method::kind::env:
        return who + " nowhere";
      case ddpp::detail::init_method::kind::tcp:
        return who + " tcp " + at.place.host + " " + std::to_string(at.place.port);
      case ddpp::detail::init_method::kind::file:
        break;
    }
    return who + " file " + at.place.path;
  });
}

std::string parse_error(const std::string& text) {
  return text_of<ddpp::init_error>([&] { ddpp::detail::init_method_parser(text).parse(); });
}

std::string unused_url() {
  const ddpp::detail::store_listener here("127.0.0.1", 0);
  return "tcp://127.0.0.1:" + std::to_string(here.port());
}

std::string scratch_path() {
  char name[] = "/tmp/ddpp-test-XXXXXX";
  const int fd = ::mkstemp(name);
  ::close(fd);
  ::unlink(name);
  return name;
}

/// Runs f(rank) on a thread each, once all are there; returns what each threw, as "type: text", or nothing.
template <class F>
std::vector<std::string> on_threads(int n, F&& f) {
  std::vector<std::string> thrown(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  std::barrier all_here(n);
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      all_here.arrive_and_wait();
      std::string& mine = thrown[static_cast<std::size_t>(rank)];
      try {
        f(rank);
      } catch (const ddpp::timeout_error& e) {
        mine = std::string("timeout_error: ") + e.what();
      } catch (const ddpp::init_error& e) {
        mine = std::string("init_error: ") + e.what();
      } catch (const std::exception& e) {
        mine = std::string("another: ") + e.what();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return thrown;
}

std::string join(ddpp::store& store, int rank, int size, std::chrono::milliseconds timeout = 20s,
                 const std::string& name = {}) {
  return ddpp::detail::group_formation(store, name, rank, size, ddpp::detail::deadline_after(timeout),
                                       timeout)
      .run();
}

/// What transports do with the group's store: everybody says something and hears everybody.
void meet(const ddpp::detail::gathering& group) {
  const ddpp::bootstrap& boot = group.boot;
  boot.store->set("rank " + std::to_string(boot.rank), "here");
  for (int r = 0; r < boot.size; ++r) boot.store->get("rank " + std::to_string(r));
  ddpp::detail::settle(group, [] { return false; });
}

}  // namespace

TEST_CASE("environment: the first launcher that has set anything counts") {
  CHECK(launched({}) == "0/1 0/1");
  CHECK(with_environment({}, [] { return std::to_string(ddpp::launched_ranks()); }) == "0");
  CHECK(with_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}},
                         [] { return std::to_string(ddpp::launched_ranks()); }) == "1");
  CHECK(launched({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
        "3/8 1/2");
  CHECK(launched({{"RANK", "3"}, {"WORLD_SIZE", "8"}}) == "3/8 0/1");
  CHECK(launched({{"DDPP_RANK", "1"}, {"DDPP_WORLD_SIZE", "2"}, {"RANK", "3"}, {"WORLD_SIZE", "8"}}) ==
        "1/2 0/1");
  CHECK(launched({{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                  {"PMIX_RANK", "1"}}) == "1/4 1/4");
  CHECK(launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}) == "0/2 0/1");
  CHECK(launched({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}) == "2/3 0/1");
  CHECK(launched({{"RANK", ""}, {"WORLD_SIZE", ""}}) == "0/1 0/1");
}

TEST_CASE("environment: Slurm's variables count inside srun steps only") {
  CHECK(launched(
            {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}}) ==
        "1/4 1/1");
  CHECK(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == "0/1 0/1");
  CHECK(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "4294967291"}}) ==
        "0/1 0/1");
  CHECK(says(launched({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}), "SLURM_NTASKS is not"));
}

TEST_CASE("environment: an Indexed Job's number stands for RANK, and only beside a size") {
  CHECK(launched({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}}) == "2/3 0/1");
  CHECK(launched({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}, {"RANK", "1"}}) == "1/3 0/1");
  CHECK(launched({{"JOB_COMPLETION_INDEX", "2"}}) == "0/1 0/1");
  CHECK(says(launched({{"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "3"}}),
             "JOB_COMPLETION_INDEX is 3, but WORLD_SIZE"));
}

TEST_CASE("environment: half a set and nonsense are errors that name the variable") {
  CHECK(says(launched({{"RANK", "1"}}), "init_error: RANK is set but WORLD_SIZE is not"));
  CHECK(says(launched({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set but RANK is not"));
  CHECK(says(launched({{"DDPP_RANK", "1"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}}), "DDPP_WORLD_SIZE is not"));
  CHECK(says(launched({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_RANK is not"));
  CHECK(says(launched({{"PMIX_RANK", "0"}}), "PMIX_RANK is set but nothing"));
  for (const char* nonsense : {"one", "-1", "1x", " 1", "0x1", "99999999999", "1.0"}) {
    const std::string text = launched({{"RANK", nonsense}, {"WORLD_SIZE", "2"}});
    CHECK(says(text, "init_error: RANK is \"" + std::string(nonsense) + "\""));
  }
  CHECK(says(launched({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK is 2, but WORLD_SIZE is 2"));
  CHECK(says(launched({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "RANK is 0, but WORLD_SIZE is 0"));
  CHECK(says(launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "x"}}), "LOCAL_RANK is \"x\""));
}

TEST_CASE("init method: what is in the string") {
  using kind = ddpp::detail::init_method::kind;
  const auto parse = [](const char* text) { return ddpp::detail::init_method_parser(text).parse(); };
  const auto tcp = parse("tcp://host.name:29500?rank=1&world_size=4");
  CHECK(tcp.is == kind::tcp);
  CHECK(tcp.host == "host.name");
  CHECK(tcp.port == 29500);
  CHECK(tcp.rank == 1);
  CHECK(tcp.world_size == 4);
  CHECK(parse("tcp://[::1]:80").host == "::1");
  CHECK(parse("tcp://127.0.0.1:80?world_size=4").rank == -1);
  CHECK(parse("file:///tmp/a b").path == "/tmp/a b");
  CHECK(parse("env://").is == kind::env);

  for (const char* text : {"",
                           "tcp",
                           "http://a:1",
                           "tcp://",
                           "tcp://host",
                           "tcp://host:",
                           "tcp://host:0",
                           "tcp://host:65536",
                           "tcp://host:1x",
                           "tcp://:80",
                           "tcp://::1:80",
                           "tcp://[::1]",
                           "file://relative",
                           "file://",
                           "env://x",
                           "tcp://h:1?rank",
                           "tcp://h:1?rank=",
                           "tcp://h:1?rank=-1",
                           "tcp://h:1?size=2",
                           "tcp://h:1?rank=1&rank=1"}) {
    CAPTURE(text);
    CHECK(says(parse_error(text), "\"" + std::string(text) + "\""));
  }
}

TEST_CASE("init: who and where, from options and environment") {
  CHECK(resolved({}) == "0/1 nowhere");
  CHECK(resolved({}, {.rank = 0, .world_size = 1}) == "0/1 nowhere");
  const variables torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  CHECK(resolved(torchrun) == "1/2 tcp node0 29500");
  CHECK(resolved(torchrun, {.init_method = "env://"}) == "1/2 tcp node0 29500");
  CHECK(resolved(torchrun, {.init_method = "tcp://here:1"}) == "1/2 tcp here 1");
  CHECK(resolved(torchrun, {.init_method = "file:///x", .rank = 4, .world_size = 5}) == "4/5 file /x");
  CHECK(resolved(torchrun, {.rank = 4, .world_size = 5}) == "4/5 tcp node0 29500");
  CHECK(resolved({}, {.init_method = "tcp://h:1?rank=2&world_size=3"}) == "2/3 tcp h 1");
  CHECK(resolved({}, {.init_method = "tcp://h:1?rank=2&world_size=3", .rank = 2}) == "2/3 tcp h 1");
  CHECK(resolved({}, {.init_method = "file:///x?rank=2", .world_size = 3}) == "2/3 file /x");
  const auto store = std::make_shared<ddpp::hash_store>();
  CHECK(resolved(torchrun, {.store = store}) == "1/2 store");
  CHECK(resolved({}, {.rank = 1, .world_size = 2, .store = store}) == "1/2 store");
  CHECK(resolved({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"DDPP_INIT_METHOD", "tcp://there:7"}}) ==
        "1/2 tcp there 7");
  CHECK(resolved({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"DDPP_INIT_METHOD", "tcp://there:7"}},
                 {.init_method = "file:///x"}) == "1/2 file /x");
}

TEST_CASE("init: launchers that name no meeting place, on one host") {
  const std::string one = resolved({{"OMPI_COMM_WORLD_RANK", "1"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                    {"PMIX_NAMESPACE", "12/34"}});
  CHECK(says(one, "1/2 file /tmp/ddpp-"));
  CHECK(says(one, "openmpi-12-34"));
  CHECK(says(resolved({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "12"}}),
             "init_error: there are several ranks, but MASTER_ADDR and MASTER_PORT are not set"));
  // torchrun's agent has taken MASTER_PORT for a store of its own.
  const std::string elastic = resolved({{"RANK", "1"},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "localhost"},
                                        {"MASTER_PORT", "29500"},
                                        {"TORCHELASTIC_RUN_ID", "run"},
                                        {"TORCHELASTIC_RESTART_COUNT", "0"},
                                        {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  CHECK(says(elastic, "1/2 file /tmp/ddpp-"));
  CHECK(says(elastic, "run-29500-0"));
  CHECK(says(resolved({{"RANK", "1"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "node0"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
             "init_error: MASTER_PORT is taken by torchrun's agent"));
}

TEST_CASE("init: contradictions and halves") {
  const auto store = std::make_shared<ddpp::hash_store>();
  CHECK(says(resolved({}, {.init_method = "env://", .store = store}),
             "usage_error: init: a store and an init method"));
  CHECK(says(resolved({}, {.rank = 0}), "init_error: init: rank is given but world_size is not"));
  CHECK(says(resolved({}, {.world_size = 2}), "init_error: init: world_size is given but rank is not"));
  CHECK(says(resolved({}, {.init_method = "tcp://h:1?rank=1"}), "world_size is not"));
  CHECK(says(resolved({}, {.init_method = "tcp://h:1?rank=1&world_size=2", .rank = 0}),
             "usage_error: init: rank is given twice"));
  CHECK(says(resolved({}, {.init_method = "tcp://h:1?world_size=3", .rank = 0, .world_size = 2}),
             "usage_error: init: world_size is given twice"));
  CHECK(says(resolved({}, {.rank = 2, .world_size = 2}), "init_error: rank is 2, but world_size is 2"));
  CHECK(says(resolved({}, {.rank = -7, .world_size = 2}), "init_error: init: rank -7"));
  CHECK(says(resolved({}, {.rank = 0, .world_size = 0}), "init_error: init: world_size 0"));
  for (const char* method : {"tcp://h:1", "file:///x"}) {
    CHECK(says(resolved({}, {.init_method = method}),
               "init_error: init: a store, tcp:// and file:// need rank"));
  }
  CHECK(says(resolved({}, {.store = store}), "init_error"));
  CHECK(says(resolved({}, {.rank = 0, .world_size = 2}), "MASTER_ADDR and MASTER_PORT are not set"));
  CHECK(says(resolved({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "MASTER_ADDR and MASTER_PORT are not set"));
  CHECK(says(resolved({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}),
             "MASTER_ADDR is set but MASTER_PORT is not"));
  CHECK(says(resolved({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}),
             "MASTER_PORT is set but MASTER_ADDR is not"));
  for (const char* port : {"0", "65536", "x", "-1"}) {
    CHECK(says(resolved({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", port}}),
               "init_error: MASTER_PORT is "));
  }
  CHECK(says(
      resolved({{"RANK", "0"}, {"WORLD_SIZE", "1000000000"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}),
      "init_error: init: 1000000000 ranks are too many"));
  CHECK(says(resolved({}, {.timeout = 0ms}), "usage_error: init: timeouts"));
  CHECK(says(resolved({}, {.init_timeout = -1s}), "usage_error: init: timeouts"));
}

TEST_CASE("a group forms, and the next one under the same key is another") {
  ddpp::hash_store store;
  std::string last;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> nonces(4);
    for (const std::string& text :
         on_threads(4, [&](int rank) { nonces[std::size_t(rank)] = join(store, rank, 4); })) {
      CHECK(text == "");
    }
    for (const std::string& nonce : nonces) CHECK(nonce == nonces[0]);
    CHECK(nonces[0] != last);
    last = nonces[0];
  }
}

TEST_CASE("groups form while others do, told apart by name, and one after the other without a pause") {
  ddpp::hash_store store;
  std::vector<std::vector<std::string>> nonces(3);
  const auto thrown = on_threads(3, [&](int rank) {
    std::string of_a, of_b;
    std::thread a([&] { of_a = join(store, rank, 3, 20s, "a"); });
    std::thread b([&] { of_b = join(store, rank, 3, 20s, "b"); });
    auto& mine = nonces[std::size_t(rank)];
    for (int i = 0; i < 30; ++i) mine.push_back(join(store, rank, 3));
    a.join();
    b.join();
    mine.push_back(of_a);
    mine.push_back(of_b);
  });
  for (const std::string& text : thrown) CHECK(text == "");
  CHECK(nonces[0] == nonces[1]);
  CHECK(nonces[0] == nonces[2]);
  CHECK(nonces[0][30] != nonces[0][31]);
}

TEST_CASE("a group is not misled by what an earlier run has left") {
  ddpp::hash_store store;
  // An earlier run: rank 0 had published and rank 1 had come, then they died.
  store.set("ddpp/group", "stale");
  store.add("stale/rank/1", 1);
  std::vector<std::string> nonces(3);
  const auto thrown = on_threads(3, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(50ms);  // so that the others read the stale nonce first
    nonces[std::size_t(rank)] = join(store, rank, 3);
  });
  for (const std::string& text : thrown) CHECK(text == "");
  CHECK(nonces[0] != "stale");
  CHECK(nonces[1] == nonces[0]);
  CHECK(nonces[2] == nonces[0]);

  // A run that gave up with a timeout does not end the next one.
  CHECK(says(text_of<ddpp::timeout_error>([&] { join(store, 0, 2, 50ms); }), "rank 1"));
  for (const std::string& text : on_threads(2, [&](int rank) { join(store, rank, 2); })) CHECK(text == "");
}

TEST_CASE("a store that lives on keeps nothing of groups that are past") {
  ddpp::tcp_store served("127.0.0.1", 0, ddpp::tcp_store::server, {.timeout = 20s});
  const std::string url = "tcp://127.0.0.1:" + std::to_string(served.port());
  const std::string path = scratch_path();
  const auto file = std::make_shared<ddpp::file_store>(path, 20s);
  const auto shared = std::make_shared<ddpp::hash_store>(20s);
  for (const ddpp::init_options& where :
       {ddpp::init_options{.init_method = url}, {.init_method = "file://" + path}, {.store = shared}}) {
    for (const std::string& text : on_threads(3, [&](int rank) {
           for (int i = 0; i < 3; ++i) {
             ddpp::init_options mine = where;
             mine.rank = rank;
             mine.world_size = 3;
             mine.timeout = 20s;
             ddpp::detail::settle(come_together(mine), [] { return false; });
           }
         })) {
      CHECK(text == "");
    }
  }
  for (ddpp::store* each : {static_cast<ddpp::store*>(&served), static_cast<ddpp::store*>(file.get()),
                            static_cast<ddpp::store*>(shared.get())}) {
    CHECK(each->num_keys() == 0);
  }
}

TEST_CASE("who has a rank that is taken is told so, too, when the group has formed without it") {
  ddpp::tcp_store served("127.0.0.1", 0, ddpp::tcp_store::server, {.timeout = 20s});
  std::string nonce;
  for (const std::string& text : on_threads(2, [&](int rank) {
         ddpp::detail::group_formation forming(served, "", rank, 2, ddpp::detail::deadline_after(20s), 20s);
         ddpp::detail::gathering group;
         group.boot.rank = rank;
         group.boot.size = 2;
         const std::string mine = forming.run();
         if (rank == 0) nonce = mine;
         group.boot.store = std::make_shared<ddpp::prefix_store>(
             mine, std::make_shared<ddpp::tcp_store>("127.0.0.1", served.port()));
         group.mine = std::make_shared<ddpp::detail::presence>(forming.take_presence());
         ddpp::detail::settle(group, [] { return false; });
       })) {
    CHECK(text == "");
  }
  REQUIRE(served.num_keys() == 0);
  served.set("ddpp/group", nonce);  // as the late one has read it
  CHECK(says(text_of<ddpp::init_error>([&] { join(served, 1, 2); }), "two processes are rank 1"));
}

TEST_CASE("a timeout names the ranks that have not come, on every rank") {
  ddpp::hash_store store;
  const auto thrown = on_threads(5, [&](int rank) {
    if (rank != 1 && rank != 2) join(store, rank, 5, rank == 0 ? 2s : 20s);
  });
  for (const int rank : {0, 3, 4}) {
    CAPTURE(thrown[std::size_t(rank)]);
    CHECK(says(thrown[std::size_t(rank)], "timeout_error: rank 1, rank 2 have not come within 2 s"));
  }
  // Without rank 0 nobody has published anything.
  for (const std::string& text : on_threads(2, [&](int rank) { join(store, rank + 1, 3, 100ms); })) {
    CHECK(says(text, "timeout_error: rank 0 has not come within 100 ms"));
  }
  // One of the others may be the first to lose patience: nobody waits longer.
  const auto impatient = on_threads(2, [&](int rank) {
    if (rank == 1) store.wait({"ddpp/group"});  // rank 0 has come
    join(store, rank, 3, rank == 0 ? 20s : 100ms);
  });
  CHECK(says(impatient[1], "timeout_error: rank 2 has not come within 100 ms"));
  CHECK(says(impatient[0], "timeout_error: rank 2 has not come within 100 ms"));
}

TEST_CASE("two processes with one rank: an error that names it, on every rank, at once") {
  ddpp::hash_store store;
  const int ranks[] = {0, 1, 1, 3};  // of 4: rank 2 is missing
  auto thrown = on_threads(4, [&](int i) { join(store, ranks[i], 4); });
  for (const std::string& text : thrown) CHECK(says(text, "init_error: two processes are rank 1 of 4"));
  thrown = on_threads(3, [&](int i) { join(store, i == 2 ? 2 : 0, 4); });
  for (const std::string& text : thrown) CHECK(says(text, "init_error: two processes are rank 0 of 4"));
}

TEST_CASE("different ideas of how many ranks there are: an error that says so, on every rank, at once") {
  ddpp::hash_store store;
  auto thrown = on_threads(3, [&](int rank) { join(store, rank, rank == 2 ? 4 : 3); });
  for (const std::string& text : thrown)
    CHECK(says(text, "init_error: rank 2 counts 4 ranks, rank 0 counts 3"));
  // Rank 0 serves the store, and does not end before all have heard.
  const std::string url = unused_url();
  thrown = on_threads(3, [&](int rank) {
    come_together({.init_method = url, .rank = rank, .world_size = rank == 2 ? 4 : 3, .timeout = 20s});
  });
  for (const std::string& text : thrown) {
    CAPTURE(text);
    CHECK(says(text, "init_error: rank 2 counts 4 ranks, rank 0 counts 3"));
  }
}

TEST_CASE("ranks meet at a tcp address, which one of them serves, again and again") {
  const std::string url = unused_url();
  const auto thrown = on_threads(3, [&](int rank) {
    for (int i = 0; i < 30; ++i) {
      const auto group = come_together({.init_method = url, .rank = rank, .world_size = 3, .timeout = 20s});
      CHECK(group.boot.host == "127.0.0.1");
      meet(group);
    }
  });
  for (const std::string& text : thrown) CHECK(text == "");
}

TEST_CASE("100 times on one port, as processes: no address in use, no stale server") {
  const std::string url = unused_url();
  ddpp::spawn(2, [&](int rank) {
    for (int i = 0; i < 100; ++i) {
      meet(come_together({.init_method = url, .rank = rank, .world_size = 2, .timeout = 20s}));
    }
  });
}

TEST_CASE("several groups at once at one address, and a store that is served already") {
  ddpp::tcp_store server("127.0.0.1", 0, ddpp::tcp_store::server);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(server.port());
  ddpp::spawn(3, [&](int rank) {
    const auto one = come_together({.init_method = url, .rank = rank, .world_size = 3, .timeout = 20s});
    const auto two =
        come_together({.init_method = url, .rank = rank, .world_size = 3, .timeout = 20s, .group_name = "b"});
    const auto by_env = come_together({.timeout = 20s});
    meet(two);
    meet(one);
    meet(by_env);
  });
  CHECK(server.num_keys() > 0);
}

TEST_CASE("ranks meet in a file, which is gone afterwards; a stale one does no harm") {
  const std::string path = scratch_path();
  for (int round = 0; round < 3; ++round) {
    if (round == 1) {  // all died while they formed a group
      const pid_t child = ::fork();
      if (child == 0) {
        ddpp::file_store left(path);
        left.set("ddpp/group", "stale");
        left.add("stale/rank/1", 1);
        ::raise(SIGKILL);
      }
      ::waitpid(child, nullptr, 0);
      REQUIRE(std::filesystem::exists(path));
    }
    ddpp::spawn(3, [&](int rank) {
      meet(come_together({.init_method = "file://" + path, .rank = rank, .world_size = 3, .timeout = 20s}));
    });
    CHECK_FALSE(std::filesystem::exists(path));
  }
}

enum class ending { well, killed, never };

/// A rank of two that looks for what an earlier run has said, says something, and ends in this way; 2 if it
/// has seen something. `url` empty: as torchrun starts it, under the same id each time.
pid_t start_rank(const std::string& url, int rank, ending how) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  const std::string number = std::to_string(rank), id = "ddpp-test-" + std::to_string(::getppid());
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"RANK", number},
                                                                  {"LOCAL_RANK", number},
                                                                  {"WORLD_SIZE", "2"},
                                                                  {"LOCAL_WORLD_SIZE", "2"},
                                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                                  {"MASTER_PORT", "29500"},
                                                                  {"TORCHELASTIC_RUN_ID", id},
                                                                  {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"}}) {
    ::setenv(name, value.c_str(), 1);
  }
  int status = 1;
  try {
    const auto group = come_together({.init_method = url, .timeout = 20s});
    ddpp::store& store = *group.boot.store;
    status = store.check({"word"}) || store.check({"looked 0", "looked 1"}) ? 2 : 0;
    store.set("looked " + number, "");
    store.wait({"looked 0", "looked 1"});
    store.set("word", "of this run");
    if (how == ending::well) ddpp::detail::settle(group, [] { return false; });
    if (how == ending::killed && status == 0) ::raise(SIGKILL);
    while (how == ending::never) ::pause();
  } catch (...) {
    status = status == 2 ? 2 : 1;
  }
  ::_exit(status);
}

TEST_CASE("the same run again: after success, after a crash, and while a rank of the crashed one lingers") {
  const auto status_of = [](pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  };
  const std::string path = scratch_path();
  for (const std::string& url : {"file://" + path, std::string(), unused_url()}) {
    CAPTURE(url);
    std::vector<pid_t> lingering;
    for (const ending how : {ending::well, ending::well, ending::killed, ending::well, ending::never,
                             ending::well, ending::well}) {
      if (how == ending::never && url != "file://" + path) continue;
      const pid_t rank_0 = start_rank(url, 0, how == ending::never ? ending::well : how);
      const pid_t rank_1 = start_rank(url, 1, how);
      const int expected = how == ending::killed ? 256 + SIGKILL : 0;
      CHECK(status_of(rank_0) == expected);
      if (how == ending::never) {
        lingering.push_back(rank_1);
        continue;
      }
      const int other = status_of(rank_1);
      const bool lost_the_store = how == ending::killed && other == 1;  // it was in rank 0
      CHECK((lost_the_store || other == expected));
    }
    for (const pid_t each : lingering) {
      ::kill(each, SIGKILL);
      CHECK(status_of(each) == 256 + SIGKILL);
    }
  }
  CHECK(std::filesystem::exists(path));  // as the one that lingered was killed
  std::filesystem::remove(path);
}

TEST_CASE("a store that the user made, threads and processes") {
  const auto shared = std::make_shared<ddpp::hash_store>();
  for (const std::string& text : on_threads(3, [&](int rank) {
         meet(come_together({.rank = rank, .world_size = 3, .timeout = 20s, .store = shared}));
       })) {
    CHECK(text == "");
  }
  const std::string path = scratch_path();
  {
    const auto file = std::make_shared<ddpp::file_store>(path, 20s);
    ddpp::spawn(2, [&](int) { meet(come_together({.timeout = 20s, .store = file})); });
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("an address where nobody comes: bounded, and named") {
  const std::string url = unused_url();
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = text_of<ddpp::timeout_error>([&] {
    come_together({.init_method = url, .rank = 1, .world_size = 2, .timeout = 20s, .init_timeout = 300ms});
  });
  CHECK(says(text, url.substr(6)));
  CHECK(says(text, "rank 0 has not come"));
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
  CHECK(says(text_of<ddpp::timeout_error>([&] {
               come_together({.init_method = url, .rank = 0, .world_size = 3, .init_timeout = 300ms});
             }),
             "rank 1, rank 2 have not come within 300 ms"));
  CHECK_THROWS_AS(come_together({.init_method = "file:///nonexistent/store", .rank = 0, .world_size = 2}),
                  ddpp::init_error);
}

TEST_CASE("an address that is taken, or not this host's: an error that says so") {
  const ddpp::detail::store_listener silent("127.0.0.1", 0);  // accepts, and never says a word
  const std::string url = "tcp://127.0.0.1:" + std::to_string(silent.port());
  const auto text = text_of<ddpp::init_error>(
      [&] { come_together({.init_method = url, .rank = 0, .world_size = 2, .init_timeout = 700ms}); });
  CHECK(says(text, url.substr(6)));
  CHECK(says(text, "nobody else serves a store there"));
  CHECK(says(text_of<ddpp::timeout_error>([&] {
               come_together({.init_method = url, .rank = 1, .world_size = 2, .init_timeout = 300ms});
             }),
             url.substr(6)));
  for (const char* elsewhere : {"tcp://192.0.2.1:29500", "tcp://no.such.host.invalid:29500"}) {
    CHECK(says(text_of<ddpp::init_error>([&] {
                 come_together({.init_method = elsewhere, .rank = 0, .world_size = 2, .init_timeout = 600ms});
               }),
               "could not listen"));
  }
}

TEST_CASE("an address that is taken for a moment only") {
  auto passing = std::make_unique<ddpp::detail::store_listener>("127.0.0.1", 0);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(passing->port());
  std::thread leaving([&] {
    std::this_thread::sleep_for(100ms);
    passing.reset();
  });
  for (const std::string& text : on_threads(2, [&](int rank) {
         meet(come_together({.init_method = url, .rank = rank, .world_size = 2, .timeout = 20s}));
       })) {
    CHECK(text == "");
  }
  leaving.join();
}

/// Until rank 1, and so rank 0, whose nonce it has read, has come there.
void await_rank_1(const std::string& url) {
  const auto place = ddpp::detail::init_method_parser(url).parse();
  std::unique_ptr<ddpp::store> meeting;
  if (place.is == ddpp::detail::init_method::kind::tcp) {
    meeting = std::make_unique<ddpp::tcp_store>(place.host, static_cast<std::uint16_t>(place.port));
  } else {
    meeting = std::make_unique<ddpp::file_store>(place.path);
  }
  meeting->wait({meeting->get("ddpp/group") + "/rank/1"}, 60s);
}

/// Rank `victim` of three comes and is killed while rank `waiting`, in this process, waits for the third.
/// What that is told.
std::string told_of_death(const std::string& url, int victim, int waiting) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      come_together({.init_method = url, .rank = victim, .world_size = 3});
    } catch (...) {
    }
    ::_exit(0);
  }
  const ddpp::detail::joining_thread killer([&] {
    try {
      await_rank_1(url);
    } catch (const ddpp::error&) {  // what is told says more
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  });
  return text_of<ddpp::peer_lost>(
      [&] { come_together({.init_method = url, .rank = waiting, .world_size = 3, .timeout = 60s}); });
}

TEST_CASE("a rank dies while the others wait: they are told at once") {
  for (const std::string& url : {unused_url(), "file://" + scratch_path()}) {
    CHECK(says(told_of_death(url, 0, 1), "rank 0 died"));
    CHECK(says(told_of_death(url, 1, 0), "rank 1 died"));
  }
}

/// Seconds from before the first fork until all ranks have come together over tcp and met at a barrier.
double seconds_to_start(int ranks) {
  const auto begin = std::chrono::steady_clock::now();
  ddpp::spawn(ranks, [](int) {
    auto comm = ddpp::init<ddpp::tcp>({.timeout = 300s});
    ddpp::barrier(comm);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%d ranks have started, met and ended within %.2f s\n", ranks, seconds);
  return seconds;
}

TEST_CASE(
    "many ranks on one machine start in seconds, and their time grows with their number, not its square" *
    doctest::timeout(600)) {
  const char* const full = std::getenv("DDPP_TEST_FULL");
  const int most = full != nullptr && *full != '\0' ? 256 : 64;
  const double few = seconds_to_start(most / 4);
  double many = seconds_to_start(most);
  // Where the machine itself paused, once more; what grows with the square of the ranks does so each time.
  for (int tries = 1; tries < 3 && many >= 12 * few + 2; ++tries) many = seconds_to_start(most);
  CHECK(many < 12 * few + 2);
  CHECK(many < 120);
}

TEST_CASE("a world of one meets nobody") {
  CHECK(with_environment({}, [] {
          const auto boot = come_together({}).boot;
          return std::to_string(boot.rank) + std::to_string(boot.size) + (boot.store ? "store" : "");
        }) == "01");
  CHECK(with_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}},
                         [] { return std::to_string(come_together({}).boot.size); }) == "1");
}
