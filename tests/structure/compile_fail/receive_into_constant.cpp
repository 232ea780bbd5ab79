// SPDX-License-Identifier: BSL-1.0
// What is received is written.
// expect: error: .*no matching function
// expect: mutable_buffer
#include <ddpp/ddpp.hpp>

#include <span>

#ifdef WRONG
using place = std::span<const float>;
#else
using place = std::span<float>;
#endif

void take(ddpp::communicator<ddpp::threads>& comm, place from_rank_0) { ddpp::recv(comm, from_rank_0, 0); }
