// SPDX-License-Identifier: BSL-1.0
// Compiled twice, as part::plain and part::native, with different flags.
#include "two_units.hpp"

void part::UNIT(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& x) { ddpp::all_reduce(comm, x); }
void part::UNIT(ddpp::communicator<ddpp::shm>& comm, std::vector<float>& x) { ddpp::all_reduce(comm, x); }
