// SPDX-License-Identifier: BSL-1.0
// What the flight recorder of one rank has written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddpp_explain {

struct recorded {
  std::uint64_t sequence = 0;
  std::string operation, description, state;  ///< "queued", "running", "done", "failed"
  std::map<std::string, double> since;        ///< by state, in seconds of the system's clock
  int peer = -1, tag = 0;                     ///< of messages

  bool begun() const { return state != "queued"; }
};

struct dump {
  std::string file, group, transport, reason;
  int rank = 0, size = 0;
  double written = 0;
  std::vector<recorded> collectives, messages;  ///< the oldest first
};

struct group_dumps {
  int size = 0;
  std::map<int, dump> by_rank;
};

/// Throws std::runtime_error that names the file, when it is none of a flight recorder.
dump read_dump(const std::string& file);

/// Throws std::runtime_error when two files are of the same rank, or of groups of different sizes.
void add(std::map<std::string, group_dumps>& groups, dump next);

}  // namespace ddpp_explain
