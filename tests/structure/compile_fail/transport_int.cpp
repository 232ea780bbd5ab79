// SPDX-License-Identifier: BSL-1.0
// What is no transport is said to be none.
// expect: error: .*(constraint|no matching)
// expect: transport
#include <ddpp/ddpp.hpp>

#ifdef WRONG
using transport = int;
#else
using transport = ddpp::threads;
#endif

void start() {
  ddpp::launch<transport>(2, [](auto&) {});
}
