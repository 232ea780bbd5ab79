// SPDX-License-Identifier: BSL-1.0
// What the command line asks for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace launcher {

/// A command line that cannot be followed: exit status 2.
class bad_input : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Which of a rank's output streams something applies to.
struct streams {
  bool out = false;
  bool err = false;
};

/// torchrun's "3" (all ranks: 1 stdout, 2 stderr, 3 both) or "0:1,1:3" (by local rank).
struct stream_choice {
  streams all = {};
  std::map<int, streams> of_rank = {};

  streams of(int local_rank) const {
    const auto found = of_rank.find(local_rank);
    return found == of_rank.end() ? all : found->second;
  }
  bool any() const { return all.out || all.err || !of_rank.empty(); }
};

/// Where the nodes meet.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;
};

struct plan {
  int nodes = 1;
  int local_ranks = 1;
  std::optional<int> node_rank = {};  ///< none: by arrival
  std::optional<endpoint> meeting = {};
  std::optional<std::string> master_addr = {};
  std::optional<std::uint16_t> master_port = {};
  std::string job = {};
  std::string role = "default";
  std::chrono::milliseconds meeting_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds monitor_interval = std::chrono::milliseconds(100);
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  int max_restarts = 0;
  std::string log_dir = {};
  stream_choice redirects = {};
  stream_choice tees = {};
  std::vector<int> shown_ranks = {};  ///< local ranks; empty: all
  std::vector<int> signals = {};      ///< what is passed on to the ranks
  bool prefixes = true;
  bool passes_local_rank = false;
  bool binds_to_cores = false;
  std::vector<std::string> command = {};
};

}  // namespace launcher
