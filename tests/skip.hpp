// SPDX-License-Identifier: BSL-1.0
// How a test case says that it cannot run here. Each such case needs a line in tests/allowed-skips.
#pragma once

namespace ddpp::testing {

/// Counts the running test case as skipped, with the reason; the case then returns.
void skip(const char* reason);

}  // namespace ddpp::testing
