// SPDX-License-Identifier: BSL-1.0
// An algorithm that is named for a collective must have it.
// expect: this algorithm has no broadcast
#include <ddpp/ddpp.hpp>

#include <vector>

#ifdef WRONG
using algorithm = ddpp::algorithms::recursive_doubling;
#else
using algorithm = ddpp::algorithms::tree;
#endif

void send_to_all(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& x) {
  ddpp::broadcast(comm, x, 0, algorithm{});
}
