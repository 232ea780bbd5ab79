// SPDX-License-Identifier: BSL-1.0
// The process that a user starts and signals. It does nothing but keep the one that does the work: so
// whichever of the two is killed, the other ends what they have started.
#pragma once

#include <chrono>
#include <functional>

#include "signals.hpp"

namespace launcher {

/// Forks a child that returns work() as its status, passes signals on to it, takes the status of orphans (as
/// process 1 must), and once the child has ended kills what is left of its descendants (children that this
/// process had before stay). Returns the child's status, 128 + n for signal n. A child that is told to end
/// and does not within `patience` is killed. `work` gets a function that tells whether the keeper is still
/// there; if not, the child has had SIGTERM.
int keep(const waited_signals& signals, std::chrono::milliseconds patience,
         const std::function<int(const std::function<bool()>& kept)>& work);

}  // namespace launcher
