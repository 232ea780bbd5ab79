// SPDX-License-Identifier: BSL-1.0
// What every store does, and how those in one process and in a file do it.
#include <ddpp/detail/log_store.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/prefix_store.hpp>
#include <ddpp/tcp_store.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../support/process.hpp"
#include "../support/ranks.hpp"

using support::in_child;
using support::says;
using support::scratch_directory;
using support::text_of;

using namespace std::chrono_literals;
using strings = std::vector<std::string>;

namespace {

/// Two handles to the same store, as two ranks would have them.
struct two_views {
  std::shared_ptr<ddpp::store> a, b;
};

/// As the ranks of a launch inherit it.
class anonymous_file {
 public:
  anonymous_file() : fd_(::memfd_create("test", MFD_CLOEXEC)) { REQUIRE(fd_ >= 0); }
  ~anonymous_file() { ::close(fd_); }
  anonymous_file(const anonymous_file&) = delete;
  anonymous_file& operator=(const anonymous_file&) = delete;

  std::shared_ptr<ddpp::store> open(std::chrono::milliseconds timeout = 20s) const {
    return std::make_shared<ddpp::detail::log_store>(ddpp::detail::log_place{"of this test", fd_}, timeout);
  }

 private:
  int fd_;
};

void for_each_store(const std::function<void(two_views)>& test) {
  SUBCASE("hash_store") {
    const auto store = std::make_shared<ddpp::hash_store>(20s);
    test({store, store});
  }
  SUBCASE("file_store") {
    const scratch_directory here;
    test({std::make_shared<ddpp::file_store>(here.file("store"), 20s),
          std::make_shared<ddpp::file_store>(here.file("store"), 20s)});
  }
  SUBCASE("log_store in an anonymous file") {
    const anonymous_file file;
    test({file.open(), file.open()});
  }
  SUBCASE("tcp_store") {
    const auto server = std::make_shared<ddpp::tcp_store>("127.0.0.1", 0, ddpp::tcp_store::server,
                                                          ddpp::tcp_store_options{20s});
    test({server, std::make_shared<ddpp::tcp_store>("127.0.0.1", server->port(), ddpp::tcp_store::client,
                                                    ddpp::tcp_store_options{20s})});
  }
  SUBCASE("prefix_store") {
    const auto base = std::make_shared<ddpp::hash_store>(20s);
    test({std::make_shared<ddpp::prefix_store>("group", base),
          std::make_shared<ddpp::prefix_store>("group", base)});
  }
}

}  // namespace

TEST_CASE("a store: values") {
  for_each_store([](two_views store) {
    const std::string bytes("\0\n\xff any", 7);
    store.a->set("key", bytes);
    CHECK(store.b->get("key") == bytes);
    store.b->set("key", "");
    CHECK(store.a->get("key").empty());
    store.a->append("key", "one");
    store.b->append("key", "two");
    store.b->append("new", "x");
    CHECK(store.a->multi_get({"new", "key"}) == strings{"x", "onetwo"});
    store.a->multi_set({"p", "q"}, {"1", "2"});
    CHECK(store.b->check({"p", "q", "key"}));
    CHECK(store.b->check({}));
    CHECK_FALSE(store.b->check({"p", "missing"}));
    CHECK(store.a->num_keys() == 4);
    CHECK(store.a->delete_key("p"));
    CHECK_FALSE(store.b->delete_key("p"));
    CHECK(store.b->num_keys() == 3);
    CHECK_THROWS_AS(store.a->multi_set({"one"}, {"1", "2"}), ddpp::usage_error);
    const std::string big(3'000'000, 'b');
    store.a->set("big", big);
    CHECK(store.b->get("big") == big);
  });
}

TEST_CASE("a store: counters and compare_set") {
  for_each_store([](two_views store) {
    CHECK(store.a->add("n", 0) == 0);
    CHECK(store.b->add("n", 40) == 40);
    CHECK(store.a->add("n", -42) == -2);
    CHECK(store.b->get("n") == "-2");
    store.a->set("word", "five");
    CHECK(says(text_of<ddpp::usage_error>([&] { store.b->add("word", 1); }), "word"));
    store.a->set("full", "9223372036854775807");
    CHECK_THROWS_AS(store.b->add("full", 1), ddpp::usage_error);
    CHECK(store.a->get("full") == "9223372036854775807");

    CHECK(store.a->compare_set("lock", "", "mine") == "mine");
    CHECK(store.b->compare_set("lock", "", "yours") == "mine");
    CHECK(store.b->compare_set("lock", "mine", "yours") == "yours");
    CHECK(store.a->compare_set("never", "something", "else").empty());
    CHECK_FALSE(store.a->check({"never"}));
    store.a->set("empty", "");
    CHECK(store.b->compare_set("empty", "", "now") == "now");
  });
}

TEST_CASE("a store: queues are first-in first-out and no keys") {
  for_each_store([](two_views store) {
    CHECK(store.a->queue_length("q") == 0);
    store.a->queue_push("q", "first");
    store.b->queue_push("q", "");
    store.a->queue_push("q", "third");
    CHECK(store.b->queue_length("q") == 3);
    CHECK_FALSE(store.b->check({"q"}));
    CHECK(store.b->queue_pop("q") == "first");
    CHECK(store.a->queue_pop("q").empty());
    CHECK(store.b->queue_pop("q") == "third");
    CHECK(store.a->queue_length("q") == 0);
    std::thread later([&] { store.a->queue_push("q", "late"); });
    CHECK(store.b->queue_pop("q") == "late");
    later.join();
  });
}

TEST_CASE("a store: waiting ends when the last key comes, or at the timeout, which names what is missing") {
  for_each_store([](two_views store) {
    std::thread later([&] {
      store.a->set("one", "1");
      store.a->set("two", "2");
    });
    store.b->wait({"two", "one"});
    later.join();

    const auto begin = std::chrono::steady_clock::now();
    CHECK(says(text_of<ddpp::timeout_error>([&] { store.b->wait({"one", "never"}, 60ms); }), "never"));
    CHECK(std::chrono::steady_clock::now() - begin >= 60ms);
    CHECK_THROWS_AS(store.b->wait({"never"}, 0ms), ddpp::timeout_error);
    CHECK_THROWS_AS(store.b->wait({"never"}, -5ms), ddpp::timeout_error);
    store.b->wait({"one"}, 0ms);
    store.b->wait({"one"}, std::chrono::milliseconds::max());

    CHECK(store.a->timeout() == 20s);
    store.a->set_timeout(30ms);
    CHECK(store.a->timeout() == 30ms);
    CHECK_THROWS_AS(store.a->get("never"), ddpp::timeout_error);
    CHECK_THROWS_AS(store.a->multi_get({"one", "never"}), ddpp::timeout_error);
    CHECK(says(text_of<ddpp::timeout_error>([&] { store.a->queue_pop("no queue"); }), "no queue"));
    store.a->set_timeout(20s);
    CHECK(store.a->get("one") == "1");
  });
}

TEST_CASE("a store: many threads at once lose nothing") {
  for_each_store([](two_views store) {
    constexpr int threads = 6, each = 30;
    std::vector<std::thread> running;
    std::atomic<int> popped{0};
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        ddpp::store& mine = t % 2 ? *store.a : *store.b;
        for (int i = 0; i < each; ++i) {
          mine.add("count", 1);
          mine.append("bytes", "x");
          mine.queue_push("queue", "y");
          popped += static_cast<int>(mine.queue_pop("queue").size());
          mine.set("thread " + std::to_string(t), std::to_string(i));
        }
        mine.wait({"thread 0", "thread 1", "thread 2", "thread 3", "thread 4", "thread 5"});
      });
    }
    for (std::thread& thread : running) thread.join();
    CHECK(store.a->add("count", 0) == threads * each);
    CHECK(store.b->get("bytes").size() == threads * each);
    CHECK(popped == threads * each);
    CHECK(store.b->queue_length("queue") == 0);
  });
}

TEST_CASE("prefix_store: name spaces do not meet") {
  const auto base = std::make_shared<ddpp::hash_store>();
  ddpp::prefix_store a("a", base), b("b", base), inner("b", std::make_shared<ddpp::prefix_store>("a", base));
  a.set("key", "of a");
  b.set("key", "of b");
  inner.set("key", "of a/b");
  CHECK(a.get("key") == "of a");
  CHECK(base->multi_get({"a/key", "b/key", "a/b/key"}) == strings{"of a", "of b", "of a/b"});
  CHECK(a.get("b/key") == "of a/b");
  CHECK(a.num_keys() == 3);
  a.set_timeout(7s);
  CHECK(base->timeout() == 7s);
}

TEST_CASE("hash_store: fail ends those who wait and those who come later, with its reason") {
  ddpp::hash_store store(20s);
  std::string text;
  std::thread waiting([&] { text = text_of<ddpp::init_error>([&] { store.get("never"); }); });
  store.fail("rank 2 has gone");
  store.fail("a second reason");
  waiting.join();
  CHECK(text == "rank 2 has gone");
  CHECK(text_of<ddpp::init_error>([&] { store.set("key", "value"); }) == "rank 2 has gone");
}

TEST_CASE("file_store: the last to leave removes the file") {
  const scratch_directory here;
  {
    ddpp::file_store first(here.file("store"));
    struct stat status {};
    REQUIRE(::stat(here.file("store").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    first.set("key", "value");
    { ddpp::file_store second(here.file("store")); }
    CHECK(std::filesystem::exists(here.file("store")));
    CHECK(in_child([&] { return ddpp::file_store(here.file("store")).get("key") == "value" ? 0 : 1; }) == 0);
    CHECK(std::filesystem::exists(here.file("store")));
  }
  CHECK_FALSE(std::filesystem::exists(here.file("store")));
  ddpp::file_store again(here.file("store"));
  CHECK_FALSE(again.check({"key"}));
}

TEST_CASE("file_store: removed and made anew by many at once, all meet in one file") {
  const scratch_directory here;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      try {
        for (int i = 0; i < 200; ++i) {
          ddpp::file_store store(here.file("store"), 20s);
          store.add("n", 1);
          if (!std::filesystem::exists(here.file("store"))) ++failures;
        }
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK_FALSE(std::filesystem::exists(here.file("store")));
}

TEST_CASE("file_store: those who leave at the same moment remove the file, too") {
  const scratch_directory here;
  for (int round = 0; round < 60; ++round) {
    std::atomic<int> ready{0};
    const auto leave_together = [&] {
      ddpp::file_store store(here.file("store"), 20s);
      ++ready;
      while (ready < 3) std::this_thread::yield();
    };
    std::thread a(leave_together), b(leave_together), c(leave_together);
    a.join();
    b.join();
    c.join();
    REQUIRE_FALSE(std::filesystem::exists(here.file("store")));
  }
}

TEST_CASE("file_store: what a writer killed in mid-record has left is ignored and cut off") {
  const scratch_directory here;
  ddpp::file_store store(here.file("store"), 20s);
  store.set("whole", "value");
  const auto intact = std::filesystem::file_size(here.file("store"));
  store.set("torn", std::string(1000, 't'));
  const auto whole = std::filesystem::file_size(here.file("store"));
  for (const std::uintmax_t length : {intact + 1, intact + 23, intact + 24, intact + 29, whole - 1}) {
    std::filesystem::resize_file(here.file("store"), length);
    ddpp::file_store reader(here.file("store"), 20s);
    CHECK(reader.get("whole") == "value");
    CHECK_FALSE(reader.check({"torn"}));
  }
  std::ofstream(here.file("store"), std::ios::app) << std::string(500, '\xee');
  ddpp::file_store writer(here.file("store"), 20s);
  writer.set("after", "the tear");
  CHECK(ddpp::file_store(here.file("store")).multi_get({"whole", "after"}) == strings{"value", "the tear"});
  CHECK(std::filesystem::file_size(here.file("store")) < whole);
}

TEST_CASE("file_store: killed writers, at any moment, take nothing with them but their last change") {
  const scratch_directory here;
  ddpp::file_store store(here.file("store"), 20s);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ddpp::file_store mine(here.file("store"), 20s);
      for (;;) {
        mine.append("letters", std::string(5000, 'x'));
        mine.add("count", 1);
      }
    }
    const auto before = store.add("count", 0);
    while (store.add("count", 0) < before + 3) std::this_thread::sleep_for(1ms);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto letters = static_cast<std::int64_t>(store.get("letters").size());
    const auto count = store.add("count", 0);
    CHECK(letters % 5000 == 0);
    CHECK(letters / 5000 >= count);
    CHECK(letters / 5000 <= count + round + 1);
  }
}

TEST_CASE("file_store: nobody waits for a process that died with the file open") {
  const scratch_directory here;
  CHECK(in_child([&] {
          ddpp::file_store mine(here.file("store"));
          mine.set("from", "the dead");
          return ::raise(SIGKILL);
        }) == 256 + SIGKILL);
  CHECK(std::filesystem::exists(here.file("store")));  // its contents outlive it
  {
    ddpp::file_store store(here.file("store"), 20s);
    CHECK(store.get("from") == "the dead");
  }
  CHECK_FALSE(std::filesystem::exists(here.file("store")));
}

TEST_CASE("file_store: whoever keeps the file locked costs the others their timeout, not more") {
  const scratch_directory here;
  ddpp::file_store store(here.file("store"), 50ms);
  const int fd = ::open(here.file("store").c_str(), O_RDWR | O_CLOEXEC);
  struct flock everything {};
  everything.l_type = F_WRLCK;
  everything.l_start = off_t{1} << 62;
  everything.l_len = 1;
  REQUIRE(::fcntl(fd, F_OFD_SETLK, &everything) == 0);
  CHECK(says(text_of<ddpp::timeout_error>([&] { store.set("key", "value"); }), "locked"));
  ::close(fd);
  store.set("key", "value");
}

TEST_CASE("file_store: works in forked children, who open the file themselves") {
  const scratch_directory here;
  {
    ddpp::file_store store(here.file("store"), 20s);
    store.set("before", "fork");
    CHECK(in_child([&] {
            const bool seen = store.get("before") == "fork";
            store.set("child", "was here");
            store.~file_store();
            return seen ? 0 : 1;
          }) == 0);
    CHECK(store.get("child") == "was here");
    CHECK(std::filesystem::exists(here.file("store")));
    CHECK(in_child([&] { return store.~file_store(), 0; }) == 0);  // never used there
    CHECK(std::filesystem::exists(here.file("store")));
  }
  CHECK_FALSE(std::filesystem::exists(here.file("store")));
}

TEST_CASE("file_store: refuses what is not its own") {
  const scratch_directory here;
  const auto refusal = [](const std::string& path) {
    return text_of<ddpp::init_error>([&] { ddpp::file_store store(path, 1s); });
  };
  std::ofstream(here.file("target")).flush();
  std::filesystem::create_symlink(here.file("target"), here.file("link"));
  CHECK(says(refusal(here.file("link")), "symbolic link"));
  std::filesystem::create_symlink(here.file("nowhere"), here.file("dangling"));
  CHECK(says(refusal(here.file("dangling")), "symbolic link"));
  CHECK_FALSE(std::filesystem::exists(here.file("nowhere")));
  std::ofstream(here.file("letter")) << "dear reader, this is a letter";
  CHECK(says(refusal(here.file("letter")), "something else"));
  CHECK(std::filesystem::file_size(here.file("letter")) == 29);
  std::filesystem::create_directory(here.file("directory"));
  CHECK(says(refusal(here.file("directory")), "directory"));
  CHECK(says(refusal(here.file("missing/store")), "missing/store"));
  CHECK(says(refusal("/dev/null"), "no regular file"));
  REQUIRE(::mkfifo(here.file("fifo").c_str(), 0600) == 0);
  CHECK(says(refusal(here.file("fifo")), "no regular file"));
  std::ofstream(here.file("open")).flush();
  ::chmod(here.file("open").c_str(), 0666);
  CHECK(says(refusal(here.file("open")), "other users"));
  if (::geteuid() == 0) {
    std::ofstream(here.file("foreign")).flush();
    REQUIRE(::chown(here.file("foreign").c_str(), 12345, 12345) == 0);
    CHECK(says(refusal(here.file("foreign")), "user 12345"));
  }
  std::ofstream(here.file("empty")).flush();  // as mktemp leaves it
  ::chmod(here.file("empty").c_str(), 0600);
  CHECK(refusal(here.file("empty")).empty());
}

TEST_CASE("file_store: a full file system is an error that names the file, and the store works on") {
  const scratch_directory here;
  CHECK(in_child([&] {
          ::signal(SIGXFSZ, SIG_IGN);
          ddpp::file_store store(here.file("store"), 5s);
          store.set("small", "value");
          const rlimit limit{100'000, 100'000};
          ::setrlimit(RLIMIT_FSIZE, &limit);
          const std::string text =
              text_of<ddpp::resource_error>([&] { store.set("large", std::string(200'000, 'l')); });
          if (!says(text, here.file("store"))) return 1;
          store.set("after", "it");
          return store.multi_get({"small", "after"}) == strings{"value", "it"} && !store.check({"large"}) ? 0
                                                                                                          : 2;
        }) == 0);
}

TEST_CASE(
    "log_store in an anonymous file: forked children open it themselves, and one killed in it holds up "
    "nobody") {
  const anonymous_file file;
  const std::shared_ptr<ddpp::store> mine = file.open();
  mine->set("from", "parent");
  for (int i = 0; i < 20; ++i) {
    const int ended = in_child([&] {
      const auto anew = file.open();
      if (anew->get("from") != "parent" || mine->get("from") != "parent") return 1;
      std::thread([] {
        std::this_thread::sleep_for(2ms);
        ::raise(SIGKILL);
      }).detach();
      for (;;) (i % 2 ? mine : anew)->append("log", "x");
    });
    CHECK(ended == 256 + SIGKILL);
    mine->set("from", "parent");
  }
  CHECK(mine->get("log").find_first_not_of('x') == std::string::npos);
}

TEST_CASE("log_store in an anonymous file: without that file, an error that names /proc") {
  const ddpp::detail::log_place nowhere{"of this test", 999'999};
  CHECK(says(text_of<ddpp::init_error>([&] { ddpp::detail::log_store(nowhere, 1s); }), "through /proc"));
}
