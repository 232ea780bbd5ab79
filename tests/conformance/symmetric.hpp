// SPDX-License-Identifier: BSL-1.0
// Memory that ranks allocate together: collectives give in it what they give elsewhere, whoever uses it.
#pragma once

#include <ddpp/symmetric.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Beyond what goes through a slot whole, and beyond a slot.
constexpr std::size_t symmetric_counts[] = {1, 200, 5'003, 70'001};

std::int64_t symmetric_element(int rank, std::size_t i) {
  return 1'000 * (rank + 1) + static_cast<std::int64_t>(i);
}
std::int64_t symmetric_sum(int ranks, std::size_t i) {
  return 1'000 * (ranks * (ranks + 1) / 2) + ranks * static_cast<std::int64_t>(i);
}

void fill_symmetric(std::span<std::int64_t> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = symmetric_element(rank, i);
}
bool holds_sums(std::span<const std::int64_t> data, int ranks) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] != symmetric_sum(ranks, i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("symmetric memory is zero, aligned, and each rank's own") {
  for (int n = 1; n <= std::min(most_ranks, 5); ++n) {
    on_ranks(n, [](auto& comm) {
      auto none = ddpp::allocate_symmetric<double>(comm, 0);
      EXPECT(none.size() == 0);
      auto first = ddpp::allocate_symmetric<std::int64_t>(comm, 1009);
      auto second = ddpp::allocate_symmetric<char>(comm, 1);
      EXPECT(first.size() == 1009);
      EXPECT(reinterpret_cast<std::uintptr_t>(first.data()) % 64 == 0);
      EXPECT(reinterpret_cast<std::uintptr_t>(second.data()) % 64 == 0);
      EXPECT(second[0] == 0);
      for (const std::int64_t each : first) EXPECT(each == 0);
      ddpp::barrier(comm);
      for (std::int64_t& each : first) each = comm.rank();
      ddpp::barrier(comm);
      for (const std::int64_t each : first) EXPECT(each == comm.rank());
    });
  }
}

TEST_CASE("collectives in symmetric memory, again and again") {
  for (int n = 1; n <= std::min(most_ranks, 5); ++n) {
    on_ranks(n, [n](auto& comm) {
      const auto ranks = static_cast<std::size_t>(n), rank = static_cast<std::size_t>(comm.rank());
      for (const std::size_t count : symmetric_counts) {
        auto data = ddpp::allocate_symmetric<std::int64_t>(comm, count * ranks);
        const std::span<std::int64_t> all(data), own = all.subspan(rank * count, count);
        for (int i = 0; i < 3; ++i) {
          fill_symmetric(all, comm.rank());
          ddpp::all_reduce(comm, all);
          EXPECT(holds_sums(all, n));
          fill_symmetric(all, comm.rank());
          std::vector<std::int64_t> block(count);
          ddpp::reduce_scatter(comm, std::span<const std::int64_t>(all), block);
          for (std::size_t k = 0; k < count; ++k) EXPECT(block[k] == symmetric_sum(n, rank * count + k));
          fill_symmetric(own, comm.rank());
          ddpp::all_gather(comm, std::span<const std::int64_t>(own), all);
          for (std::size_t k = 0; k < all.size(); ++k)
            EXPECT(all[k] == symmetric_element(static_cast<int>(k / count), k % count));
          const int root = i % n;
          fill_symmetric(all, comm.rank());
          ddpp::broadcast(comm, all, root);
          for (std::size_t k = 0; k < all.size(); ++k) EXPECT(all[k] == symmetric_element(root, k));
        }
      }
    });
  }
}

TEST_CASE("symmetric memory on some ranks, at different places, of different windows") {
  on_ranks(3, [](auto& comm) {
    for (const std::size_t count : symmetric_counts) {
      auto first = ddpp::allocate_symmetric<std::int64_t>(comm, count + 8);
      auto second = ddpp::allocate_symmetric<std::int64_t>(comm, count);
      std::vector<std::int64_t> elsewhere(count);
      const auto offset = static_cast<std::size_t>(comm.rank());
      const std::span<std::int64_t> here = std::span(first).subspan(offset, count);
      const bool odd = comm.rank() == 1;
      for (const std::span<std::int64_t> mine : {here, odd ? std::span<std::int64_t>(elsewhere) : here,
                                                 odd ? std::span<std::int64_t>(second) : here, here}) {
        fill_symmetric(mine, comm.rank());
        ddpp::all_reduce(comm, mine);
        EXPECT(holds_sums(mine, 3));
        for (int root = 0; root < 3; ++root) {
          fill_symmetric(mine, comm.rank());
          ddpp::broadcast(comm, mine, root);
          for (std::size_t k = 0; k < count; ++k) EXPECT(mine[k] == symmetric_element(root, k));
        }
      }
    }
  });
}

CASE_WHERE(ddpp::has_symmetric_memory<transport>,
           "symmetric memory that nobody can have is refused on all ranks, which go on") {
  on_ranks(4, [](auto& comm) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    const auto refused = [&](std::size_t count) {
      try {
        ddpp::allocate_symmetric<char>(comm, count);
        return false;
      } catch (const ddpp::error&) {
        return true;
      }
    };
    // The last two wrap around when multiplied by the number of ranks, or rounded up to pages.
    for (const std::size_t count : {most, most / 2 - 1, most / 4 + 4097}) EXPECT(refused(count));
    auto data = ddpp::allocate_symmetric<int>(comm, 10'000);
    for (int& each : data) each = 1;
    ddpp::all_reduce(comm, data);
    for (const int each : data) EXPECT(each == 4);
  });
}

TEST_CASE("symmetric memory outlives its communicator, and is memory like any with another") {
  on_ranks(3, [](auto& comm) {
    auto data = [&] {
      auto other = comm.split(0);
      return ddpp::allocate_symmetric<int>(other, 2'000);
    }();
    for (int& each : data) each = comm.rank();
    ddpp::all_reduce(comm, data);
    for (const int each : data) EXPECT(each == 3);
  });
}
