// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/shm.hpp>

#define TRANSPORT ddpp::shm
#include "random_recovery.hpp"
