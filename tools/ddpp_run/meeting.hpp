// SPDX-License-Identifier: BSL-1.0
// Several nodes, each with its ddpp-run: they meet in a store that the one serves whose address the endpoint
// is, agree on their order, and from then on know of each other's failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "job_failure.hpp"
#include "plan.hpp"

namespace ddpp {
class tcp_store;
}

namespace launcher {

/// The nodes have not come together: names those that are missing, or says why this one is not wanted.
class meeting_failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct node_info {
  std::string token;  ///< this start of ddpp-run, and no other
  std::string host;
  int local_ranks = 0;
};

/// Where the ranks of an attempt meet.
struct meeting_place {
  std::string host;        ///< MASTER_ADDR
  std::string store_host;  ///< numeric, so that all find the same store: ddpp's, served by node 0
  std::uint16_t store_port = 0;
  std::uint16_t master_port = 0;  ///< free, for rank 0 to listen on
};

/// Not thread-safe. After construction every function throws `meeting_failed` when the node that serves the
/// store has gone, or has been silent for 30 s at least. While it is silent nothing is known and nothing
/// done: each function says so, some within six seconds, others at once.
///
/// Keys: "job", "nodes" what all must agree on; "node/<n>" the token of the start that is node n;
/// "info/<token>" its node_info; "alive/<token>" held by it; "roster" all in order, set once; "over" why
/// there will be no job, or none any more; "place/<attempt>", "failure/<attempt>" (the first),
/// "done/<attempt>/<n>" that node n's ranks are.
class meeting {
 public:
  /// Blocks until all nodes have come, at most todo.meeting_timeout. `interrupt` is called often and may
  /// throw. Throws `meeting_failed`.
  meeting(const plan& todo, const std::function<void()>& interrupt);
  ~meeting();

  int node() const noexcept { return node_; }
  const std::vector<node_info>& nodes() const noexcept { return nodes_; }
  /// By which the other nodes can reach this one.
  std::string address() const;

  /// False where it has to be done again.
  bool set_place(int attempt, const meeting_place& place);
  std::optional<meeting_place> place(int attempt);

  /// Makes this the attempt's failure unless there is one. Returns the one that counts: this, as a final one,
  /// where nobody answers.
  job_failure announce(int attempt, job_failure failure);
  /// Also finds nodes that have gone, on the node that serves.
  std::optional<job_failure> failure(int attempt);

  /// False where it has to be done again.
  bool set_done(int attempt);
  bool all_done(int attempt);

  /// The node that serves the store waits until the others need it no more, at most so long.
  void leave(std::chrono::milliseconds limit);

 private:
  using clock = std::chrono::steady_clock;

  bool connect(std::chrono::milliseconds limit);
  bool join();
  void agree(const std::string& key, const std::string& value, const std::string& what);
  void claim();
  bool claim(int node);
  bool is_taken(int node);
  void complete();
  bool read_roster();
  std::string missing_nodes();
  [[noreturn]] void give_up();
  void find_lost_nodes(int attempt);
  bool set(const std::string& key, const std::string& value);
  std::optional<std::string> value(const std::string& key);
  /// Empty where the node that serves does not answer, but has not been silent for long enough to be lost.
  template <class F>
  auto ask(F&& call) -> std::optional<decltype(call())>;
  [[noreturn]] void fail(const std::string& why) const;

  const plan& todo_;
  node_info self_;
  int node_ = -1;
  std::vector<node_info> nodes_ = {};
  std::string problem_ = {};  ///< why it could not connect
  std::shared_ptr<ddpp::tcp_store> store_;
  std::shared_ptr<void> alive_;
  clock::time_point next_look_ = {};
  std::optional<clock::time_point> silent_since_ = {};  ///< the node that serves
  clock::time_point next_try_ = {};                     ///< meanwhile
};

}  // namespace launcher
