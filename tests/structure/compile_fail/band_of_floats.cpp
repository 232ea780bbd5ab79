// SPDX-License-Identifier: BSL-1.0
// Bits of floating-point numbers are not combined.
// expect: error: .*no matching function
// expect: reduction_op
#include <ddpp/ddpp.hpp>

#include <vector>

#ifdef WRONG
using element = float;
#else
using element = unsigned;
#endif

void mask(ddpp::communicator<ddpp::threads>& comm, std::vector<element>& flags) {
  ddpp::all_reduce(comm, flags, ddpp::band);
}
