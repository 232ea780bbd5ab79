// SPDX-License-Identifier: BSL-1.0
// Going on after a failure without anybody dying: agree, recover, shrink. (Deaths: tests/failure.)
#pragma once

#include <ddpp/agreement.hpp>

#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Only transports that can decide have what is tested here.
template <class T = transport, class F>
void on_ranks_that_decide(int n, F f, std::chrono::milliseconds timeout = generous) {
  if constexpr (ddpp::has_agreement<T>) on_ranks<T>(n, f, timeout);
}

template <class C>
void expect_sums(C& comm, int size) {
  EXPECT(comm.size() == size);
  std::vector<int> x(5000, comm.rank() + 1);
  ddpp::all_reduce(comm, x);
  EXPECT(x[0] == size * (size + 1) / 2 && x[4999] == x[0]);
}

template <class C>
void expect_revoked(C& comm, int by) {
  try {
    std::vector<int> x(100'000, 1);
    for (;;) ddpp::all_reduce(comm, x);
  } catch (const ddpp::revoked_error& e) {
    EXPECT(e.rank() == by);
  }
}

/// Long enough for ranks that come at once, short enough to wait for in vain.
constexpr auto short_time = 3s;

template <class C>
void give_word(C& comm, int to) {
  ddpp::send(comm, std::vector<int>{1}, to);
}

/// However many time-outs it takes.
template <class C>
void await_word(C& comm, int from) {
  for (std::vector<int> word(1);;) {
    try {
      return ddpp::recv(comm, word, from);
    } catch (const ddpp::timeout_error&) {
    }
  }
}

}  // namespace

TEST_CASE("agree: true if all say so, whoever says no, in good times and bad") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks_that_decide(n, [](auto& comm) {
      for (const bool failed : {false, true}) {
        if (failed) comm.revoke("now in bad times");
        EXPECT(comm.agree(true));
        for (int no = 0; no < comm.size(); ++no) EXPECT(!comm.agree(comm.rank() != no));
        EXPECT(!comm.agree(false));
        EXPECT(comm.agree(true));
      }
    });
  }
}

TEST_CASE("agree waits for no collective, and none for it") {
  on_ranks_that_decide(3, [](auto& comm) {
    std::vector<int> x(10, 1), out(1, comm.rank()), in(1);
    std::optional<ddpp::work> reduced;
    if (comm.rank() != 2) reduced = ddpp::all_reduce_async(comm, x);
    auto received = ddpp::irecv(comm, in, (comm.rank() + 1) % 3);
    EXPECT(comm.agree(true));
    if (comm.rank() == 2) reduced = ddpp::all_reduce_async(comm, x);
    reduced->wait();
    EXPECT(x[9] == 3);
    ddpp::send(comm, out, (comm.rank() + 2) % 3);
    received.wait();
    EXPECT(in[0] == (comm.rank() + 1) % 3);
  });
}

TEST_CASE("recover: the same members go on, and nothing of before is met again") {
  for (int n = 1; n <= most_ranks; n = n < 3 ? n + 1 : n + 3) {
    on_ranks_that_decide(n, [](auto& comm) {
      for (int by = 0; by < comm.size(); ++by) {
        std::vector<int> stale(1, 666), fresh(1, comm.rank()), got(1);
        const int next = (comm.rank() + 1) % comm.size();
        const int previous = (comm.rank() + comm.size() - 1) % comm.size();
        auto sent = ddpp::isend(comm, stale, next, 5);  // that nobody receives
        EXPECT(comm.agree(true));                       // all have sent, before anyone revokes
        if (comm.rank() == by) comm.revoke("enough");
        expect_revoked(comm, by);
        comm.recover();
        expect_sums(comm, comm.size());
        auto received = ddpp::irecv(comm, got, previous, 5);
        ddpp::send(comm, fresh, next, 5);
        received.wait();
        EXPECT(got[0] == previous);
        try {
          sent.wait();  // done before, or dropped with the old group
        } catch (const ddpp::revoked_error&) {
        }
        EXPECT(comm.agree(true));
      }
    });
  }
}

TEST_CASE("recover: pending work of the old group throws, also where nothing had failed") {
  on_ranks_that_decide(2, [](auto& comm) {
    std::vector<int> never(10), x(10, 1);
    ddpp::work reduced, received = ddpp::irecv(comm, never, 1 - comm.rank(), 3);
    if (comm.rank() == 0) reduced = ddpp::all_reduce_async(comm, x);
    auto old = comm.share();
    comm.recover();
    expect_sums(comm, 2);
    EXPECT_THROWS(ddpp::revoked_error, received.wait());
    if (comm.rank() == 0) EXPECT_THROWS(ddpp::revoked_error, reduced.wait());
    EXPECT_THROWS(ddpp::revoked_error, ddpp::barrier(old));
    expect_sums(comm, 2);
  });
}

TEST_CASE("recover: out of memory in a step, halve the batch") {
  on_ranks_that_decide(4, [](auto& comm) {
    // Who fails next depends on what all ranks agree on, or some would fail more often than others know.
    int batch = 64, finished = 0, recovered = 0;
    bool resuming = false;
    for (int attempt = 0; finished < 6; ++attempt) {
      EXPECT(attempt < 20);
      try {
        if (resuming) {  // inside the try: another rank may fail before all have heard
          std::vector<int> last{finished};
          ddpp::all_reduce(comm, last, ddpp::min);
          finished = last[0];
          resuming = false;
        }
        if (comm.rank() == recovered % 4 && batch > 8 && finished % 2 == 1) throw std::bad_alloc();
        std::vector<int> x(3000, batch);
        ddpp::all_reduce(comm, x);
        EXPECT(x[0] == 4 * batch);
        ++finished;
        continue;
      } catch (const std::bad_alloc&) {
        comm.revoke("out of memory");
      } catch (const ddpp::revoked_error&) {
      }
      comm.recover();
      ++recovered;
      batch /= 2;
      resuming = true;
    }
    EXPECT(batch == 8);
  });
}

TEST_CASE("shrink: those who left are out, the others keep their order") {
  for (int n = 2; n <= most_ranks; n += n < 4 ? 1 : 2) {
    on_ranks_that_decide(n, [](auto& comm) {
      const int n_before = comm.size(), me = comm.rank();
      if (me % 3 == 1) return;  // leaves
      for (;;) {
        try {
          ddpp::barrier(comm);
        } catch (const ddpp::peer_lost&) {
          break;
        }
      }
      auto rest = comm.shrink();
      expect_sums(rest, n_before - (n_before + 1) / 3);
      EXPECT(rest.rank() == me - (me + 1) / 3);
      EXPECT_THROWS(ddpp::peer_lost, ddpp::barrier(comm));  // the old one is as it was
      auto half = rest.split(rest.rank() % 2);              // and the new one is whole
      expect_sums(half, (rest.size() + 1 - rest.rank() % 2) / 2);
      expect_sums(rest, rest.size());
    });
  }
}

TEST_CASE("shrink: again and again, down to one") {
  on_ranks_that_decide(4, [](auto& comm) {
    for (int leaver = 3; leaver > 0; --leaver) {
      if (comm.rank() == leaver) return;
      auto smaller = comm.shrink();
      while (smaller.size() > leaver) smaller = smaller.shrink();  // it may not have left yet
      comm = std::move(smaller);
      expect_sums(comm, leaver);
    }
    EXPECT(comm.agree(true));
  });
}

TEST_CASE("a world of one recovers and shrinks as often as it likes") {
  on_ranks_that_decide(1, [](auto& comm) {
    for (int round = 0; round < 3; ++round) {
      comm.recover();
      auto same = comm.shrink();
      comm = std::move(same);
      expect_sums(comm, 1);
      EXPECT(comm.agree(true));
    }
  });
}

TEST_CASE("what follows an operation that was given up does not change the result of who is still in it") {
  on_ranks(
      2,
      [](auto& comm) {
        std::vector<int> first(40'000, comm.rank() + 1), second(15'000, 1000);
        bool has_slept = false;
        const auto slow_on_rank_1 = [&](int a, int b) {
          if (comm.rank() == 1 && !has_slept) {
            has_slept = true;
            std::this_thread::sleep_for(1500ms);
          }
          return a + b;
        };
        try {
          auto work = ddpp::all_reduce_async(comm, first, slow_on_rank_1);
          auto next = ddpp::all_reduce_async(comm, second);
          work.wait();
          for (const int x : first) EXPECT(x == 3);  // done, so done right
          next.wait();
        } catch (const ddpp::error&) {  // which, depends on what the transport can know
        }
      },
      500ms);
}

TEST_CASE("groups within groups decide on their own") {
  on_ranks_that_decide(4, [](auto& comm) {
    auto half = comm.split(comm.rank() / 2);
    if (comm.rank() / 2 == 0) {
      EXPECT(half.agree(true));
      if (half.rank() == 1) half.revoke("only this half");
      expect_revoked(half, 1);
      half.recover();
      auto same = half.shrink();
      expect_sums(same, 2);
    } else {
      expect_sums(half, 2);
      EXPECT(!half.agree(half.rank() == 0));
    }
    expect_sums(comm, 4);
  });
}

TEST_CASE("agree: who does not come in time is named, on all ranks, and may come to the next") {
  on_ranks_that_decide(
      3,
      [](auto& comm) {
        auto aside = comm.duplicate();
        if (comm.rank() == 1) await_word(aside, 0);
        const std::string text = EXPECT_THROWS(ddpp::timeout_error, comm.agree(true));
        EXPECT(says(text, comm.rank() == 1 ? "too late" : "rank 1"));
        if (comm.rank() == 0) give_word(aside, 1);
        EXPECT(comm.agree(true));
      },
      short_time);
}

TEST_CASE("shrink: who does not come in time is left behind") {
  on_ranks_that_decide(
      3,
      [](auto& comm) {
        auto aside = comm.duplicate();
        if (comm.rank() == 1) {
          await_word(aside, 0);
          EXPECT_THROWS(ddpp::timeout_error, (void)comm.shrink());
          const std::string text = EXPECT_THROWS(ddpp::timeout_error, comm.agree(true));
          EXPECT(says(text, "without this rank"));
          return;
        }
        auto rest = comm.shrink();
        EXPECT(rest.rank() == comm.rank() / 2);
        expect_sums(rest, 2);
        if (comm.rank() == 0) give_word(aside, 1);
      },
      short_time);
}

TEST_CASE("recover does not go on without a member, and shrink then can") {
  on_ranks_that_decide(3, [](auto& comm) {
    if (comm.rank() == 0) return;
    std::string text;
    for (;;) {
      try {
        comm.recover();  // rank 0 may still be there, but will leave without it
      } catch (const ddpp::peer_lost& e) {
        EXPECT(e.rank() == 0 && says(e.what(), "rank 0") && says(e.what(), "shrink"));
        break;
      }
    }
    auto rest = comm.shrink();
    expect_sums(rest, 2);
  });
}

TEST_CASE("agree, recover and shrink at once: the stronger waits for those who asked for less") {
  on_ranks_that_decide(3, [](auto& comm) {
    for (int odd = 0; odd < 3; ++odd) {
      if (comm.rank() != odd) EXPECT(!comm.agree(true));
      auto same = comm.shrink();
      expect_sums(same, 3);
    }
    for (int odd = 0; odd < 3; ++odd) {
      if (comm.rank() != odd) EXPECT(!comm.agree(true));
      comm.recover();
      expect_sums(comm, 3);
    }
    for (int odd = 0; odd < 3; ++odd) {
      if (comm.rank() != odd) {
        const std::string text = EXPECT_THROWS(ddpp::mismatch_error, comm.recover());
        EXPECT(says(text, "shrink"));
      }
      auto same = comm.shrink();
      expect_sums(same, 3);
    }
  });
}

TEST_CASE("agree, recover and shrink are refused inside a script") {
  on_ranks_that_decide(2, [](auto& comm) {
    comm.run({.op = ddpp::collective::user}, [](auto& inside) {
      EXPECT_THROWS(ddpp::usage_error, inside.agree(true));
      EXPECT_THROWS(ddpp::usage_error, inside.recover());
      EXPECT_THROWS(ddpp::usage_error, (void)inside.shrink());
    });
    expect_sums(comm, 2);
  });
}
