// SPDX-License-Identifier: BSL-1.0
// A factor that integers would round, to 0 perhaps, is no reduction of them.
// expect: error: .*no matching function
// expect: reduction_op
#include <ddpp/ddpp.hpp>

#include <vector>

#ifdef WRONG
using element = int;
#else
using element = float;
#endif

void halve(ddpp::communicator<ddpp::threads>& comm, std::vector<element>& x) {
  ddpp::all_reduce(comm, x, ddpp::premul_sum(0.5));
}
