// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>
#include <string>

#include "plan.hpp"
#include "signals.hpp"

namespace launcher {

/// This node's part of the job, from meeting the other nodes to the last attempt. Returns the job's exit
/// status. `folder` is for logs and error files; `kept` tells whether the process that the user started is
/// there.
int launch(const plan& todo, const sigset_t& rank_signals, const std::string& folder,
           const std::function<bool()>& kept);

}  // namespace launcher
