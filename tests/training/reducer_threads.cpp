// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/threads.hpp>

#define TRANSPORT ddpp::threads
#include "reducer_cases.hpp"
