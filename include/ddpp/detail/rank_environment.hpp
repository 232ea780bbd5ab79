// SPDX-License-Identifier: BSL-1.0
// The environment of a forked rank: torchrun's variables, which `init`, `local_rank` and `local_size` read.
#pragma once

#include <ddpp/detail/text.hpp>

#include <cstdlib>
#include <string>

namespace ddpp::detail {

/// `node_rank` is the number of this host, which has `local_size` ranks. What a surrounding launcher has set
/// is out of the way; no place to meet is named.
[[gnu::cold]] inline void set_rank_environment(int rank, int size, int local_rank, int local_size,
                                               int node_rank) {
  for (const char* name :
       {"DDPP_RANK", "DDPP_WORLD_SIZE", "DDPP_LOCAL_RANK", "DDPP_LOCAL_WORLD_SIZE", "DDPP_INIT_METHOD",
        "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"}) {
    ::unsetenv(name);
  }
  const auto set = [](const char* name, int value) { ::setenv(name, text(value).c_str(), 1); };
  set("RANK", rank);
  set("WORLD_SIZE", size);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", local_size);
  set("GROUP_RANK", node_rank);
}

}  // namespace ddpp::detail
