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

// Straight over the transport, where a wait lasts as long as it is told to.
template <class C>
void give_word(C& comm, int to) {
  const std::byte word{};
  comm.transport().isend(std::span(&word, 1), to, 0).wait(std::chrono::steady_clock::now() + generous);
}
template <class C>
void await_word(C& comm, int from) {
  std::byte word{};
  comm.transport().irecv(std::span(&word, 1), from, 0).wait(std::chrono::steady_clock::now() + generous);
}

}  // namespace

CASE_WHERE(ddpp::has_agreement<transport>,
           "agree: true if all say so, whoever says no, in good times and bad") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport> && !ddpp::has_stream_order<transport>,
           "agree waits for no collective, and none for it") {
  on_ranks(3, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport>,
           "recover: the same members go on, and nothing of before is met again") {
  for (int n = 1; n <= most_ranks; n = n < 3 ? n + 1 : n + 3) {
    on_ranks(n, [](auto& comm) {
      for (int by = 0; by < comm.size(); ++by) {
        std::vector<int> stale(1, 666), fresh(1, comm.rank()), got(1);
        const int next = (comm.rank() + 1) % comm.size();
        const int previous = (comm.rank() + comm.size() - 1) % comm.size();
        auto sent = ddpp::isend(comm, stale, next);  // that nobody receives
        EXPECT(comm.agree(true));                    // all have sent, before anyone revokes
        if (comm.rank() == by) comm.revoke("enough");
        expect_revoked(comm, by);
        comm.recover();
        expect_sums(comm, comm.size());
        auto received = ddpp::irecv(comm, got, previous);
        ddpp::send(comm, fresh, next);
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

CASE_WHERE(ddpp::has_agreement<transport>,
           "recover: pending work of the old group throws, also where nothing had failed") {
  if (!issues_alone()) return;
  on_ranks(2, [](auto& comm) {
    std::vector<int> never(10), x(10, 1);
    ddpp::work reduced, received = ddpp::irecv(comm, never, 1 - comm.rank());
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

CASE_WHERE(ddpp::has_agreement<transport>, "recover: out of memory in a step, halve the batch") {
  on_ranks(4, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport>, "shrink: those who left are out, the others keep their order") {
  for (int n = 2; n <= most_ranks; n += n < 4 ? 1 : 2) {
    on_ranks(n, [](auto& comm) {
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
      auto side = rest.split(rest.rank() % 2);              // and the new one is whole
      expect_sums(side, (rest.size() + 1 - rest.rank() % 2) / 2);
      expect_sums(rest, rest.size());
    });
  }
}

CASE_WHERE(ddpp::has_agreement<transport>, "shrink: again and again, down to one") {
  on_ranks(4, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport>, "a world of one recovers and shrinks as often as it likes") {
  on_ranks(1, [](auto& comm) {
    for (int round = 0; round < 3; ++round) {
      comm.recover();
      auto same = comm.shrink();
      comm = std::move(same);
      expect_sums(comm, 1);
      EXPECT(comm.agree(true));
    }
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "what follows an operation that was given up does not change the result of who is still in it") {
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

CASE_WHERE(ddpp::has_agreement<transport>, "groups within groups decide on their own") {
  on_ranks(4, [](auto& comm) {
    auto pair = comm.split(comm.rank() / 2);
    if (comm.rank() / 2 == 0) {
      EXPECT(pair.agree(true));
      if (pair.rank() == 1) pair.revoke("only this half");
      expect_revoked(pair, 1);
      pair.recover();
      auto same = pair.shrink();
      expect_sums(same, 2);
    } else {
      expect_sums(pair, 2);
      EXPECT(!pair.agree(pair.rank() == 0));
    }
    expect_sums(comm, 4);
  });
}

CASE_WHERE(ddpp::has_agreement<transport>,
           "agree: who does not come in time is named, on all ranks, and may come to the next") {
  on_ranks(
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

CASE_WHERE(ddpp::has_agreement<transport>, "shrink: who does not come in time is left behind") {
  on_ranks(
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

CASE_WHERE(ddpp::has_agreement<transport>, "recover does not go on without a member, and shrink then can") {
  on_ranks(3, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport>,
           "agree, recover and shrink at once: the stronger waits for those who asked for less") {
  on_ranks(3, [](auto& comm) {
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

CASE_WHERE(ddpp::has_agreement<transport>, "agree, recover and shrink are refused inside a script") {
  on_ranks(2, [](auto& comm) {
    comm.run({.op = ddpp::collective::user}, [](auto& inside) {
      EXPECT_THROWS(ddpp::usage_error, inside.agree(true));
      EXPECT_THROWS(ddpp::usage_error, inside.recover());
      EXPECT_THROWS(ddpp::usage_error, (void)inside.shrink());
    });
    expect_sums(comm, 2);
  });
}
