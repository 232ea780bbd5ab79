// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/tcp.hpp>

using transport = ddpp::tcp;
#include "agreement_cases.hpp"
