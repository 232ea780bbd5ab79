// SPDX-License-Identifier: BSL-1.0
#include "device_vector.hpp"

#define TRANSPORT ddpp::nccl
#include "../training/reducer_cases.hpp"
