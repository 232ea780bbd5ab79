// SPDX-License-Identifier: BSL-1.0
// Ranks as forked processes, as PyTorch's torch.multiprocessing.spawn.
#pragma once

#include <ddpp/detail/child_process.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/rank_report.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/error.hpp>
#include <ddpp/tcp_store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace ddpp {

struct spawn_options {
  /// This node's number and how many there are: rank = node_rank * n + local rank. More than one node needs
  /// the address and port at which node 0 serves the store, and a secret that all have (DDPP_SECRET_FILE).
  int node_rank = 0;
  int nnodes = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0: any free one
  /// After the first failure: how long the other ranks may take to end, and again after SIGTERM before
  /// SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
};

namespace detail {

inline void check_spawn(int n, const spawn_options& options) {
  if (n < 1) throw usage_error("spawn: the number of ranks must be at least 1, not " + std::to_string(n));
  if (options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes) {
    throw usage_error("spawn: node_rank " + std::to_string(options.node_rank) + " of nnodes " +
                      std::to_string(options.nnodes) + " does not exist");
  }
  if (n > std::numeric_limits<int>::max() / options.nnodes) {
    throw usage_error("spawn: " + std::to_string(options.nnodes) + " nodes of " + std::to_string(n) +
                      " ranks are too many");
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    throw usage_error("spawn: master_port " + std::to_string(options.master_port) + " is no port");
  }
  if (options.nnodes > 1 && options.master_port == 0) {
    throw usage_error("spawn: several nodes need a master_port that all of them are given");
  }
}

/// What `init` reads in a rank: torchrun's variables. A surrounding launcher's are out of the way.
inline void set_rank_environment(int local_rank, int n, const spawn_options& options, std::uint16_t port) {
  for (const char* name : {"DDPP_RANK", "DDPP_WORLD_SIZE", "DDPP_LOCAL_RANK", "DDPP_LOCAL_WORLD_SIZE",
                           "DDPP_INIT_METHOD", "TORCHELASTIC_USE_AGENT_STORE"}) {
    ::unsetenv(name);
  }
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(options.node_rank * n + local_rank));
  set("WORLD_SIZE", std::to_string(options.nnodes * n));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(n));
  set("GROUP_RANK", std::to_string(options.node_rank));
  set("MASTER_ADDR", options.master_addr);
  set("MASTER_PORT", std::to_string(port));
}

/// Ranks that are running, the store that they meet at, and what became of them.
class spawned_ranks {
 public:
  spawned_ranks(int n, const std::function<void(int)>& fn, const spawn_options& options)
      : first_rank_(options.node_rank * n), grace_(options.grace), reports_(static_cast<std::size_t>(n)) {
    if (options.nnodes == 1) {
      ensure_job_secret();
    } else if (job_secret().empty()) {
      throw authentication_error(
          "spawn: several nodes need a secret that all of them have: set DDPP_SECRET, or DDPP_SECRET_FILE to "
          "a file "
          "with it, on each");
    }
    std::optional<store_listener> listener;  // listens before the first fork: no rank can come too early
    auto port = static_cast<std::uint16_t>(options.master_port);
    if (options.node_rank == 0) {
      listener.emplace(options.master_addr, port);
      port = listener->port();
    }
    for (int i = 0; i < n; ++i) start(i, n, fn, options, port);
    if (listener)
      store_ = std::make_unique<tcp_store>(std::move(*listener));  // its thread, after the last fork
  }

  bool join(deadline until) {
    while (!first_failure_ && children_.running() > 0) {
      const std::vector<std::size_t> ended = children_.wait_for_ends(until);
      if (ended.empty()) return false;
      note(ended);
    }
    if (!first_failure_) return true;
    wind_down();
    throw_failure();
  }

  /// SIGTERM, the grace period, SIGKILL.
  void terminate() {
    children_.send_all(SIGTERM);
    wait_for_all(deadline_after(grace_));
    children_.kill_all();
  }

  const child_processes& children() const noexcept { return children_; }

 private:
  void start(int local_rank, int n, const std::function<void(int)>& fn, const spawn_options& options,
             std::uint16_t port) {
    try {
      children_.start(reports_[static_cast<std::size_t>(local_rank)], [&] {
        set_rank_environment(local_rank, n, options, port);
        fn(first_rank_ + local_rank);
      });
    } catch (const resource_error& e) {
      throw resource_error("spawn: could not start rank " + std::to_string(first_rank_ + local_rank) +
                           " (number " + std::to_string(local_rank + 1) + " of " + std::to_string(n) +
                           " here): " + e.what());
    }
  }

  /// The first failure in time is the one to report, but one that only followed another rank's (its peer was
  /// lost) gives way to the next that is a cause.
  void note(const std::vector<std::size_t>& ended) {
    for (const std::size_t i : ended) {
      if (!has_failed(i)) continue;
      if (!first_failure_ || (followed(*first_failure_) && !followed(i))) first_failure_ = i;
    }
  }

  bool followed(std::size_t i) { return reports_[i].end() == rank_end::followed; }

  bool has_failed(std::size_t i) {
    const child_process& child = children_.all()[i];
    if (!child.status_known) return reports_[i].end() != rank_end::finished;
    return child.exit_code != 0 || child.signal != 0;
  }

  void wind_down() {
    const deadline until = deadline_after(grace_);
    while (children_.running() > 0) {
      const std::vector<std::size_t> ended = children_.wait_for_ends(until);
      if (ended.empty()) break;
      note(ended);
    }
    if (children_.running() > 0) terminate();
  }

  void wait_for_all(deadline until) {
    while (children_.running() > 0 && !children_.wait_for_ends(until).empty()) {
    }
  }

  [[noreturn]] void throw_failure() {
    const std::size_t i = *first_failure_;
    const child_process& child = children_.all()[i];
    const int rank = first_rank_ + static_cast<int>(i);
    std::string text = "rank " + std::to_string(rank) + " (process " + std::to_string(child.pid) + ") ";
    if (reports_[i].end() == rank_end::failed || reports_[i].end() == rank_end::followed) {
      text += "failed: " + reports_[i].text();
    } else if (child.signal != 0) {
      text += "was ended by signal " + std::to_string(child.signal) + " (" + ::strsignal(child.signal) + ")";
    } else if (child.status_known) {
      text += "exited with status " + std::to_string(child.exit_code);
    } else {
      text += "ended, and its status is unknown because this program ignores or collects SIGCHLD itself";
    }
    throw spawn_error(text, rank, child.exit_code, child.signal);
  }

  int first_rank_;
  std::chrono::milliseconds grace_;
  rank_reports reports_;
  std::unique_ptr<tcp_store> store_;
  child_processes children_;  // ended before what they use goes
  std::optional<std::size_t> first_failure_;
};

}  // namespace detail

/// Running ranks. Its destructor ends those that still run: SIGTERM, the grace period, SIGKILL. Not
/// thread-safe.
class process_context {
 public:
  /// What `start_processes` does, which is how to make one.
  process_context(int n, const std::function<void(int)>& fn, const spawn_options& options) {
    detail::check_spawn(n, options);
    ranks_ = std::make_unique<detail::spawned_ranks>(n, fn, options);
  }
  process_context(process_context&&) noexcept = default;
  process_context& operator=(process_context&&) = delete;
  ~process_context() {
    if (ranks_ && !guard_.in_child()) ranks_->terminate();
    if (guard_.in_child()) (void)ranks_.release();
  }

  /// Waits until all ranks have ended well and returns true, or false when `timeout` has passed first. After
  /// the first failure the others get the grace period, then SIGTERM, then SIGKILL; then throws
  /// `spawn_error`.
  bool join(std::chrono::milliseconds timeout = std::chrono::milliseconds::max()) {
    return ranks_->join(detail::deadline_after(timeout));
  }

  /// Process ids by local rank.
  std::vector<pid_t> pids() const {
    std::vector<pid_t> result;
    for (const auto& child : ranks_->children().all()) result.push_back(child.pid);
    return result;
  }

 private:
  detail::fork_guard guard_;
  std::unique_ptr<detail::spawned_ranks> ranks_;
};

/// Forks n ranks that each call fn(rank) and end, with status 0, or 1 after an exception, whose text is
/// reported. `init` in them finds rank, size and a store that this process serves. Does not wait for them.
/// They are copies of this process: fork before CUDA or threads are started. They die with the thread that
/// called this. Nothing that the program registered with atexit runs in them; of their output, what is in
/// stdout and stderr is flushed. Throws `usage_error` for impossible numbers, `resource_error` when the
/// system refuses (then none is left running), `init_error` when the store cannot be served at the address.
template <class F>
[[nodiscard]] process_context start_processes(int n, F&& fn, const spawn_options& options = {}) {
  return process_context(
      n, [&fn](int rank) { fn(rank); }, options);
}

/// start_processes and join: returns once all ranks have ended well, throws `spawn_error` about the first
/// that did not once all have ended.
template <class F>
void spawn(int n, F&& fn, const spawn_options& options = {}) {
  start_processes(n, fn, options).join();
}

}  // namespace ddpp
