// SPDX-License-Identifier: BSL-1.0
// What is to be written cannot be constant.
// expect: error: .*no matching function
// expect: mutable_buffer
#include <ddpp/ddpp.hpp>

#include <vector>

#ifdef WRONG
using values = const std::vector<float>;
#else
using values = std::vector<float>;
#endif

void reduce(ddpp::communicator<ddpp::threads>& comm, values& gradient) { ddpp::all_reduce(comm, gradient); }
