// SPDX-License-Identifier: BSL-1.0
// An algorithm of the user's that does not take what it is given is named so.
// expect: this algorithm has no all_reduce
#include <ddpp/ddpp.hpp>

#include <span>
#include <vector>

struct nothing_to_do {
#ifdef WRONG
  template <class Comm, class T>
  void all_reduce(Comm&, std::span<T>) const {}
#else
  template <class Comm, class T, class Op>
  void all_reduce(Comm&, std::span<T>, Op) const {}
#endif
};

void reduce(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& gradient) {
  ddpp::all_reduce(comm, gradient, ddpp::sum, nothing_to_do{});
}
