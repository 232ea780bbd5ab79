// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/shm.hpp>

using transport = ddpp::shm;
#include "agreement_cases.hpp"
