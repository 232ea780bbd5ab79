// SPDX-License-Identifier: BSL-1.0
// Only numbers can be divided by the number of ranks.
// expect: error: .*no matching function
// expect: reduction_op
#include <ddpp/ddpp.hpp>

#include <vector>

struct point {
  float x, y;
  friend point operator+(point a, point b) { return {a.x + b.x, a.y + b.y}; }
};

void add(ddpp::communicator<ddpp::threads>& comm, std::vector<point>& points) {
#ifdef WRONG
  ddpp::all_reduce(comm, points, ddpp::avg);
#else
  ddpp::all_reduce(comm, points, ddpp::sum);
#endif
}
