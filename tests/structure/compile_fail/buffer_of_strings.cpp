// SPDX-License-Identifier: BSL-1.0
// Elements that cannot be copied byte by byte are no buffer.
// expect: error: .*no matching function
// expect: is_trivially_copyable
#include <ddpp/ddpp.hpp>

#include <string>
#include <vector>

#ifdef WRONG
using element = std::string;
#else
using element = char;
#endif

void send_to_all(ddpp::communicator<ddpp::threads>& comm, std::vector<element>& words) {
  ddpp::broadcast(comm, words);
}
