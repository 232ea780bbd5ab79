// SPDX-License-Identifier: BSL-1.0
// Units that were compiled with different flags share a communicator: no inline function's body depends on
// flags.
#include "two_units.hpp"

#include <stdexcept>

namespace {

template <class Transport>
void reduce_in_both() {
  ddpp::launch<Transport>(3, [](auto& comm) {
    std::vector<float> x(100'003, static_cast<float>(comm.rank()));
    part::plain(comm, x);   // 0 + 1 + 2
    part::native(comm, x);  // 3 + 3 + 3
    for (const float value : x) {
      if (value != 9.0f) throw std::runtime_error("a wrong sum");
    }
    if (comm.rank() == 0)
      part::plain(comm, x);  // each half of a collective in a unit of its own
    else
      part::native(comm, x);
    if (x.front() != 27.0f || x.back() != 27.0f) throw std::runtime_error("a wrong sum of both");
  });
}

}  // namespace

int main() {
  reduce_in_both<ddpp::threads>();
  reduce_in_both<ddpp::shm>();
}
