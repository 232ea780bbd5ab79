// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/tcp.hpp>

#define TRANSPORT ddpp::tcp
#include "reducer_cases.hpp"
