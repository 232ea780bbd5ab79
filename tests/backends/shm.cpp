// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/shm.hpp>

#include "../support/ranks.hpp"

using ranks = support::as_processes<ddpp::shm>;
#include "message_suite.hpp"
