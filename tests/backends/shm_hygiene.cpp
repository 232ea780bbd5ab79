// SPDX-License-Identifier: BSL-1.0
// Shared memory where there is little of it, where parts of the system are forbidden, where others have been
// before: a clear error on all ranks or another way, never SIGBUS, and nothing is left behind.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/detail/available_memory.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/error.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/init.hpp>
#include <ddpp/symmetric.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <signal.h>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../skip.hpp"
#include "../support/leftovers.hpp"
#include "../support/places.hpp"
#include "../support/ranks.hpp"

namespace {

using namespace std::chrono_literals;
using ddpp::shm;
using support::bootstrap_of;
using support::can_make_hosts;
using support::cannot;
using support::forbid_memfd;
using support::fork_child;
using support::in_own_process_table;
using support::nothing_left;
using support::on_host;
using support::process;
using support::says;
using support::scratch_directory;
using support::status_of;
using support::text_of;

constexpr std::size_t mib = std::size_t{1} << 20;

void expect_all_end_well(const std::vector<pid_t>& children, const std::string& what) {
  std::string failed;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const int status = status_of(children[i]);
    if (status != 0)
      failed += " " + what + " " + std::to_string(i) + " with status " + std::to_string(status);
  }
  support::expect(failed.empty(), "all end well, not" + failed);
}

/// body(rank, where the store is) in a process for each rank.
template <class F>
void run_ranks(int size, F body) {
  const scratch_directory directory;
  const ddpp::file_store kept(directory.file("store"));  // else it may go before all have come
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(process([&] { body(rank, directory.file("store")); }));
  }
  expect_all_end_well(ranks, "rank");
}

ddpp::bootstrap meeting_at(const std::string& path, int rank, int size) {
  return bootstrap_of(rank, size, std::make_shared<ddpp::file_store>(path));
}

// What ranks do.

template <class Range>
bool all_are(const Range& range, float value) {
  return std::count(range.begin(), range.end(), value) == std::ssize(range);
}

template <class C>
void expect_sums(C& comm) {
  std::vector<float> x(200'000, static_cast<float>(comm.rank() + 1));
  ddpp::all_reduce(comm, x);
  const auto sum = static_cast<float>(comm.size() * (comm.size() + 1) / 2);
  EXPECT(all_are(x, sum));
}

void expect_bytes_in(const std::string& text) {
  support::expect(says(text, " bytes needed, ") && says(text, " bytes available"),
                  "an error with bytes needed and available, not \"" + text + "\"");
}

template <class C>
void use_symmetric_memory(C& comm, std::size_t bytes) {
  auto memory = ddpp::allocate_symmetric<float>(comm, bytes / sizeof(float));
  std::fill(memory.begin(), memory.end(), static_cast<float>(comm.rank()));
  ddpp::all_reduce(comm, memory);
  const auto sum = static_cast<float>(comm.size() * (comm.size() - 1) / 2);
  EXPECT(all_are(memory, sum));
}

template <class C>
void train(C& comm, std::size_t bytes) {
  std::vector<float> weights(bytes / sizeof(float)), gradients(weights.size());
  ddpp::distributed_data_parallel ddp(comm, {ddpp::parameter("weights", weights, gradients)});
  ddp.prepare();
  std::fill(gradients.begin(), gradients.end(), static_cast<float>(comm.rank()));
  ddp.mark_ready(0);
  ddp.wait();
  EXPECT(all_are(gradients, static_cast<float>(comm.size() - 1) / 2));
}

/// Returns what the limit was.
rlim_t limit(int which, rlim_t most) {
  const auto kind = static_cast<__rlimit_resource>(which);
  rlimit limits{};
  EXPECT(::getrlimit(kind, &limits) == 0);
  const rlim_t before = std::exchange(limits.rlim_cur, most);
  EXPECT(::setrlimit(kind, &limits) == 0);
  return before;
}

/// Every rank gets an error or none does, and without waiting until the time is up. Returns the texts by
/// rank; `change(rank)` is done before the ranks meet.
template <class F>
std::vector<std::string> meet_with(int size, F change) {
  std::array<int, 2> words{};
  EXPECT(::pipe2(words.data(), O_CLOEXEC) == 0);
  run_ranks(size, [&](int rank, const std::string& store) {
    auto boot = meeting_at(store, rank, size);
    change(rank);
    std::string text = "works";
    try {
      ddpp::communicator<shm> comm(boot);
      expect_sums(comm);
    } catch (const ddpp::timeout_error& error) {
      text = std::string("late: ") + error.what();
    } catch (const ddpp::error& error) {
      text = error.what();
    }
    std::array<char, 500> word{};
    word[0] = static_cast<char>('0' + rank);
    text.copy(word.data() + 1, word.size() - 2);
    EXPECT(::write(words[1], word.data(), word.size()) == static_cast<ssize_t>(word.size()));
  });
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    std::array<char, 500> word{};
    EXPECT(::read(words[0], word.data(), word.size()) == static_cast<ssize_t>(word.size()));
    texts.at(static_cast<std::size_t>(word[0] - '0')) = word.data() + 1;
  }
  ::close(words[0]);
  ::close(words[1]);
  return texts;
}

}  // namespace

TEST_CASE("a small /dev/shm") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  enum class way { anonymous, forbidden, not_implemented, hidden };
  constexpr int size = 3;
  for (const std::size_t room : {16 * mib, 64 * mib}) {
    for (const way how : {way::anonymous, way::forbidden, way::not_implemented, way::hidden}) {
      CAPTURE(room);
      CAPTURE(static_cast<int>(how));
      const auto live = [&](int rank, const std::string& store) {
        ddpp::communicator<shm> comm(meeting_at(store, rank, size));
        expect_sums(comm);
        const auto too_much = [&] { use_symmetric_memory(comm, room / size + mib); };
        if (how == way::anonymous) {
          too_much();
        } else {
          expect_bytes_in(text_of<ddpp::resource_error>(too_much));
          expect_sums(comm);
        }
        use_symmetric_memory(comm, mib);
        train(comm, room / size + mib);
      };
      CHECK(status_of(on_host(std::to_string(room), [&] {
              if (how == way::forbidden) forbid_memfd(EPERM);
              if (how == way::not_implemented) forbid_memfd(ENOSYS);
              run_ranks(size, [&](int rank, const std::string& store) {
                if (how == way::hidden && rank == size - 1)
                  in_own_process_table([&] { live(rank, store); });
                else
                  live(rank, store);
              });
            })) == 0);
    }
  }
}

TEST_CASE("a /dev/shm too small for the group: all ranks are told how much is needed") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  CHECK(status_of(on_host("16m", [] {
          forbid_memfd(EPERM);
          for (const std::string& text : meet_with(20, [](int) {})) expect_bytes_in(text);
        })) == 0);
}

TEST_CASE("a /dev/shm that somebody else fills while the group is there") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  CHECK(status_of(on_host("16m", [] {
          forbid_memfd(EPERM);
          run_ranks(3, [](int rank, const std::string& path) {
            const auto boot = meeting_at(path, rank, 3);
            ddpp::communicator<shm> comm(boot);
            if (rank == 0) {
              const int file = ::open("/dev/shm/full", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
              const std::vector<char> page(4096);
              while (::write(file, page.data(), page.size()) > 0) {
              }
              ::close(file);
              boot.store->set("full", "");
            }
            boot.store->wait({"full"}, 60s);
            expect_bytes_in(text_of<ddpp::error>([&] { expect_sums(comm); }));
          });
        })) == 0);
}

TEST_CASE("more memory than a control group has is an error that says so, and kills nobody") {
  const nothing_left checked;
  struct sysinfo all {};
  REQUIRE(::sysinfo(&all) == 0);
  CHECK(ddpp::detail::available_memory() <= (all.totalram + all.totalswap) * all.mem_unit);
  // Version 1 or 2, if this process may make a group.
  std::ifstream groups("/proc/self/cgroup");
  std::string folder, limit;
  for (std::string line; std::getline(groups, line);) {
    const auto path = line.substr(line.rfind(':') + 1);
    if (says(line, ":memory:")) folder = "/sys/fs/cgroup/memory" + path, limit = "/memory.limit_in_bytes";
    if (line.starts_with("0::") && folder.empty()) folder = "/sys/fs/cgroup" + path, limit = "/memory.max";
  }
  folder += "/ddpp-test-" + std::to_string(::getpid());
  if (::mkdir(folder.c_str(), 0700) != 0) return ddpp::testing::skip("cannot make a control group");
  const bool limited = static_cast<bool>(std::ofstream(folder + limit) << 96 * mib << std::flush);
  if (limited) {
    CHECK(status_of(process([&] {
            if (!(std::ofstream(folder + "/cgroup.procs") << ::getpid() << std::flush)) ::_exit(cannot);
            EXPECT(ddpp::detail::available_memory() <= 96 * mib);
            run_ranks(3, [](int rank, const std::string& store) {
              ddpp::communicator<shm> comm(meeting_at(store, rank, 3));
              for (const std::size_t bytes : {40 * mib, 200 * mib, std::size_t{1} << 40}) {
                expect_bytes_in(text_of<ddpp::resource_error>(
                    [&] { (void)ddpp::allocate_symmetric<char>(comm, bytes); }));
                expect_sums(comm);
              }
              use_symmetric_memory(comm, mib);
            });
          })) == 0);
  }
  CHECK(::rmdir(folder.c_str()) == 0);
  if (!limited) ddpp::testing::skip("cannot limit the memory of a control group");
}

TEST_CASE("no descriptors") {
  const nothing_left checked;
  int refused = 0;
  for (const int limited : {0, 1}) {
    bool works = false;
    for (rlim_t spare = 0; !works; ++spare) {
      CAPTURE(limited);
      CAPTURE(spare);
      const auto texts = meet_with(3, [&](int rank) {
        if (rank != limited) return;
        const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        ::close(next);
        limit(RLIMIT_NOFILE, static_cast<rlim_t>(next) + spare);
      });
      works = texts[0] == "works";
      for (const std::string& text : texts) {
        CHECK((text == "works") == works);
        CHECK_MESSAGE((works || says(text, "ulimit -n")), text);
      }
      refused += !works;
      REQUIRE(spare < 20);
    }
  }
  CHECK(refused > 4);
}

TEST_CASE("no descriptors for symmetric memory: an error on all ranks, and the group goes on") {
  const nothing_left checked;
  for (const int limited : {0, 1}) {
    run_ranks(3, [&](int rank, const std::string& store) {
      ddpp::communicator<shm> comm(meeting_at(store, rank, 3));
      expect_sums(comm);
      const rlim_t usual = limit(RLIMIT_NOFILE, 0);
      if (rank != limited) limit(RLIMIT_NOFILE, usual);
      EXPECT(says(text_of<ddpp::resource_error>([&] { use_symmetric_memory(comm, mib); }), "ulimit -n"));
      train(comm, mib);
      limit(RLIMIT_NOFILE, usual);
      use_symmetric_memory(comm, mib);
    });
  }
}

TEST_CASE("no address space") {
#if defined(__SANITIZE_ADDRESS__)
  return ddpp::testing::skip("AddressSanitizer needs all address space");
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  return ddpp::testing::skip("AddressSanitizer needs all address space");
#endif
#endif
  const nothing_left checked;
  for (const int limited : {0, 1}) {
    CAPTURE(limited);
    const auto texts = meet_with(3, [&](int rank) {
      if (rank != limited) return;
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      limit(RLIMIT_AS, pages * 4096 + 2 * mib);  // less than a segment
    });
    for (const std::string& text : texts) CHECK_MESSAGE(says(text, "cannot map"), text);
  }
}

TEST_CASE("files may only be short") {
  const nothing_left checked;
  for (const std::string& text : meet_with(3, [](int) { limit(RLIMIT_FSIZE, mib); }))
    CHECK_MESSAGE(says(text, "ulimit -f"), text);
}

TEST_CASE("what others have planted under likely names is neither used nor touched; what is abandoned goes") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  if (::geteuid() != 0) return ddpp::testing::skip("only root can be somebody else");
  CHECK(status_of(on_host("64m", [] {
          const auto name = [](char digit) { return "/dev/shm/ddpp-" + std::string(32, digit); };
          const auto write = [](const std::string& path) { std::ofstream(path) << "planted"; };
          const auto read = [](const std::string& path) {
            std::string text;
            std::ifstream(path) >> text;
            return text;
          };
          const scratch_directory elsewhere;
          EXPECT(::chmod("/dev/shm", 01777) == 0);
          EXPECT(status_of(fork_child([&] {
                   EXPECT(::setuid(65534) == 0);
                   write(name('0'));
                   EXPECT(::symlink(elsewhere.file("target").c_str(), name('1').c_str()) == 0);
                   EXPECT(::mkfifo(name('2').c_str(), 0666) == 0);
                   write("/dev/shm/ddpp");
                   write("/dev/shm/ddpp-");
                 })) == 0);
          write(elsewhere.file("target"));
          EXPECT(::symlink(elsewhere.file("target").c_str(), name('3').c_str()) == 0);
          EXPECT(::mkdir(name('4').c_str(), 0700) == 0);
          write("/dev/shm/ddpp-mine");
          write(name('5'));  // this user's, and nobody has it locked
          forbid_memfd(EPERM);
          run_ranks(3, [](int rank, const std::string& store) {
            ddpp::communicator<shm> comm(meeting_at(store, rank, 3));
            use_symmetric_memory(comm, mib);
          });
          for (const std::string& path : {name('0'), name('1'), name('3'), std::string("/dev/shm/ddpp"),
                                          std::string("/dev/shm/ddpp-"), std::string("/dev/shm/ddpp-mine")})
            EXPECT(read(path) == "planted");
          EXPECT(std::filesystem::is_fifo(name('2')) && std::filesystem::is_directory(name('4')));
          EXPECT(std::filesystem::is_symlink(name('1')) && std::filesystem::is_symlink(name('3')));
          EXPECT(!std::filesystem::exists(name('5')));
          for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
            std::filesystem::remove(entry);
        })) == 0);
}

TEST_CASE("ranks that have given up privileges, and so hide their descriptors from each other") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  if (::geteuid() != 0) return ddpp::testing::skip("only root has privileges to give up");
  CHECK(status_of(on_host("64m", [] {
          EXPECT(::chmod("/dev/shm", 01777) == 0);
          EXPECT(status_of(process([] {
                   EXPECT(::setuid(65534) == 0);
                   run_ranks(3, [](int rank, const std::string& store) {
                     ddpp::communicator<shm> comm(meeting_at(store, rank, 3));
                     use_symmetric_memory(comm, mib);
                   });
                 })) == 0);
        })) == 0);
}

TEST_CASE("another user's process is not told to use another backend for want of memory, but of rights") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  if (::geteuid() != 0) return ddpp::testing::skip("only root can be somebody else");
  CHECK(status_of(on_host("64m", [] {
          EXPECT(::chmod("/dev/shm", 01777) == 0);
          // Rank 0's memory is root's.
          std::array<int, 2> port{};
          EXPECT(::pipe2(port.data(), O_CLOEXEC) == 0);
          const ddpp::tcp_store_options options{.timeout = 60s, .secret = ddpp::secret("the job's own")};
          const auto join = [&](int rank, std::shared_ptr<ddpp::store> store) {
            ddpp::communicator<shm> comm(bootstrap_of(rank, 2, std::move(store)));
            expect_sums(comm);
          };
          const auto refused = [&](int rank, const std::shared_ptr<ddpp::store>& store) {
            const std::string text = text_of<ddpp::init_error>([&] { join(rank, store); });
            EXPECT(says(text, "different users"));
          };
          const std::vector<pid_t> ranks{
              process([&] {
                const auto store = std::make_shared<ddpp::tcp_store>("127.0.0.1", std::uint16_t{0},
                                                                     ddpp::tcp_store::server, options);
                const std::uint16_t number = store->port();
                EXPECT(::write(port[1], &number, sizeof number) == sizeof number);
                refused(0, store);
                store->wait({"done"}, 60s);
              }),
              process([&] {
                EXPECT(::setuid(65534) == 0);
                std::uint16_t number = 0;
                EXPECT(::read(port[0], &number, sizeof number) == sizeof number);
                const auto store =
                    std::make_shared<ddpp::tcp_store>("127.0.0.1", number, ddpp::tcp_store::client, options);
                refused(1, store);
                store->set("done", "");
              }),
          };
          expect_all_end_well(ranks, "rank");
          ::close(port[0]);
          ::close(port[1]);
        })) == 0);
}

TEST_CASE("neither processes nor /dev/shm in common: the error says to use tcp") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  CHECK(status_of(on_host("64m", [] {
          run_ranks(3, [](int rank, const std::string& path) {
            const auto fail = [&] {
              const std::string text =
                  text_of<ddpp::init_error>([&] { ddpp::communicator<shm> comm(meeting_at(path, rank, 3)); });
              EXPECT(says(text, "tcp") && says(text, "rank 2"));
            };
            if (rank != 2) return fail();
            in_own_process_table([&] {
              if (::mount("none", "/dev/shm", "tmpfs", 0, nullptr) != 0) ::_exit(cannot);
              fail();
            });
          });
        })) == 0);
}

TEST_CASE("the same place to meet and the same name again, after success and after a crash") {
  const nothing_left checked;
  if (!can_make_hosts()) return;
  CHECK(status_of(on_host("64m", [] {
          forbid_memfd(EPERM);
          const scratch_directory directory;
          const auto launch = [&](bool crash) {
            std::vector<pid_t> ranks;
            for (int rank = 0; rank < 3; ++rank) {
              ranks.push_back(process([&] {
                auto comm = ddpp::init<shm>({.init_method = "file://" + directory.file("store"),
                                             .rank = rank,
                                             .world_size = 3,
                                             .timeout = 60s,
                                             .group_name = "the same"});
                expect_sums(comm);
                use_symmetric_memory(comm, mib);
                if (crash) ::kill(::getpid(), SIGKILL);
              }));
            }
            for (const pid_t rank : ranks) EXPECT(status_of(rank) == (crash ? SIGKILL : 0));
          };
          for (const bool crash : {false, false, true, true, false}) launch(crash);
        })) == 0);
}
