// SPDX-License-Identifier: BSL-1.0
// Ranks as forked processes, as PyTorch's torch.multiprocessing.spawn.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/rank_environment.hpp>
#include <ddpp/detail/rank_processes.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/tcp_store.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
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

[[gnu::cold]] inline void check_spawn(int n, const spawn_options& options) {
  if (n < 1) throw usage_error(text("spawn: the number of ranks must be at least 1, not ", n));
  if (options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes) {
    throw usage_error(
        text("spawn: node_rank ", options.node_rank, " of nnodes ", options.nnodes, " does not exist"));
  }
  if (n > std::numeric_limits<int>::max() / options.nnodes) {
    throw usage_error(text("spawn: ", options.nnodes, " nodes of ", n, " ranks are too many"));
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    throw usage_error(text("spawn: master_port ", options.master_port, " is no port"));
  }
  if (options.nnodes > 1 && options.master_port == 0) {
    throw usage_error("spawn: several nodes need a master_port that all of them are given");
  }
}

/// Ranks that are running and the store that they meet at.
class spawned_ranks {
 public:
  [[gnu::cold]] spawned_ranks(int n, const std::function<void(int)>& fn, const spawn_options& options)
      : ranks_("spawn", n, options.node_rank * n, options.grace) {
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
    for (int i = 0; i < n; ++i) {
      const int rank = options.node_rank * n + i;
      ranks_.start([&] {
        set_rank_environment(rank, options.nnodes * n, i, n, options.node_rank);
        ::setenv("MASTER_ADDR", options.master_addr.c_str(), 1);
        ::setenv("MASTER_PORT", text(port).c_str(), 1);
        fn(rank);
      });
    }
    if (listener)
      store_ = std::make_unique<tcp_store>(std::move(*listener));  // its thread, after the last fork
  }

  rank_processes& processes() noexcept { return ranks_; }

 private:
  std::unique_ptr<tcp_store> store_;
  rank_processes ranks_;  // ended before what they use goes
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
    if (ranks_ && !guard_.in_child()) ranks_->processes().terminate();
    if (guard_.in_child()) (void)ranks_.release();
  }

  /// Waits until all ranks have ended well and returns true, or false when `timeout` has passed first. After
  /// the first failure the others get the grace period, then SIGTERM, then SIGKILL; then throws
  /// `spawn_error`.
  bool join(std::chrono::milliseconds timeout = std::chrono::milliseconds::max()) {
    return ranks_->processes().join(detail::deadline_after(timeout));
  }

  /// Process ids by local rank.
  std::vector<pid_t> pids() const {
    std::vector<pid_t> result;
    for (const auto& child : ranks_->processes().children().all()) result.push_back(child.pid);
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
