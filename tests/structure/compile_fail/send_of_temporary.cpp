// SPDX-License-Identifier: BSL-1.0
// A message is not sent from what is gone before it has left.
// expect: an asynchronous operation cannot take a temporary that owns its elements
#include <ddpp/ddpp.hpp>

#include <vector>

ddpp::work greet(ddpp::communicator<ddpp::threads>& comm, std::vector<int>& message) {
#ifdef WRONG
  (void)message;
  return ddpp::isend(comm, std::vector<int>{1, 2, 3}, 1);
#else
  return ddpp::isend(comm, message, 1);
#endif
}
