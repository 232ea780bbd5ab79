// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/threads.hpp>

#include "../support/ranks.hpp"

using ranks = support::as_threads<ddpp::threads>;
#include "message_suite.hpp"
