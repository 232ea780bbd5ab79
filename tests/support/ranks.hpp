// SPDX-License-Identifier: BSL-1.0
// Runs a function once per rank over a bare transport: as threads of the test, or as forked processes.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/hash_store.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace support {

/// Works in every thread and process: what does not hold ends the rank, and with it the test.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error("expected: " + what);
}
#define EXPECT(...)                                 \
  ::support::expect(static_cast<bool>(__VA_ARGS__), \
                    __FILE__ ":" + std::to_string(__LINE__) + ": " #__VA_ARGS__)

/// Why the group fails while f runs.
template <class F>
ddpp::failure cause_of(F&& f) {
  try {
    f();
  } catch (const ddpp::group_failed& failed) {
    return failed.cause();
  }
  return {};
}

inline ddpp::deadline soon(std::chrono::milliseconds time = std::chrono::seconds(60)) {
  return std::chrono::steady_clock::now() + time;
}

inline ddpp::bootstrap bootstrap_of(int rank, int size, std::shared_ptr<ddpp::store> store) {
  ddpp::bootstrap boot;
  boot.rank = rank;
  boot.size = size;
  boot.store = std::move(store);
  boot.host = "127.0.0.1";
  boot.deadline = soon();
  boot.timeout = std::chrono::seconds(60);
  return boot;
}

/// A directory that goes with the object.
class scratch_directory {
 public:
  scratch_directory() {
    std::string name = (std::filesystem::temp_directory_path() / "ddpp-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~scratch_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

template <ddpp::transport T>
struct as_threads {
  using transport = T;
  static constexpr bool shares_memory = true;  // the ranks see each other's variables

  /// Runs body(transport&) on each rank; rethrows what was thrown first.
  template <class F>
  static void run(int size, F body) {
    const auto store = size == 1 ? nullptr : std::make_shared<ddpp::hash_store>();
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          T transport(bootstrap_of(rank, size, store), {});
          body(transport);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }
};

/// A forked child that runs body() and ends: with 0, or 1 if it threw.
template <class F>
pid_t fork_child(F body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 1;
  try {
    body();
    status = 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(status);
}

/// waitpid's status.
inline int status_of(pid_t child) {
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

template <ddpp::transport T>
struct as_processes {
  using transport = T;
  static constexpr bool shares_memory = false;

  template <class F>
  static void run(int size, F body) {
    const scratch_directory directory;
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      children.push_back(fork_child([&] {
        const auto store = std::make_shared<ddpp::file_store>(directory.file("store"));
        T transport(bootstrap_of(rank, size, store), {});
        body(transport);
      }));
    }
    std::string failed;
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      if (status_of(children[rank]) != 0) failed += " " + std::to_string(rank);
    }
    if (!failed.empty()) throw std::runtime_error("failed ranks:" + failed);
  }
};

}  // namespace support
