// SPDX-License-Identifier: BSL-1.0
// All that descends from this process. What loses its parent becomes a child of this process, once it has
// adopted orphans: so nothing gets lost.
#pragma once

#include <functional>
#include <sys/types.h>
#include <vector>

namespace launcher {

/// From now on orphans among the descendants become this process's children.
void adopt_orphans();

bool has_children();

/// Takes the status of children that have ended, except of those that `is_rank` knows.
void reap_orphans(const std::function<bool(pid_t)>& is_rank);

/// SIGKILL to all descendants but these and theirs, until none is left; gives up after five seconds (a
/// process that waits for a broken disk cannot be killed). Where /proc is another PID namespace's they cannot
/// be found; they end with that namespace's process 1.
void kill_all_descendants(const std::vector<pid_t>& spared = {});

/// Whether a process has a handler of its own for this signal.
bool catches(pid_t process, int signal);

}  // namespace launcher
