// SPDX-License-Identifier: BSL-1.0
// An asynchronous operation takes nothing that would be gone before it is done.
// expect: an asynchronous operation cannot take a temporary that owns its elements
#include <ddpp/ddpp.hpp>

#include <span>
#include <vector>

ddpp::work reduce(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& gradient) {
#ifdef WRONG
  return ddpp::all_reduce_async(comm, std::vector<float>(gradient));
#else
  return ddpp::all_reduce_async(comm, std::span(gradient));
#endif
}
