// SPDX-License-Identifier: BSL-1.0
// What the algorithms cost: the table of docs/algorithms.md, counted. And that a table of the user's chooses
// among them.
#pragma once

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "suite.hpp"

using namespace conformance;

namespace {

/// A message that a rank sent or received.
struct event {
  std::int32_t peer, received;
  std::uint64_t bytes;
};

/// Writes down the messages of algorithms in the order of the calls.
template <class Base>
struct noting : Base {
  using Base::Base;
  std::vector<event> log;

  auto isend(std::span<const std::byte> data, int peer, int tag) {
    note(peer, 0, data.size(), tag);
    return Base::isend(data, peer, tag);
  }
  auto irecv(std::span<std::byte> data, int peer, int tag) {
    note(peer, 1, data.size(), tag);
    return Base::irecv(data, peer, tag);
  }
  template <class F>
  requires ddpp::has_receive_view<Base>
  void consume(int peer, int tag, std::size_t bytes, ddpp::deadline until, F&& f) {
    note(peer, 1, bytes, tag);
    Base::consume(peer, tag, bytes, until, std::forward<F>(f));
  }

 private:
  void note(int peer, int received, std::size_t bytes, int tag) {
    if (tag == ddpp::detail::collective_tag) log.push_back({peer, received, bytes});
  }
};
using counting = noting<transport>;
static_assert(ddpp::transport<counting>);

using logs = std::vector<std::vector<event>>;  // by rank

/// In a step each rank sends one message at most and receives one at most. A message leaves after what its
/// sender received before it.
[[maybe_unused]] std::size_t steps_of(const logs& ranks) {
  struct progress {
    std::size_t events = 0, sent = 0, received = 0;  // the steps of the last message sent and received
  };
  std::vector<progress> at(ranks.size());
  std::map<std::pair<std::size_t, std::size_t>, std::deque<std::size_t>>
      on_the_way;  // the steps in which they left
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (progress& p = at[rank]; p.events < ranks[rank].size(); ++p.events, moved = true) {
        const event& e = ranks[rank][p.events];
        const auto peer = static_cast<std::size_t>(e.peer);
        if (e.received == 0) {
          p.sent = std::max(p.sent, p.received) + 1;
          on_the_way[{rank, peer}].push_back(p.sent);
        } else {
          auto& coming = on_the_way[{peer, rank}];
          if (coming.empty()) break;
          p.received = std::max(p.received + 1, coming.front());
          coming.pop_front();
        }
      }
    }
  }
  std::size_t last = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT(at[rank].events == ranks[rank].size());
    last = std::max(last, at[rank].received);
  }
  return last;
}

/// Bytes and messages are those of the rank that sends most of them.
struct cost {
  std::size_t steps, bytes, messages;
};

/// Of script(communicator).
template <class C, class F>
cost cost_of(C& comm, const F& script) {
  comm.transport().log.clear();
  comm.run({.op = ddpp::collective::barrier}, script);
  const std::vector<event> mine = comm.transport().log;

  const std::size_t count = mine.size();
  std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()));
  ddpp::all_gather(comm, std::span(&count, 1), sizes);
  std::vector<event> all(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  ddpp::all_gather_v(comm, mine, all, sizes);

  cost most{};
  logs by_rank;
  auto next = all.begin();
  for (const std::size_t size : sizes) {
    by_rank.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
    next += static_cast<std::ptrdiff_t>(size);
    std::size_t bytes = 0, messages = 0;
    for (const event& e : by_rank.back()) {
      if (e.received == 0) bytes += e.bytes, ++messages;
    }
    most.bytes = std::max(most.bytes, bytes);
    most.messages = std::max(most.messages, messages);
  }
  most.steps = steps_of(by_rank);
  return most;
}

[[maybe_unused]] void expect_equal(const cost& found, const cost& expected, const std::string& what) {
  const auto text = [](const cost& c) {
    return std::to_string(c.steps) + " steps, " + std::to_string(c.bytes) + " bytes, " +
           std::to_string(c.messages) + " messages";
  };
  if (text(found) != text(expected))
    throw support::failed_expectation(what + ": " + text(found) + " instead of " + text(expected));
}

/// The tables of docs/algorithms.md: n ranks, B bytes, L = ceil(log2 n), l = floor(log2 n), p = 2^l. Messages
/// are counted where a block is one segment.
void expect_costs_as_documented(auto& comm, std::size_t factor) {
  using namespace ddpp::algorithms;
  const auto n = static_cast<std::size_t>(comm.size()), last = n - 1;
  const std::size_t count = 2520 * factor;  // whose blocks and halves are whole for 2 to 9 ranks
  const std::size_t B = count * sizeof(int), most = last * B / n;
  const auto l = static_cast<std::size_t>(std::bit_width(n) - 1);
  const auto L = static_cast<std::size_t>(std::bit_width(n - 1));
  const std::size_t p = std::size_t{1} << l, rest = n == p ? 0 : 1;

  const ddpp::detail::partition blocks(count, comm.size()), bytes = blocks.scaled(sizeof(int));
  std::vector<int> buffer(count, 1), buffer_out(count);
  const std::span<int> data = buffer, out = buffer_out;
  const std::span<const int> in = data;
  const auto raw = std::as_writable_bytes(data), raw_out = std::as_writable_bytes(out);
  const auto raw_in = std::as_bytes(data);
  const auto own = out.subspan(blocks.offset(comm.rank()), blocks.size(comm.rank()));
  const auto raw_own = std::as_writable_bytes(own);

  const auto expect = [&](const char* collective, auto algorithm, cost expected, const auto& script) {
    cost found = cost_of(comm, script);
    if (factor != 1) {  // the segments follow each other
      found.steps = expected.steps;
      found.messages = expected.messages;
    }
    expect_equal(found, expected,
                 std::string(collective) + " " + std::string(algorithm.name) + " on " + std::to_string(n));
  };
  const auto all_reduce = [&](auto algorithm, cost expected) {
    expect("all_reduce", algorithm, expected,
           [&](auto& inside) { algorithm.all_reduce(inside, data, ddpp::sum); });
  };
  all_reduce(ring{}, {2 * last, 2 * most, 2 * last});
  all_reduce(recursive_doubling{}, {l + 2 * rest, (l + rest) * B, l + rest});
  all_reduce(halving_doubling{}, {2 * l + 2 * rest, 2 * (p - 1) * B / p + rest * B, 2 * l + rest});
  all_reduce(tree{}, {2 * L, L * B, L});
  all_reduce(reproducible{}, {2 * l + 2 * rest, 2 * (p - 1) * B / p + rest * B, 2 * l + rest});

  const auto reduce_scatter = [&](auto algorithm, cost expected) {
    expect("reduce_scatter", algorithm, expected,
           [&](auto& inside) { algorithm.reduce_scatter(inside, in, own, blocks, ddpp::sum); });
  };
  reduce_scatter(ring{}, {last, most, last});
  reduce_scatter(halving_doubling{}, {l + 2 * rest, rest ? B : most, l + rest});

  const auto reduce = [&](auto algorithm, cost expected) {
    for (const int root : {0, comm.size() - 1}) {
      expect("reduce", algorithm, expected,
             [&](auto& inside) { algorithm.reduce(inside, in, out, ddpp::sum, root); });
    }
  };
  reduce(tree{}, {L, B, 1});
  reduce(scatter_gather{}, {2 * last, B, n});

  const auto all_gather = [&](auto algorithm, cost expected) {
    expect("all_gather", algorithm, expected,
           [&](auto& inside) { algorithm.all_gather(inside, raw, bytes); });
  };
  all_gather(ring{}, {last, most, last});
  all_gather(bruck{}, {L, most, L});

  const auto broadcast = [&](auto algorithm, cost expected) {
    for (const int root : {0, comm.size() - 1}) {
      expect("broadcast", algorithm, expected, [&](auto& inside) { algorithm.broadcast(inside, raw, root); });
    }
  };
  broadcast(tree{}, {L, L * B, L});
  broadcast(ring{}, {last, B, 1});
  broadcast(scatter_gather{}, {L + last, 2 * most, L + last});

  const auto gather = [&](auto algorithm, cost expected) {
    for (const int root : {0, comm.size() - 1}) {
      expect("gather", algorithm, expected,
             [&](auto& inside) { algorithm.gather(inside, raw_own, raw_out, bytes, root); });
    }
  };
  const std::size_t half = std::size_t{1} << (L - 1), largest_subtree = std::max(n - half, half / 2);
  gather(direct{}, {last, B / n, 1});
  gather(tree{}, {L, largest_subtree * B / n, 1});

  const auto scatter = [&](auto algorithm, cost expected) {
    for (const int root : {0, comm.size() - 1}) {
      expect("scatter", algorithm, expected,
             [&](auto& inside) { algorithm.scatter(inside, raw_in, raw_own, bytes, root); });
    }
  };
  scatter(direct{}, {last, most, last});
  scatter(tree{}, {L, most, L});

  const auto all_to_all = [&](auto algorithm, cost expected) {
    expect("all_to_all", algorithm, expected,
           [&](auto& inside) { algorithm.all_to_all(inside, raw_in, bytes, raw_out, bytes); });
  };
  std::size_t set_bits = 0;
  for (std::size_t distance = 1; distance < n; ++distance)
    set_bits += static_cast<std::size_t>(std::popcount(distance));
  all_to_all(direct{}, {last, most, last});
  all_to_all(bruck{}, {L, set_bits * B / n, L});

  expect("barrier", dissemination{}, {L, 0, L}, [](auto& inside) { dissemination{}.barrier(inside); });

  const std::span<int> few = data.first(2000);
  expect("all_reduce of up to 8 KiB", reproducible{}, {l + 2 * rest, (l + rest) * 8000, l + rest},
         [&](auto& inside) { reproducible{}.all_reduce(inside, few, ddpp::sum); });

  // 16-bit sums, with the choice left to ddpp but where it needs no messages.
  std::vector<ddpp::half> halves(2 * count, ddpp::half(1.0f)), halves_out(2 * count);
  const auto own_halves = std::span(halves_out).first(halves.size() / n);
  expect("16-bit all_reduce", direct{}, {2 * last, 2 * most, 2 * last},
         [&](auto& inside) { direct{}.sum_in_float(inside, std::span(halves), 1); });
  expect("16-bit reduce_scatter", direct{}, {last, most, last}, [&](auto& inside) {
    direct{}.reduce_block(inside, std::span<const ddpp::half>(halves), own_halves,
                          ddpp::detail::partition(halves.size(), inside.size()), 1);
  });
  expect("16-bit reduce", direct{}, {2 * last, B, n},
         [&](auto& inside) { ddpp::reduce(inside, halves, halves_out); });
}

/// Blocks of different sizes take the same steps and messages.
void expect_costs_with_counts_as_documented(auto& comm) {
  using namespace ddpp::algorithms;
  const auto n = static_cast<std::size_t>(comm.size()), last = n - 1;
  const auto l = static_cast<std::size_t>(std::bit_width(n) - 1);
  const auto L = static_cast<std::size_t>(std::bit_width(n - 1));
  const std::size_t rest = std::has_single_bit(n) ? 0 : 1;
  const auto rank = static_cast<std::size_t>(comm.rank());

  std::vector<std::size_t> sizes;  // rank r has 10 (r + 1) elements
  for (std::size_t r = 0; r < n; ++r) sizes.push_back(10 * (r + 1));
  std::vector<int> piece(sizes[rank], 1), whole(5 * n * (n + 1), 1), received(n * sizes[rank]);
  const std::vector<std::size_t> from_each(n, sizes[rank]);

  const auto expect = [&](const char* collective, auto algorithm, std::size_t steps, std::size_t messages,
                          const auto& script) {
    cost found = cost_of(comm, script);
    found.bytes = 0;  // of the sizes' making
    expect_equal(found, {steps, 0, messages},
                 std::string(collective) + " " + std::string(algorithm.name) + " on " + std::to_string(n));
  };
  const auto all_gather = [&](auto a, std::size_t steps) {
    expect("all_gather_v", a, steps, steps,
           [&](auto& inside) { ddpp::all_gather_v(inside, piece, whole, sizes, a); });
  };
  all_gather(ring{}, last);
  all_gather(bruck{}, L);
  const auto reduce_scatter = [&](auto a, std::size_t steps, std::size_t messages) {
    expect("reduce_scatter_v", a, steps, messages,
           [&](auto& inside) { ddpp::reduce_scatter_v(inside, whole, piece, sizes, ddpp::sum, a); });
  };
  reduce_scatter(ring{}, last, last);
  reduce_scatter(halving_doubling{}, l + 2 * rest, l + rest);
  const auto gather = [&](auto a, std::size_t steps) {
    expect("gather_v", a, steps, 1, [&](auto& inside) { ddpp::gather_v(inside, piece, whole, sizes, 0, a); });
  };
  gather(direct{}, last);
  gather(tree{}, L);
  const auto scatter = [&](auto a, std::size_t steps) {
    expect("scatter_v", a, steps, steps,
           [&](auto& inside) { ddpp::scatter_v(inside, whole, piece, sizes, 0, a); });
  };
  scatter(direct{}, last);
  scatter(tree{}, L);
  const auto all_to_all = [&](auto a, std::size_t steps) {
    expect("all_to_all_v", a, steps, steps,
           [&](auto& inside) { ddpp::all_to_all_v(inside, whole, sizes, received, from_each, a); });
  };
  all_to_all(direct{}, last);
  all_to_all(bruck{}, 2 * L);  // the sizes, then the blocks

  std::vector<ddpp::half> halves(whole.size(), ddpp::half(1.0f)), own(piece.size());
  if (!ddpp::has_shared_slots<transport>) {
    expect("16-bit reduce_scatter_v", direct{}, last, last,
           [&](auto& inside) { ddpp::reduce_scatter_v(inside, halves, own, sizes); });
  }
}

struct table_of_a_user : ddpp::algorithms::default_table {
  static constexpr std::string_view name = "table_of_a_user";
  static constexpr std::tuple all_reduce{
      ddpp::algorithms::row{"no such transport", ddpp::algorithms::any, ddpp::algorithms::any,
                            ddpp::algorithms::reproducible{}},
      ddpp::algorithms::row{"", ddpp::algorithms::any, 3, ddpp::algorithms::ring{}},
      ddpp::algorithms::row{transport::name, 100, ddpp::algorithms::any,
                            ddpp::algorithms::recursive_doubling{}},
      ddpp::algorithms::row{"", ddpp::algorithms::any, ddpp::algorithms::any, ddpp::algorithms::tree{}},
  };
};

}  // namespace

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "steps, bytes and messages of each algorithm are the documented ones") {
  for (int n = 2; n <= most_ranks; ++n) {
    on_ranks<counting>(n, [](auto& comm) {
      expect_costs_as_documented(comm, 1);
      if (comm.size() % 3 == 2) expect_costs_as_documented(comm, 64);
      expect_costs_with_counts_as_documented(comm);
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "a table of the user's chooses by transport, bytes and ranks") {
  static_assert(std::is_same_v<ddpp::algorithms::automatic,
                               ddpp::algorithms::automatic_with<ddpp::algorithms::default_table>>);
  const auto expect = [](int n, std::size_t count, cost expected) {
    on_ranks<counting>(n, [=](auto& comm) {
      std::vector<int> data(count, 1);
      expect_equal(cost_of(comm,
                           [&](auto& inside) {
                             ddpp::all_reduce(inside, data, ddpp::sum,
                                              ddpp::algorithms::automatic_with<table_of_a_user>{});
                           }),
                   expected, "the table's choice");
      EXPECT(data[0] == n);
    });
  };
  expect(3, 24, {4, 128, 4});   // ring
  expect(4, 24, {2, 192, 2});   // recursive_doubling
  expect(4, 100, {4, 800, 2});  // tree
  on_ranks<transport, ddpp::algorithms::automatic_with<table_of_a_user>>(5, [](auto& comm) {
    std::vector<int> data(1000, 1);
    ddpp::all_reduce(comm, data);
    ddpp::broadcast(comm, data, 3);  // by the default's table
    EXPECT(data[999] == 5);
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "counts that do not agree are found where blocks travel together") {
  on_ranks(4, [](auto& comm) {
    const std::size_t sent[] = {2, 2, 2, 2};
    std::size_t received[] = {2, 2, 2, 2};
    if (comm.rank() == 1) received[3] = 1;
    std::vector<int> in(8), out(comm.rank() == 1 ? 7 : 8);
    const std::string text = EXPECT_THROWS(ddpp::mismatch_error, {
      ddpp::all_to_all_v(comm, in, sent, out, received, ddpp::algorithms::bruck{});
      for (;;) ddpp::barrier(comm);  // whose part was over may hear of it later
    });
    EXPECT(says(text, "rank 3 sent 8 bytes to rank 1, which receives 4 bytes from it"));
  });
}
