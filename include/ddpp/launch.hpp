// SPDX-License-Identifier: BSL-1.0
// A function on n ranks of this host, with the communicator made: processes or threads, as the transport
// wants.
#pragma once

#include <ddpp/communicator.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/rank_report.hpp>
#include <ddpp/error.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/init.hpp>
#include <ddpp/spawn.hpp>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp {
namespace detail {

inline void check_launch(int n, const init_options& options) {
  if (n < 1) throw usage_error("launch: the number of ranks must be at least 1, not " + std::to_string(n));
  if (options.store || !options.init_method.empty() || options.rank != -1 || options.world_size != -1) {
    throw usage_error(
        "launch numbers its ranks and gives them a place to meet: leave store, init_method, rank and "
        "world_size out, or "
        "use spawn and init");
  }
}

/// Runs f; an exception that leaves it revokes the communicator, so that no other rank waits for this one.
template <class C, class F>
void run_rank(C& comm, F& f) {
  try {
    f(comm);
  } catch (...) {
    if (comm.state()) comm.revoke(current_exception_text());
    throw;
  }
}

/// The first exception in time, but one that only followed another rank's gives way to a cause.
class first_exception {
 public:
  /// Keeps the one being handled.
  void keep_current() {
    const bool follows = current_exception_follows_another();
    const std::lock_guard lock(mutex_);
    if (error_ && (follows || !follows_)) return;
    error_ = std::current_exception();
    follows_ = follows;
  }
  void rethrow_if_any() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool follows_ = false;
};

template <transport T, class A, class F>
void launch_threads(int n, F& f, init_options options) {
  const auto meeting = std::make_shared<hash_store>(options.timeout);
  options.store = meeting;
  options.world_size = n;
  first_exception first;
  const auto run = [&](int rank) {
    bool joined = false;
    try {
      init_options mine = options;
      mine.rank = rank;
      communicator<T, A> comm = init<T, A>(mine);
      joined = true;
      try {
        f(comm);
      } catch (...) {
        first.keep_current();
        if (comm.state()) comm.revoke(current_exception_text());
      }
    } catch (...) {
      first.keep_current();
      if (!joined)
        meeting->fail("rank " + std::to_string(rank) + " could not join: " + current_exception_text());
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(n));
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& e) {
    const std::string text = "launch: could not start a thread for rank " + std::to_string(threads.size()) +
                             " of " + std::to_string(n) + ": " + e.what();
    meeting->fail(text);
    for (std::thread& each : threads) each.join();
    throw resource_error(text);
  }
  for (std::thread& each : threads) each.join();
  first.rethrow_if_any();
}

}  // namespace detail

/// Runs f(communicator<T, A>&) on n new ranks of this host and returns once all have ended.
///
/// Processes (T::launch): forked, see `spawn`; throws `spawn_error` about the first that fails. Threads: an
/// exception on one rank is rethrown here as it was; of several, the first. Either way an exception revokes
/// that rank's communicator, so that the others end with `revoked_error`. Of the options, the timeouts and
/// the group's name count; others are `usage_error`. Threads share local_rank().
template <transport T, class A = algorithms::automatic, class F>
void launch(int n, F&& f, const init_options& options = {}) {
  detail::check_launch(n, options);
  if constexpr (T::launch == launch_kind::threads) {
    detail::launch_threads<T, A>(n, f, options);
  } else {
    spawn(n, [&](int) {
      communicator<T, A> comm = init<T, A>(options);
      detail::run_rank(comm, f);
    });
  }
}

}  // namespace ddpp
