// SPDX-License-Identifier: BSL-1.0
// A function on n ranks of this host, with the communicator made: processes or threads, as the transport
// wants.
#pragma once

#include <ddpp/communicator.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/function_ref.hpp>
#include <ddpp/detail/launch_meeting.hpp>
#include <ddpp/detail/rank_environment.hpp>
#include <ddpp/detail/rank_processes.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/init_options.hpp>
#include <ddpp/store.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp {
namespace detail {

[[gnu::cold]] inline void check_launch(int n, const init_options& options) {
  if (n < 1) throw usage_error(text("launch: the number of ranks must be at least 1, not ", n));
  check_timeouts(options);
  if (options.store || !options.init_method.empty() || options.rank != -1 || options.world_size != -1) {
    throw usage_error(
        "launch numbers its ranks and gives them a place to meet: leave store, init_method, rank and "
        "world_size out, or "
        "use spawn and init");
  }
}

/// What the transport of one of n ranks is constructed from. Other groups that meet in `meeting`, by `init`,
/// have a prefix of their own each.
[[gnu::cold]] inline bootstrap launch_bootstrap(int rank, int n, const init_options& options,
                                                const std::shared_ptr<store>& meeting,
                                                const secret& shared_secret) {
  bootstrap boot;
  boot.rank = rank;
  boot.size = n;
  boot.deadline = deadline_after(options.init_timeout.value_or(options.timeout));
  boot.timeout = options.timeout;
  boot.flight_recorder = flight_recorder_of(options);
  if (n == 1) return boot;
  boot.store = meeting;
  boot.secret = shared_secret;
  boot.host = "127.0.0.1";
  return boot;
}

/// Runs f; an exception that leaves it revokes the communicator, so that no other rank waits for this one.
template <class C>
void run_rank(C& comm, function_ref<void(C&)> f) {
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

template <transport T, class A>
void launch_threads(int n, function_ref<void(communicator<T, A>&)> f, const init_options& options) {
  const auto meeting = std::make_shared<hash_store>(options.timeout);
  const secret shared_secret = random_secret();
  first_exception first;
  const auto run = [&](int rank) {
    bool joined = false;
    try {
      communicator<T, A> comm(launch_bootstrap(rank, n, options, meeting, shared_secret));
      joined = true;
      try {
        f(comm);
      } catch (...) {
        first.keep_current();
        if (comm.state()) comm.revoke(current_exception_text());
      }
    } catch (...) {
      first.keep_current();
      if (!joined) meeting->fail(text("rank ", rank, " could not join: ", current_exception_text()));
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(n));
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& e) {
    const std::string why =
        text("launch: could not start a thread for rank ", threads.size(), " of ", n, ": ", e.what());
    meeting->fail(why);
    for (std::thread& each : threads) each.join();
    throw resource_error(why);
  }
  for (std::thread& each : threads) each.join();
  first.rethrow_if_any();
}

template <transport T, class A>
void launch_processes(int n, function_ref<void(communicator<T, A>&)> f, const init_options& options) {
  const inherited_meeting meeting;
  rank_processes ranks("launch", n, 0, std::chrono::seconds(10));
  for (int rank = 0; rank < n; ++rank) {
    ranks.start([&] {
      set_rank_environment(rank, n, rank, n, 0);
      const launch_meeting& mine = meeting.enter(options.timeout);
      bootstrap boot = launch_bootstrap(rank, n, options, mine.store, mine.secret);
      boot.check_peers = [&ranks] { ranks.check_others(); };
      communicator<T, A> comm(boot);
      run_rank<communicator<T, A>>(comm, f);
    });
  }
  ranks.join(deadline::max());
}

}  // namespace detail

/// Runs f(communicator<T, A>&) on n new ranks of this host and returns once all have ended.
///
/// Processes (T::launch): forked as `spawn` does it, and the first that fails is a `spawn_error`; one that
/// fails before the group has come together ends the others' waiting. They need /proc. They find each other
/// by what they inherit: no socket is open but the transport's own, nothing is left behind whatever is
/// killed. `init` in them makes another group of the same ranks. Threads: an exception on one rank is
/// rethrown here as it was; of several, the first. Either way an exception revokes that rank's communicator,
/// so that the others end with `revoked_error`. Of the options, only the timeouts count; a place to meet is
/// `usage_error`. Threads share local_rank().
template <transport T, class A = algorithms::automatic, class F>
void launch(int n, F&& f, const init_options& options = {}) {
  detail::check_launch(n, options);
  const auto run = [&f](communicator<T, A>& comm) { f(comm); };
  if constexpr (T::launch == launch_kind::threads) {
    detail::launch_threads<T, A>(n, run, options);
  } else {
    detail::launch_processes<T, A>(n, run, options);
  }
}

}  // namespace ddpp
