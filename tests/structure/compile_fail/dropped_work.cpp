// SPDX-License-Identifier: BSL-1.0
// A work that nobody keeps is warned about: it would be waited for at once.
// expect: (nodiscard|unused-result)
// expect: a work that is dropped is waited for at once
#pragma GCC diagnostic error "-Wunused-result"
#include <ddpp/ddpp.hpp>

#include <vector>

void reduce(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& gradient) {
#ifdef WRONG
  ddpp::all_reduce_async(comm, gradient);
#else
  ddpp::work pending = ddpp::all_reduce_async(comm, gradient);
#endif
}
