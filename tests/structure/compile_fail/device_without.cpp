// SPDX-License-Identifier: BSL-1.0
// What there is not on a device does not compile, and is not done in some slow way instead.
// needs: /usr/local/cuda/include/nccl.h
// expect: ddpp: NCCL's messages have no tags
// expect: ddpp: NCCL has no bitwise operations
// expect: ddpp: NCCL has operations of its own alone
// expect: ddpp: NCCL does not reduce elements of this type
// expect: ddpp: algorithms work in host memory
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#include <cstdint>

using communicator = ddpp::communicator<ddpp::nccl>;

#ifdef WRONG
using number = std::int16_t;
constexpr auto bits = ddpp::bor;
constexpr auto least = [](int a, int b) { return a < b ? a : b; };
#else
using number = std::int32_t;
constexpr auto bits = ddpp::max;
constexpr auto least = ddpp::min;
#endif

void messages(communicator& comm, ddpp::device_span<int> x) {
#ifdef WRONG
  ddpp::send(comm, x, 1, 5);
#else
  ddpp::send(comm, x, 1);
#endif
}
void bitwise(communicator& comm, ddpp::device_span<int> x) { ddpp::all_reduce(comm, x, bits); }
void function(communicator& comm, ddpp::device_span<int> x) { ddpp::reduce(comm, x, least); }
void elements(communicator& comm, ddpp::device_span<number> x, ddpp::device_span<number> y) {
  ddpp::broadcast(comm, x);
  ddpp::reduce_scatter(comm, x, y);
}
void algorithm(communicator& comm, ddpp::device_span<int> x) {
#ifdef WRONG
  ddpp::broadcast(comm, x, 0, ddpp::algorithms::ring());
#else
  ddpp::broadcast(comm, x, 0);
#endif
}
