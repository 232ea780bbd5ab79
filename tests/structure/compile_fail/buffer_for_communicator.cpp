// SPDX-License-Identifier: BSL-1.0
// The communicator comes first.
// expect: error: .*no matching function
// expect: any_communicator|is_communicator
#include <ddpp/ddpp.hpp>

#include <vector>

void reduce(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& gradient) {
#ifdef WRONG
  ddpp::all_reduce(gradient, comm);
#else
  ddpp::all_reduce(comm, gradient);
#endif
}
