// SPDX-License-Identifier: BSL-1.0
// The message suite on ranks that are processes.
#include <ddpp/backends/tcp.hpp>

#include "../support/ranks.hpp"

using ranks = support::as_processes<ddpp::tcp>;
#include "message_suite.hpp"
