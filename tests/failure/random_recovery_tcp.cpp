// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/tcp.hpp>

#define TRANSPORT ddpp::tcp
#include "random_recovery.hpp"
