// SPDX-License-Identifier: BSL-1.0
// The dissemination barrier (Hensgen, Finkel and Manber, 1988): ceil(log2 n) rounds of empty messages; in
// each, a rank tells the one at distance 1, 2, 4, ... after it and hears from the one as far before it.
#pragma once

#include <ddpp/detail/exchange.hpp>

#include <string_view>

namespace ddpp::algorithms {

struct dissemination {
  static constexpr std::string_view name = "dissemination";

  template <class Comm>
  void barrier(Comm& comm) const {
    const int n = comm.size();
    detail::send_window<Comm> sends(comm);
    for (int distance = 1; distance < n; distance *= 2) {
      sends.send({}, (comm.rank() + distance) % n);
      detail::receive(comm, {}, (comm.rank() + n - distance) % n);
    }
    sends.finish();
  }
};

}  // namespace ddpp::algorithms
