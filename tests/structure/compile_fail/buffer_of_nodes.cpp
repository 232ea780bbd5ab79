// SPDX-License-Identifier: BSL-1.0
// Elements that do not follow each other in memory are no buffer.
// expect: error: .*no matching function
// expect: as_span
#include <ddpp/ddpp.hpp>

#include <list>
#include <vector>

#ifdef WRONG
using container = std::list<float>;
#else
using container = std::vector<float>;
#endif

void send_to_all(ddpp::communicator<ddpp::threads>& comm, container& values) {
  ddpp::broadcast(comm, values);
}
