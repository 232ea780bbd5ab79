// SPDX-License-Identifier: BSL-1.0
// Input and output are of one type.
// expect: input and output of all_reduce must have the same element type
#include <ddpp/ddpp.hpp>

#include <vector>

#ifdef WRONG
using output = std::vector<double>;
#else
using output = std::vector<float>;
#endif

void reduce(ddpp::communicator<ddpp::threads>& comm, const std::vector<float>& in, output& out) {
  ddpp::all_reduce(comm, in, out);
}
