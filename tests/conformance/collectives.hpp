// SPDX-License-Identifier: BSL-1.0
// Every collective with every algorithm gives what arithmetic says, for any number of ranks and elements.
#pragma once

#include <algorithm>
#include <numeric>

#include "suite.hpp"

using namespace conformance;
namespace algorithms = ddpp::algorithms;

namespace {

// Rank r's elements: distinct everywhere, so that a piece in the wrong place shows.
std::vector<std::int64_t> elements(int rank, std::size_t count) {
  std::vector<std::int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 1'000'003 * (rank + 1) + static_cast<std::int64_t>(i);
  return values;
}

std::vector<std::int64_t> elements_of_all(int ranks, std::size_t count) {
  std::vector<std::int64_t> all;
  for (int r = 0; r < ranks; ++r) {
    const auto piece = elements(r, count);
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

std::int64_t sum_of_elements(int ranks, std::size_t i) {
  return 1'000'003 * (std::int64_t{ranks} * (ranks + 1) / 2) + ranks * static_cast<std::int64_t>(i);
}

}  // namespace

TEST_CASE("all_reduce with each algorithm, in place and out of place") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      with_each_algorithm([&](auto algorithm) {
        for (const std::size_t count : counts) {
          const auto input = elements(comm.rank(), count);
          auto data = input;
          ddpp::all_reduce(comm, data, ddpp::sum, algorithm);
          for (std::size_t i = 0; i < count; ++i) EXPECT(data[i] == sum_of_elements(comm.size(), i));
          std::vector<std::int64_t> out(count, -1);
          ddpp::all_reduce(comm, input, out, ddpp::max, algorithm);
          EXPECT(out == elements(comm.size() - 1, count));
          EXPECT(input == elements(comm.rank(), count));
        }
      });
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "an algorithm as the communicator's policy") {
  on_ranks<transport, ddpp::algorithms::ring>(3, [](auto& comm) {
    auto data = elements(comm.rank(), 100);
    ddpp::all_reduce(comm, data);
    for (std::size_t i = 0; i < data.size(); ++i) EXPECT(data[i] == sum_of_elements(3, i));
    ddpp::barrier(comm);  // what the ring lacks, automatic supplies
  });
}

TEST_CASE("broadcast from each root") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      with_each<algorithms::ring, algorithms::tree, algorithms::scatter_gather>([&](auto... algorithm) {
        for (int root = 0; root < comm.size(); ++root) {
          for (const std::size_t count : counts) {
            if (takes_long(comm.size(), count)) continue;
            auto data = elements(comm.rank(), count);
            ddpp::broadcast(comm, data, root, algorithm...);
            EXPECT(data == elements(root, count));
          }
        }
      });
    });
  }
}

TEST_CASE("reduce to each root leaves the others' input alone") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      with_each<algorithms::tree, algorithms::scatter_gather>([&](auto... algorithm) {
        for (int root = 0; root < comm.size(); ++root) {
          for (const std::size_t count : counts) {
            if (takes_long(comm.size(), count)) continue;
            const auto input = elements(comm.rank(), count);
            auto data = input;
            ddpp::reduce(comm, data, ddpp::sum, root, algorithm...);
            std::vector<std::int64_t> out(comm.rank() == root ? count : 0);
            ddpp::reduce(comm, input, out, ddpp::sum, root, algorithm...);
            if (comm.rank() != root) {
              EXPECT(data == input);
              continue;
            }
            for (std::size_t i = 0; i < count; ++i) {
              EXPECT(data[i] == sum_of_elements(comm.size(), i) && out[i] == data[i]);
            }
          }
        }
      });
    });
  }
}

TEST_CASE("all_gather, in place and out of place") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto ranks = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
      with_each<algorithms::ring, algorithms::bruck>([&](auto... algorithm) {
        for (const std::size_t count : counts) {
          if (takes_long(comm.size(), count)) continue;
          const auto expected = elements_of_all(comm.size(), count);
          std::vector<std::int64_t> whole(ranks * count, -1);
          ddpp::all_gather(comm, elements(comm.rank(), count), whole, algorithm...);
          EXPECT(whole == expected);

          std::fill(whole.begin(), whole.end(), -1);
          const auto own = std::span(whole).subspan(rank * count, count);
          std::ranges::copy(elements(comm.rank(), count), own.begin());
          ddpp::all_gather(comm, own, whole, algorithm...);
          EXPECT(whole == expected);
        }
      });
    });
  }
}

TEST_CASE("reduce_scatter, in place and out of place") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      with_each<algorithms::ring, algorithms::halving_doubling>([&](auto... algorithm) {
        for (const std::size_t count : counts) {
          if (takes_long(comm.size(), count)) continue;
          const auto input = elements_of_all(comm.size(), count);
          auto whole = input;
          std::vector<std::int64_t> piece(count, -1);
          ddpp::reduce_scatter(comm, whole, piece, ddpp::sum, algorithm...);
          EXPECT(whole == input);
          for (std::size_t i = 0; i < count; ++i) EXPECT(piece[i] == comm.size() * input[rank * count + i]);
          const auto own = std::span(whole).subspan(rank * count, count);
          ddpp::reduce_scatter(comm, whole, own, ddpp::sum, algorithm...);
          EXPECT(std::ranges::equal(own, piece));
          std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(rank * count), count, own.begin());
          EXPECT(whole == input);
        }
      });
    });
  }
}

TEST_CASE("gather and scatter with each root") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto ranks = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
      with_each<algorithms::direct, algorithms::tree>([&](auto... algorithm) {
        for (int root = 0; root < comm.size(); ++root) {
          const bool is_root = comm.rank() == root;
          for (const std::size_t count : counts) {
            if (takes_long(comm.size(), count)) continue;
            if (count > 10'000 && root % 4 != 0) continue;  // some roots are enough for what takes long
            const auto own = elements(comm.rank(), count), all = elements_of_all(comm.size(), count);
            std::vector<std::int64_t> whole(is_root ? ranks * count : 0);
            ddpp::gather(comm, own, whole, root, algorithm...);
            EXPECT(!is_root || whole == all);
            std::vector<std::int64_t> back(count, -1);
            ddpp::scatter(comm, whole, back, root, algorithm...);
            EXPECT(back == own);

            // In place: the root's piece is its place in the whole.
            const auto place = is_root ? std::span(whole).subspan(rank * count, count) : std::span(back);
            ddpp::scatter(comm, whole, place, root, algorithm...);
            EXPECT(std::ranges::equal(place, own));
            for (std::size_t i = 0; is_root && i < whole.size(); ++i) {
              if (i / count != rank) whole[i] = -1;
            }
            ddpp::gather(comm, place, whole, root, algorithm...);
            EXPECT(!is_root || whole == all);
          }
        }
      });
    });
  }
}

TEST_CASE("all_to_all, in place and out of place") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto ranks = static_cast<std::size_t>(comm.size());
      with_each<algorithms::direct, algorithms::bruck>([&](auto... algorithm) {
        for (const std::size_t count : counts) {
          if (takes_long(comm.size(), count)) continue;
          std::vector<int> in(ranks * count), out(ranks * count, -1);
          for (std::size_t i = 0; i < in.size(); ++i) in[i] = 100 * comm.rank() + static_cast<int>(i / count);
          ddpp::all_to_all(comm, in, out, algorithm...);
          for (std::size_t i = 0; i < out.size(); ++i)
            EXPECT(out[i] == 100 * static_cast<int>(i / count) + comm.rank());
          if constexpr (ddpp::runs_algorithms<transport>) {
            ddpp::all_to_all(comm, in, in, algorithm...);
            EXPECT(in == out);
          }
        }
      });
    });
  }
}

TEST_CASE("the forms with counts, some of them zero") {
  for (int n = 1; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto ranks = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
      std::vector<std::size_t> sizes(ranks), offsets(ranks + 1, 0);
      for (std::size_t r = 0; r < ranks; ++r) sizes[r] = r % 3 == 1 ? 0 : 1000 * r + 1;
      std::inclusive_scan(sizes.begin(), sizes.end(), offsets.begin() + 1);
      const auto total = offsets.back();
      std::vector<std::int64_t> expected(total);
      std::iota(expected.begin(), expected.end(), 5);
      const auto own = std::span(expected).subspan(offsets[rank], sizes[rank]);

      with_each<algorithms::ring, algorithms::bruck>([&](auto... algorithm) {
        std::vector<std::int64_t> whole(total, -1);
        ddpp::all_gather_v(comm, own, whole, sizes, algorithm...);
        EXPECT(whole == expected);
      });

      with_each<algorithms::ring, algorithms::halving_doubling>([&](auto... algorithm) {
        std::vector<std::int64_t> piece(sizes[rank], -1);
        ddpp::reduce_scatter_v(comm, expected, piece, sizes, ddpp::sum, algorithm...);
        for (std::size_t i = 0; i < piece.size(); ++i) EXPECT(piece[i] == comm.size() * own[i]);
      });

      with_each<algorithms::direct, algorithms::tree>([&](auto... algorithm) {
        for (int root = 0; root < comm.size(); ++root) {
          std::vector<std::int64_t> gathered(comm.rank() == root ? total : 0), piece(sizes[rank], -1);
          ddpp::gather_v(comm, own, gathered, sizes, root, algorithm...);
          EXPECT(comm.rank() != root || gathered == expected);
          ddpp::scatter_v(comm, gathered, piece, sizes, root, algorithm...);
          EXPECT(std::ranges::equal(piece, own));
        }
      });

      // Rank r sends 3 r + p elements to rank p, and to rank 0 none.
      const auto sent_by = [](std::size_t r, std::size_t p) { return p == 0 ? 0 : 3 * r + p; };
      std::vector<std::size_t> sent(ranks), received(ranks);
      for (std::size_t p = 0; p < ranks; ++p) sent[p] = sent_by(rank, p), received[p] = sent_by(p, rank);
      with_each<algorithms::direct, algorithms::bruck>([&](auto... algorithm) {
        std::vector<std::size_t> out,
            in(std::accumulate(received.begin(), received.end(), std::size_t{0}), 999);
        for (std::size_t p = 0; p < ranks; ++p) out.insert(out.end(), sent[p], 100 * rank + p);
        ddpp::all_to_all_v(comm, out, sent, in, received, algorithm...);
        for (std::size_t p = 0, at = 0; p < ranks; ++p) {
          for (std::size_t i = 0; i < received[p]; ++i) EXPECT(in[at++] == 100 * p + rank);
        }
      });
    });
  }
}

TEST_CASE("asynchronous forms of all collectives run in the order of issue") {
  on_ranks(4, [](auto& comm) {
    const std::size_t n = 501;
    const int rank = comm.rank(), root = 2;
    const std::vector<std::size_t> sizes(4, n);
    auto reduced = elements(rank, n), sent = elements(rank, n), rooted = elements(rank, n);
    const auto own = elements(rank, n);
    std::vector<std::int64_t> gathered(4 * n), gathered_v(4 * n), at_root(4 * n), at_root_v(4 * n);
    std::vector<std::int64_t> piece(n), piece_v(n), scattered(n), scattered_v(n), exchanged(4 * n),
        exchanged_v(4 * n);
    std::vector<ddpp::work> pending;
    pending.push_back(ddpp::all_reduce_async(comm, reduced));
    pending.push_back(ddpp::broadcast_async(comm, sent, root));
    pending.push_back(ddpp::reduce_async(comm, rooted, ddpp::sum, root));
    pending.push_back(ddpp::all_gather_async(comm, own, gathered));
    pending.push_back(ddpp::all_gather_v_async(comm, own, gathered_v, sizes));
    pending.push_back(ddpp::reduce_scatter_async(comm, gathered, piece));  // reads what is gathered before it
    pending.push_back(ddpp::reduce_scatter_v_async(comm, gathered, piece_v, sizes));
    pending.push_back(ddpp::gather_async(comm, own, at_root, root));
    pending.push_back(ddpp::gather_v_async(comm, own, at_root_v, sizes, root));
    pending.push_back(ddpp::scatter_async(comm, gathered, scattered, root));
    pending.push_back(ddpp::scatter_v_async(comm, gathered, scattered_v, sizes, root));
    pending.push_back(ddpp::all_to_all_async(comm, gathered, exchanged));
    pending.push_back(ddpp::all_to_all_v_async(comm, gathered, sizes, exchanged_v, sizes));
    pending.push_back(ddpp::barrier_async(comm));
    std::vector<std::int64_t> last = own;
    ddpp::all_reduce(comm, last, ddpp::min);  // blocking, behind all of them
    for (auto& work : pending) EXPECT(work.done());
    for (auto it = pending.rbegin(); it != pending.rend(); ++it) it->wait();

    EXPECT(last == elements(0, n) && sent == elements(root, n));
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT(reduced[i] == sum_of_elements(4, i));
      EXPECT(rooted[i] == (rank == root ? reduced[i] : own[i]));
      EXPECT(piece[i] == 4 * own[i]);
    }
    EXPECT(gathered == gathered_v && piece == piece_v && scattered == own && scattered_v == own &&
           exchanged == exchanged_v);
    for (std::size_t i = 0; i < 4 * n; ++i) EXPECT(exchanged[i] == own[i % n]);
    EXPECT(rank != root || (at_root == gathered && at_root_v == gathered));
  });
}

TEST_CASE("sixteen operations in flight give each its own result") {
  on_ranks(3, [](auto& comm) {
    std::vector<std::vector<std::int64_t>> buffers;
    for (int k = 0; k < 16; ++k) buffers.emplace_back(10'007, 100 * k + comm.rank());
    std::vector<ddpp::work> pending;
    for (auto& buffer : buffers) pending.push_back(ddpp::all_reduce_async(comm, buffer));
    for (auto& work : pending) work.wait();
    for (int k = 0; k < 16; ++k) {
      for (const std::int64_t x : buffers[static_cast<std::size_t>(k)]) EXPECT(x == 300 * k + 3);
    }
  });
}

CASE_WHERE(!ddpp::has_stream_order<transport>,
           "all_reduce_async returns before another rank has called at all") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x(1000, 1), token(1);
    if (comm.rank() == 0) {
      auto work = ddpp::all_reduce_async(comm, x);
      ddpp::send(comm, token, 1);  // rank 1 calls only once it has this
      work.wait();
    } else {
      ddpp::recv(comm, token, 0);
      ddpp::all_reduce(comm, x);
    }
    EXPECT(x[999] == 2);
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "ring: long and uneven blocks, which go around in slices") {
  on_ranks(3, [](auto& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::size_t segment = ddpp::detail::segment_length<transport>(sizeof(std::int64_t));
    const std::vector<std::size_t> sizes{5 * segment + 3, segment / 2, 4 * segment};
    const std::size_t total = sizes[0] + sizes[1] + sizes[2];
    const std::size_t offset = std::accumulate(sizes.begin(), sizes.begin() + comm.rank(), std::size_t{0});
    const auto expected = elements(0, total);
    const algorithms::ring ring;

    std::vector<std::int64_t> whole(total, -1);
    ddpp::all_gather_v(comm, std::span(expected).subspan(offset, sizes[rank]), whole, sizes, ring);
    EXPECT(whole == expected);

    whole = elements(comm.rank(), total);
    std::vector<std::int64_t> piece(sizes[rank], -1);
    ddpp::reduce_scatter_v(comm, whole, piece, sizes, ddpp::sum, ring);
    for (std::size_t i = 0; i < piece.size(); ++i) EXPECT(piece[i] == sum_of_elements(3, offset + i));
    const auto own = std::span(whole).subspan(offset, sizes[rank]);
    ddpp::reduce_scatter_v(comm, whole, own, sizes, ddpp::sum, ring);
    EXPECT(std::ranges::equal(own, piece));

    whole = elements(comm.rank(), total);
    ddpp::all_reduce(comm, whole, ddpp::sum, ring);
    for (std::size_t i = 0; i < total; ++i) EXPECT(whole[i] == sum_of_elements(3, i));
  });
}
