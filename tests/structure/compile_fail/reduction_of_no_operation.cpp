// SPDX-License-Identifier: BSL-1.0
// An operation that does not take two elements and give one is no reduction.
// expect: error: .*no matching function
// expect: reduction_op
#include <ddpp/ddpp.hpp>

#include <vector>

void reduce(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& gradient) {
#ifdef WRONG
  ddpp::all_reduce(comm, gradient, [](float only) { return only; });
#else
  ddpp::all_reduce(comm, gradient, [](float a, float b) { return a + b; });
#endif
}
