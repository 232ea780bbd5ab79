// SPDX-License-Identifier: BSL-1.0
// What goes wrong has a name on every rank: mismatches, exceptions, revocation, absence, misuse.
#pragma once

#include <stdexcept>
#include <thread>

#include "suite.hpp"

using namespace conformance;

namespace {

// Each rank calls what does not fit together, rank 1 being the odd one out, and then a barrier: who cannot
// hear of the mismatch in the operation itself hears of it there.
template <class F>
void mismatch(F each_rank) {
  for (const int n : {2, 3, 5}) {
    on_ranks(n, [&](auto& comm) {
      const std::string text =
          EXPECT_THROWS(ddpp::mismatch_error, each_rank(comm, comm.rank() == 1); ddpp::barrier(comm));
      EXPECT(says(text, "rank 1"));
      EXPECT(says(text, "rank " + std::to_string(comm.rank()) + ", "));  // where it was thrown
      EXPECT_THROWS(ddpp::mismatch_error, ddpp::barrier(comm));          // and from now on
    });
  }
}

}  // namespace

CASE_IF(tells_of_mismatches(), "differing counts") {
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(odd ? 409'598 : 409'600);
    ddpp::all_reduce(comm, x);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(odd ? 20 : 10), all(x.size() * static_cast<std::size_t>(comm.size()));
    ddpp::all_gather(comm, x, all);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(odd ? 20 : 10);
    ddpp::broadcast(comm, x);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> piece(odd ? 4 : 3), all(piece.size() * static_cast<std::size_t>(comm.size()));
    ddpp::reduce_scatter(comm, all, piece);
  });
}

CASE_IF(tells_of_mismatches(), "differing types, reductions and roots") {
  mismatch([](auto& comm, bool odd) {
    std::vector<float> f(10);
    std::vector<int> i(10);
    if (odd)
      ddpp::all_reduce(comm, i);
    else
      ddpp::all_reduce(comm, f);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10);
    if (odd)
      ddpp::all_reduce(comm, x, ddpp::max);
    else
      ddpp::all_reduce(comm, x, ddpp::sum);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10);
    ddpp::broadcast(comm, x, odd ? 1 : 0);
  });
}

CASE_WHERE(ddpp::has_control_plane<transport>&& ddpp::runs_algorithms<transport>, "differing algorithms") {
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10);
    if (odd)
      ddpp::all_reduce(comm, x, ddpp::sum, ddpp::algorithms::tree{});
    else
      ddpp::all_reduce(comm, x, ddpp::sum, ddpp::algorithms::ring{});
  });
}

CASE_IF(tells_of_mismatches(), "differing operations, and one more or less of them") {
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10);
    if (odd)
      ddpp::broadcast(comm, x);
    else
      ddpp::all_reduce(comm, x);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10);
    if (odd) ddpp::barrier(comm);
    ddpp::all_reduce(comm, x);
  });
  mismatch([](auto& comm, bool odd) {
    std::vector<float> x(10), y(200'000);
    if (odd)
      ddpp::all_reduce(comm, y), ddpp::all_reduce(comm, x);
    else
      ddpp::all_reduce(comm, x), ddpp::all_reduce(comm, y);
  });
}

CASE_IF(tells_of_mismatches(), "all ranks report the same table") {
  on_ranks(3, [](auto& comm) {
    std::vector<int> x(comm.rank() == 2 ? 8 : 9);
    const std::string text = EXPECT_THROWS(ddpp::mismatch_error, ddpp::all_reduce(comm, x));
    EXPECT(says(text, "rank 2 called something else"));
    EXPECT(says(text, ": in all_reduce #1 (sum of 9 int32)") &&  // of whoever came first
           says(text, "rank 2: in all_reduce #1 (sum of 8 int32)"));
  });
}

TEST_CASE("misuse is said before anything is sent, and harms nothing") {
  on_ranks(2, [](auto& comm) {
    std::vector<float> x(10), y(7), whole(20);
    EXPECT(says(EXPECT_THROWS(ddpp::usage_error, ddpp::broadcast(comm, x, 2)), "2 is not a rank"));
    EXPECT_THROWS(ddpp::usage_error, ddpp::broadcast(comm, x, -1));
    EXPECT(says(EXPECT_THROWS(ddpp::usage_error, ddpp::all_gather(comm, x, y)), "20"));
    EXPECT_THROWS(ddpp::usage_error, ddpp::reduce_scatter(comm, x, y));
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_reduce(comm, x, y));
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_to_all(comm, y, y));
    EXPECT_THROWS(ddpp::usage_error, ddpp::send(comm, x, -1));
    if constexpr (ddpp::has_tags<transport>) EXPECT_THROWS(ddpp::usage_error, ddpp::send(comm, x, 1, -3));
    EXPECT_THROWS(ddpp::usage_error, ddpp::recv(comm, x, 2));
    EXPECT_THROWS(ddpp::usage_error, comm.subgroup({0, 5}));
    EXPECT_THROWS(ddpp::usage_error, comm.subgroup({1 - comm.rank()}));
    EXPECT_THROWS(ddpp::usage_error, comm.subgroup({0, 0, 1}));
    // Overlap in part, from either side.
    const auto front = std::span(whole).first(10), shifted = std::span(whole).subspan(3, 10);
    EXPECT(says(EXPECT_THROWS(ddpp::usage_error, ddpp::all_reduce(comm, front, shifted)), "overlap"));
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_reduce(comm, shifted, front));
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_gather(comm, std::span(whole).subspan(5, 10), whole));
    EXPECT_THROWS(ddpp::usage_error, ddpp::send_recv(comm, x, 1 - comm.rank(), x, 1 - comm.rank()));
    // Counts that contradict each other, or wrap around.
    const std::size_t sent[] = {2, 2}, wrapping[] = {static_cast<std::size_t>(-7), 7};
    std::size_t arriving[] = {2, 2};
    arriving[comm.rank()] = 1;
    std::vector<int> four(4), three(3), seven(7), none;
    EXPECT(says(EXPECT_THROWS(ddpp::usage_error, ddpp::all_to_all_v(comm, four, sent, three, arriving)),
                "from itself"));
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_gather_v(comm, seven, none, wrapping));
    std::vector<int> ones(10, 1);
    ddpp::all_reduce(comm, ones);
    EXPECT(ones[9] == 2);
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "an exception in a reduction on one rank ends the operation on all") {
  for (const int n : {2, 4}) {
    on_ranks(n, [](auto& comm) {
      std::vector<int> x(50'000, 1);
      const auto op = [&](int a, int b) {
        if (comm.rank() == 1) throw std::domain_error("not today");
        return a + b;
      };
      if (comm.rank() == 1) {
        EXPECT_THROWS(std::domain_error, ddpp::all_reduce(comm, x, op));
      } else {
        const std::string text =
            EXPECT_THROWS(ddpp::revoked_error, ddpp::all_reduce(comm, x, op); ddpp::barrier(comm));
        EXPECT(says(text, "rank 1 threw") && says(text, "not today"));
      }
      EXPECT_THROWS(ddpp::revoked_error, ddpp::barrier(comm));
    });
  }
}

TEST_CASE("revoke ends what is pending and what comes, on all ranks, and names who began it") {
  on_ranks(3, [](auto& comm) {
    std::vector<int> x(100, 1);
    if (comm.rank() == 2) {
      comm.revoke("out of memory");
    } else {
      // The news may be there before the call, or come while it is pending.
      const std::string text =
          EXPECT_THROWS(ddpp::revoked_error, auto work = ddpp::all_reduce_async(comm, x); work.wait());
      EXPECT(says(text, "out of memory"));
    }
    try {
      ddpp::all_reduce(comm, x);
      EXPECT(false);
    } catch (const ddpp::revoked_error& e) {
      EXPECT(e.rank() == 2);
    }
    EXPECT_THROWS(ddpp::revoked_error, ddpp::send(comm, x, 0));
  });
}

CASE_WHERE(ddpp::has_control_plane<transport>, "who does not come is named") {
  on_ranks(
      4,
      [](auto& comm) {
        // Ranks 1 and 2 are away until it is over. Their messages are not collectives; on a device's stream
        // they would fail the group themselves.
        std::vector<int> x(10), never(1);
        if (comm.rank() == 1 || comm.rank() == 2) {
          ddpp::work message;
          if constexpr (!ddpp::has_stream_order<transport>)
            message = ddpp::irecv(comm, never, comm.rank() == 1 ? 0 : 3);
          while (!comm.transport().failed()) std::this_thread::sleep_for(5ms);
          EXPECT_THROWS(ddpp::timeout_error, ddpp::all_reduce(comm, x));
          return;
        }
        const std::string text = EXPECT_THROWS(ddpp::timeout_error, ddpp::all_reduce(comm, x));
        EXPECT(says(text, "rank 1, rank 2 have not come"));
      },
      3s);
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "an error that nobody waited for is thrown by the next call") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x(1000, 1);
    const auto op = [&](int a, int b) {
      if (comm.rank() == 0) throw std::domain_error("unseen");
      return a + b;
    };
    { [[maybe_unused]] auto dropped = ddpp::all_reduce_async(comm, x, op); }
    if (comm.rank() == 0) EXPECT_THROWS(std::domain_error, ddpp::barrier(comm));
    EXPECT_THROWS(ddpp::revoked_error, ddpp::barrier(comm));
  });
}

TEST_CASE("the outer communicator inside a script is refused instead of waiting for itself") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x(3, 1);
    // The other rank's failure may be there before this rank's own.
    const std::string text = EXPECT_THROWS(
        ddpp::error,
        auto work = comm.start({.op = ddpp::collective::user}, [&](auto&) { ddpp::all_reduce(comm, x); });
        work.wait());
    EXPECT(says(text, "use the communicator that it is given"));
  });
}
