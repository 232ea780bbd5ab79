// SPDX-License-Identifier: BSL-1.0
// The message suite on ranks that are threads of one process, where the thread sanitizer sees all of them.
#include <ddpp/backends/tcp.hpp>

#include "../support/ranks.hpp"

using ranks = support::as_threads<ddpp::tcp>;
#include "message_suite.hpp"
