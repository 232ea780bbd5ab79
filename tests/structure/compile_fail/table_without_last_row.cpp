// SPDX-License-Identifier: BSL-1.0
// A table of algorithms must have an answer for every size and number of ranks.
// expect: this table of algorithms has no row without limits
#include <ddpp/ddpp.hpp>

#include <tuple>
#include <vector>

using namespace ddpp::algorithms;

struct table : default_table {
  static constexpr std::tuple all_reduce{
      row{"shm", any, any, tree{}},
#ifdef WRONG
      row{"threads", 1 << 20, any, ring {}},
#else
      row{"", any, any, ring{}},
#endif
  };
};

void sum(ddpp::communicator<ddpp::threads, automatic_with<table>>& comm, std::vector<float>& x) {
  ddpp::all_reduce(comm, x);
}
