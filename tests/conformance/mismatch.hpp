// SPDX-License-Identifier: BSL-1.0
// Whatever the ranks of a group disagree about, in whatever collective, all of them get a mismatch_error that
// names the odd one; the group around theirs goes on.
#pragma once

#include <array>
#include <numeric>

#include "suite.hpp"

using namespace conformance;

namespace {

/// What the odd rank does otherwise.
enum class differs { nothing, operation, sequence, count, counts, type, reduction, algorithm, root };

constexpr const char* text_of(differs what) {
  constexpr const char* texts[] = {"nothing", "operation", "sequence",  "count", "counts",
                                   "type",    "reduction", "algorithm", "root"};
  return texts[static_cast<int>(what)];
}

/// Calls collectives among three ranks; what `odd` names is done otherwise than where it says `nothing`.
struct three_ranks {
  template <class F>
  static void with_elements(differs odd, F f) {
    if (odd == differs::type)
      f(double());
    else
      f(std::int64_t());
  }
  template <class Other, class F>
  static void with_algorithm(differs odd, F f) {
    if constexpr (ddpp::runs_algorithms<transport>) {
      if (odd == differs::algorithm) return f(Other());
    }
    f(ddpp::the_communicators());
  }
  static std::size_t count(differs odd) { return odd == differs::count ? 5 : 4; }
  static int root(differs odd) { return odd == differs::root ? 1 : 0; }
  /// The piece of the middle rank, which is the odd one, is the same either way.
  static std::vector<std::size_t> counts(differs odd) {
    if (odd == differs::counts) return {4, 3, 2};
    return {2, 3, odd == differs::count ? std::size_t{5} : std::size_t{4}};
  }
  static std::size_t total(differs odd) {
    const auto all = counts(odd);
    return std::accumulate(all.begin(), all.end(), std::size_t{0});
  }
  template <class C>
  static std::size_t own(C& comm, differs odd) {
    return counts(odd)[static_cast<std::size_t>(comm.rank())];
  }
};

struct call_all_reduce : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::reduction, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> x(count(odd));
      if (odd == differs::reduction) return ddpp::all_reduce(comm, x, ddpp::max);
      with_algorithm<ddpp::algorithms::tree>(odd, [&](auto a) { ddpp::all_reduce(comm, x, ddpp::sum, a); });
    });
  }
};

struct call_reduce : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::reduction, differs::algorithm,
                                       differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> x(count(odd));
      if (odd == differs::reduction) return ddpp::reduce(comm, x, ddpp::max, root(odd));
      with_algorithm<ddpp::algorithms::tree>(odd,
                                             [&](auto a) { ddpp::reduce(comm, x, ddpp::sum, root(odd), a); });
    });
  }
};

struct call_broadcast : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::algorithm, differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> x(count(odd));
      with_algorithm<ddpp::algorithms::ring>(odd, [&](auto a) { ddpp::broadcast(comm, x, root(odd), a); });
    });
  }
};

struct call_all_gather : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(count(odd)), out(3 * count(odd));
      with_algorithm<ddpp::algorithms::bruck>(odd, [&](auto a) { ddpp::all_gather(comm, in, out, a); });
    });
  }
};

struct call_all_gather_v : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::counts, differs::type, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(own(comm, odd)), out(total(odd));
      with_algorithm<ddpp::algorithms::bruck>(
          odd, [&](auto a) { ddpp::all_gather_v(comm, in, out, counts(odd), a); });
    });
  }
};

struct call_gather : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::algorithm, differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(count(odd)), out(3 * count(odd));
      with_algorithm<ddpp::algorithms::tree>(odd, [&](auto a) { ddpp::gather(comm, in, out, root(odd), a); });
    });
  }
};

struct call_gather_v : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::counts, differs::type, differs::algorithm,
                                       differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(own(comm, odd)), out(total(odd));
      with_algorithm<ddpp::algorithms::tree>(
          odd, [&](auto a) { ddpp::gather_v(comm, in, out, counts(odd), root(odd), a); });
    });
  }
};

struct call_scatter : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::algorithm, differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(3 * count(odd)), out(count(odd));
      with_algorithm<ddpp::algorithms::tree>(odd,
                                             [&](auto a) { ddpp::scatter(comm, in, out, root(odd), a); });
    });
  }
};

struct call_scatter_v : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::counts, differs::type, differs::algorithm,
                                       differs::root};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(total(odd)), out(own(comm, odd));
      with_algorithm<ddpp::algorithms::tree>(
          odd, [&](auto a) { ddpp::scatter_v(comm, in, out, counts(odd), root(odd), a); });
    });
  }
};

struct call_reduce_scatter : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::reduction, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(3 * count(odd)), out(count(odd));
      if (odd == differs::reduction) return ddpp::reduce_scatter(comm, in, out, ddpp::max);
      with_algorithm<ddpp::algorithms::ring>(
          odd, [&](auto a) { ddpp::reduce_scatter(comm, in, out, ddpp::sum, a); });
    });
  }
};

struct call_reduce_scatter_v : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::counts, differs::type, differs::reduction,
                                       differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(total(odd)), out(own(comm, odd));
      if (odd == differs::reduction) return ddpp::reduce_scatter_v(comm, in, out, counts(odd), ddpp::max);
      with_algorithm<ddpp::algorithms::ring>(
          odd, [&](auto a) { ddpp::reduce_scatter_v(comm, in, out, counts(odd), ddpp::sum, a); });
    });
  }
};

struct call_all_to_all : three_ranks {
  static constexpr differs fields[] = {differs::count, differs::type, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<T> in(3 * count(odd)), out(3 * count(odd));
      with_algorithm<ddpp::algorithms::bruck>(odd, [&](auto a) { ddpp::all_to_all(comm, in, out, a); });
    });
  }
};

struct call_all_to_all_v : three_ranks {
  static constexpr differs fields[] = {differs::counts, differs::type, differs::algorithm};
  static void call(auto& comm, differs odd) {
    with_elements(odd, [&]<class T>(T) {
      std::vector<std::size_t> sent(3, 2);
      if (odd == differs::counts) sent[0] = 3;  // rank 0 does not expect that
      std::vector<T> in(std::accumulate(sent.begin(), sent.end(), std::size_t{0})), out(6);
      const std::vector<std::size_t> received(3, 2);
      with_algorithm<ddpp::algorithms::bruck>(
          odd, [&](auto a) { ddpp::all_to_all_v(comm, in, sent, out, received, a); });
    });
  }
};

struct call_barrier : three_ranks {
  static constexpr std::array<differs, 0> fields = {};
  static void call(auto& comm, differs) { ddpp::barrier(comm); }
};

/// The odd rank's call instead of Call::call(comm, nothing).
template <class Call, class C>
void call_oddly(C& comm, differs odd) {
  std::vector<std::int64_t> x(3), y(3);
  if (odd == differs::operation) return ddpp::all_to_all(comm, x, y);
  if (odd == differs::sequence) ddpp::barrier(comm);
  Call::call(comm, odd);
}

/// f(comm, odd) among ranks 0, 2 and 3 of four, the second of which is the odd one. Who cannot hear of it in
/// the operation itself hears of it in the next.
template <class C, class F>
void expect_mismatch(C& comm, const std::string& what, F f) {
  if (comm.rank() == 1) return;
  auto part = comm.subgroup({0, 2, 3});
  try {
    const std::string text =
        EXPECT_THROWS(ddpp::mismatch_error, f(part, part.rank() == 1); for (;;) ddpp::barrier(part));
    EXPECT(says(text, "rank 1"));
    EXPECT_THROWS(ddpp::mismatch_error, ddpp::barrier(part));
  } catch (const support::failed_expectation& failed) {
    throw support::failed_expectation(what + ", rank " + std::to_string(part.rank()) + ": " + failed.what());
  }
}

template <class Call>
void expect_all_mismatches(const char* collective) {
  on_ranks(4, [&](auto& comm) {
    const auto expect = [&](differs what) {
      expect_mismatch(comm, std::string(collective) + ", differing " + text_of(what),
                      [&](auto& part, bool odd) {
                        if (odd)
                          call_oddly<Call>(part, what);
                        else
                          Call::call(part, differs::nothing);
                      });
    };
    for (const differs what : Call::fields) {
      if (ddpp::runs_algorithms<transport> || what != differs::algorithm) expect(what);
    }
    if (!std::is_same_v<Call, call_barrier>) expect(differs::sequence);
    if (!std::is_same_v<Call, call_all_to_all>) expect(differs::operation);
    std::vector<std::int64_t> x(3, 1);
    ddpp::all_reduce(comm, x);  // the group around them has not noticed
    EXPECT(x[2] == 4);
  });
}

}  // namespace

CASE_IF(tells_of_mismatches(),
        "each collective, differing in each thing that ranks have to agree about, inside a subgroup") {
  expect_all_mismatches<call_all_reduce>("all_reduce");
  expect_all_mismatches<call_reduce>("reduce");
  expect_all_mismatches<call_broadcast>("broadcast");
  expect_all_mismatches<call_all_gather>("all_gather");
  expect_all_mismatches<call_all_gather_v>("all_gather_v");
  expect_all_mismatches<call_gather>("gather");
  expect_all_mismatches<call_gather_v>("gather_v");
  expect_all_mismatches<call_scatter>("scatter");
  expect_all_mismatches<call_scatter_v>("scatter_v");
  expect_all_mismatches<call_reduce_scatter>("reduce_scatter");
  expect_all_mismatches<call_reduce_scatter_v>("reduce_scatter_v");
  expect_all_mismatches<call_all_to_all>("all_to_all");
  expect_all_mismatches<call_all_to_all_v>("all_to_all_v");
  expect_all_mismatches<call_barrier>("barrier");
}

CASE_IF(tells_of_mismatches(),
        "who waits for a root that has nothing for it, while the others have gone on, is told so") {
  on_ranks(4, [](auto& comm) {
    const auto check = [&](const char* collective, auto call) {
      // To the odd one, rank 2 is the root. The others finish, and wait for it in the next operation.
      expect_mismatch(comm, collective, [&](auto& part, bool odd) { call(part, odd ? 2 : 0); });
    };
    std::vector<std::int64_t> x(4), whole(12);
    check("broadcast", [&](auto& part, int root) { ddpp::broadcast(part, x, root); });
    check("scatter", [&](auto& part, int root) { ddpp::scatter(part, whole, x, root); });
    check("gather", [&](auto& part, int root) { ddpp::gather(part, x, whole, root); });
    check("reduce", [&](auto& part, int root) { ddpp::reduce(part, x, ddpp::sum, root); });
    if (!issues_alone()) return;
    // The message is there before the odd one is in the collective.
    expect_mismatch(comm, "broadcast, late", [&](auto& part, bool odd) {
      std::vector<std::int64_t> note(1);
      if (part.rank() == 0) ddpp::broadcast(part, x, 0), ddpp::send(part, note, 1);
      if (odd) ddpp::recv(part, note, 0), ddpp::broadcast(part, x, 2);
      if (part.rank() == 2) ddpp::broadcast(part, x, 0);
    });
  });
}

CASE_IF(tells_of_mismatches(), "each field of a fingerprint alone makes a mismatch") {
  const ddpp::fingerprint print{.count = 1,
                                .reduction = 1,
                                .algorithm = 1,
                                .root = 0,
                                .element_size = 4,
                                .type = 1,
                                .op = ddpp::collective::user,
                                .counts = 1};
  on_ranks(4, [&](auto& comm) {
    const auto expect = [&](const char* field, auto change) {
      expect_mismatch(comm, field, [&](auto& part, bool odd) {
        ddpp::fingerprint mine = print;
        if (odd) change(mine);
        part.run(mine, [](auto& inside) { ddpp::algorithms::dissemination{}.barrier(inside); });
      });
    };
    expect("count", [](auto& odd) { odd.count = 2; });
    expect("reduction", [](auto& odd) { odd.reduction = 2; });
    expect("algorithm", [](auto& odd) { odd.algorithm = 2; });
    expect("root", [](auto& odd) { odd.root = 2; });
    expect("element_size", [](auto& odd) { odd.element_size = 8; });
    expect("type", [](auto& odd) { odd.type = 2; });
    expect("op", [](auto& odd) { odd.op = ddpp::collective::hook; });
    expect("counts", [](auto& odd) { odd.counts = 2; });
    expect_mismatch(comm, "step", [&](auto& part, bool odd) {
      part.run(print, [&](auto& inside) {
        if (odd) ddpp::barrier(inside);
        ddpp::barrier(inside);
      });
    });
    expect_mismatch(comm, "sequence", [&](auto& part, bool odd) {
      if (odd) ddpp::barrier(part);
      part.run(print, [](auto& inside) { ddpp::algorithms::dissemination{}.barrier(inside); });
    });
  });
}
