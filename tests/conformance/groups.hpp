// SPDX-License-Identifier: BSL-1.0
// Groups within groups, scripts with a context of their own, and algorithms of the user's.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

#include "suite.hpp"

using namespace conformance;

namespace {

struct gather_then_broadcast {
  template <class Comm, class T, class Op>
  void all_reduce(Comm& comm, std::span<T> data, Op op) const {
    if (comm.rank() != 0) {
      ddpp::send(comm, data, 0);
    } else {
      std::vector<T> other(data.size());
      for (int r = 1; r < comm.size(); ++r) {
        ddpp::recv(comm, other, r);
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = op(data[i], other[i]);
      }
    }
    ddpp::broadcast(comm, data, 0);
  }
};

template <class C>
void expect_works(C& comm, int size) {
  EXPECT(comm.size() == size);
  std::vector<int> x(1000, 1);
  ddpp::all_reduce(comm, x);
  EXPECT(x[999] == size);
}

}  // namespace

TEST_CASE("split by color, ordered by key, nested") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      auto side = comm.split(comm.rank() % 2, -comm.rank());
      const int size = (comm.size() + 1 - comm.rank() % 2) / 2;
      expect_works(side, size);
      EXPECT(side.rank() == size - 1 - comm.rank() / 2);  // the keys turn the order round
      auto quarter = side.split(side.rank() % 2);
      expect_works(quarter, (side.size() + 1 - side.rank() % 2) / 2);
      auto single = comm.split(comm.rank());
      expect_works(single, 1);
      ddpp::barrier(single);
      auto same = comm.duplicate();
      expect_works(same, comm.size());
      EXPECT(same.rank() == comm.rank());
    });
  }
}

TEST_CASE("subgroups, called by members only, in any order") {
  on_ranks(5, [](auto& comm) {
    for (int round = 0; round < 2; ++round) {
      if (comm.rank() == 0 || comm.rank() == 3) {
        auto outer = comm.subgroup({3, 0});
        EXPECT(outer.rank() == (comm.rank() == 3 ? 0 : 1));
        expect_works(outer, 2);
      }
      if (comm.rank() == 1 || comm.rank() == 2) {
        auto inner = comm.subgroup({1, 2});
        expect_works(inner, 2);
      }
    }
    expect_works(comm, 5);
  });
}

CASE_WHERE(ddpp::has_control_plane<transport>, "members of a subgroup who list different ranks are told so") {
  on_ranks(3, [](auto& comm) {
    const std::vector<int> list = comm.rank() == 2 ? std::vector{2, 1} : std::vector{0, 1, 2};
    const std::string text = EXPECT_THROWS(ddpp::usage_error, comm.subgroup(list));
    EXPECT(says(text, "disagree"));
    expect_works(comm, 3);
  });
  on_ranks(3, [](auto& comm) {  // the same lists in turn, and overlapping ones: no false alarm
    for (int round = 0; round < 5; ++round) {
      if (comm.rank() != 2) {
        auto pair = comm.subgroup({0, 1});
        expect_works(pair, 2);
      }
      auto all = comm.subgroup({2, 0, 1});
      expect_works(all, 3);
      if (comm.rank() != 0) {
        auto pair = comm.subgroup({1, 2});
        expect_works(pair, 2);
      }
    }
  });
}

TEST_CASE("collectives of a group and of its parts do not meet") {
  on_ranks(4, [](auto& comm) {
    auto pair = comm.split(comm.rank() / 2);
    std::vector<int> all(20'000, 1), part(20'000, 1);
    auto first = ddpp::all_reduce_async(comm, all);
    auto second = ddpp::all_reduce_async(pair, part);
    second.wait();
    first.wait();
    EXPECT(all[0] == 4 && part[0] == 2);
  });
}

TEST_CASE("a moved communicator and a second handle") {
  on_ranks(2, [](auto& comm) {
    auto other = comm.share();
    auto moved = std::move(other);
    expect_works(moved, 2);
    expect_works(comm, 2);
    std::vector<int> x(10, 1);
    EXPECT_THROWS(ddpp::usage_error, ddpp::all_reduce(other, x));
    EXPECT_THROWS(ddpp::usage_error, (void)ddpp::isend(other, x, 0));
    EXPECT_THROWS(ddpp::usage_error, ddpp::barrier(other));
    EXPECT_THROWS(ddpp::usage_error, (void)other.split(0));
    EXPECT_THROWS(ddpp::usage_error, other.revoke("misuse"));
    ddpp::work pending;
    {
      auto brief = comm.duplicate();
      pending = ddpp::all_reduce_async(brief, x);
    }
    pending.wait();  // kept its group alive
    EXPECT(x[0] == 2);
  });
}

CASE_WHERE(ddpp::has_tags<transport>, "a script's messages and collectives have a context of their own") {
  on_ranks(3, [](auto& comm) {
    std::vector<int> outer(1, comm.rank()), inner(1, 10 * comm.rank()), got(1), sum(4, 1);
    const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
    auto posted = ddpp::irecv(comm, got, previous);  // must not get what the script sends
    auto work = comm.start({.op = ddpp::collective::user}, [&](auto& inside) {
      EXPECT(inside.rank() == comm.rank() && inside.size() == 3);
      std::vector<int> in(1);
      ddpp::send_recv(inside, inner, next, in, previous);
      EXPECT(in[0] == 10 * previous);
      ddpp::all_reduce(inside, sum);
      ddpp::barrier(inside);
    });
    work.wait();
    ddpp::send(comm, outer, next);
    posted.wait();
    EXPECT(got[0] == previous && sum[3] == 3);
  });
}

TEST_CASE("a script may exchange messages on the communicator that it was started from") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> out(1, comm.rank()), in(1);
    auto work = comm.start({.op = ddpp::collective::user},
                           [&](auto&) { ddpp::send_recv(comm, out, 1 - comm.rank(), in, 1 - comm.rank()); });
    work.wait();
    EXPECT(in[0] == 1 - comm.rank());
  });
}

CASE_WHERE(!ddpp::has_stream_order<transport>, "a script that waits for what comes after it is told so") {
  on_ranks(1, [](auto& comm) {
    ddpp::work later;
    std::atomic<bool> issued{false};
    auto work = comm.start({.op = ddpp::collective::user}, [&](auto&) {
      while (!issued) std::this_thread::sleep_for(1ms);
      later.wait();
    });
    later = ddpp::barrier_async(comm);
    issued = true;
    EXPECT_THROWS(ddpp::usage_error, work.wait());
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "an algorithm from public pieces only") {
  on_ranks(4, [](auto& comm) {
    std::vector<double> x(1000, comm.rank());
    ddpp::all_reduce(comm, x, ddpp::sum, gather_then_broadcast{});
    EXPECT(x[999] == 6.0);
  });
  on_ranks<transport, gather_then_broadcast>(3, [](auto& comm) {
    std::vector<double> x(1000, comm.rank());
    ddpp::all_reduce(comm, x);
    EXPECT(x[0] == 3.0);
    std::vector<double> y(500, 2.0);
    ddpp::all_reduce(comm, y, ddpp::avg);
    EXPECT(y[0] == 2.0);
    ddpp::broadcast(comm, x, 2);
    ddpp::barrier(comm);
  });
}

TEST_CASE("a world of one needs nobody") {
  ddpp::bootstrap boot;
  boot.deadline = std::chrono::steady_clock::now() + generous;
  ddpp::communicator<transport> comm(boot);
  expect_works(comm, 1);
  std::vector<int> x(5, 3), y(5);
  ddpp::all_gather(comm, x, y);
  CHECK(x == y);
  ddpp::reduce_scatter(comm, x, y, ddpp::avg);
  CHECK(x == y);
  auto work = ddpp::broadcast_async(comm, x);
  work.wait();
  ddpp::barrier(comm);
  auto part = comm.split(7);
  expect_works(part, 1);
}
