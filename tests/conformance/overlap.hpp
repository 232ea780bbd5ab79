// SPDX-License-Identifier: BSL-1.0
// Input and output in the same memory: what is in place works, all else is refused before anything is sent.
#pragma once

#include <algorithm>
#include <numeric>

#include "suite.hpp"

using namespace conformance;

namespace {

using numbers = std::span<std::int64_t>;

/// Offsets from a buffer's beginning at which another of the same length overlaps it in part.
constexpr std::ptrdiff_t shifts[] = {-5, -1, 1, 5};

/// Memory with room on both sides of where a buffer begins.
class arena {
 public:
  numbers at(std::ptrdiff_t offset, std::size_t count) {
    return numbers(memory_).subspan(static_cast<std::size_t>(margin + offset), count);
  }

 private:
  static constexpr std::ptrdiff_t margin = 32;
  std::vector<std::int64_t> memory_ = std::vector<std::int64_t>(256);
};

template <class F>
void expect_refused(const char* what, F f) {
  const std::string text = EXPECT_THROWS(ddpp::usage_error, f());
  support::expect(says(text, "overlap"), (std::string(what) + ": " + text).c_str(), __FILE__, __LINE__);
}

}  // namespace

TEST_CASE("buffers that overlap in part are refused by each operation, and no harm is done") {
  on_ranks(2, [](auto& comm) {
    constexpr std::size_t n = 2, piece = 8;
    const std::vector<std::size_t> even(n, piece), uneven{piece - 2, piece + 2};
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto own_place = static_cast<std::ptrdiff_t>(rank * piece);
    const std::size_t uneven_piece = uneven[rank];
    const std::ptrdiff_t uneven_place = rank == 0 ? 0 : piece - 2;
    arena memory;
    const numbers one = memory.at(0, piece), whole = memory.at(0, n * piece);
    for (const std::ptrdiff_t shift : shifts) {
      const numbers beside = memory.at(shift, piece), whole_beside = memory.at(shift, n * piece);
      const numbers place = memory.at(own_place + shift, piece);
      const numbers place_v = memory.at(uneven_place + shift, uneven_piece);
      const int root = comm.rank();  // who is no root has nothing that could overlap
      expect_refused("all_reduce", [&] { ddpp::all_reduce(comm, one, beside); });
      expect_refused("reduce", [&] { ddpp::reduce(comm, one, beside, ddpp::sum, root); });
      expect_refused("all_gather", [&] { ddpp::all_gather(comm, place, whole); });
      expect_refused("all_gather_v", [&] { ddpp::all_gather_v(comm, place_v, whole, uneven); });
      expect_refused("gather", [&] { ddpp::gather(comm, place, whole, root); });
      expect_refused("gather_v", [&] { ddpp::gather_v(comm, place_v, whole, uneven, root); });
      expect_refused("scatter", [&] { ddpp::scatter(comm, whole, place, root); });
      expect_refused("scatter_v", [&] { ddpp::scatter_v(comm, whole, place_v, uneven, root); });
      expect_refused("reduce_scatter", [&] { ddpp::reduce_scatter(comm, whole, place); });
      expect_refused("reduce_scatter_v", [&] { ddpp::reduce_scatter_v(comm, whole, place_v, uneven); });
      expect_refused("all_to_all", [&] { ddpp::all_to_all(comm, whole, whole_beside); });
      expect_refused("all_to_all_v", [&] { ddpp::all_to_all_v(comm, whole, even, whole_beside, even); });
      expect_refused("send_recv", [&] { ddpp::send_recv(comm, one, 1 - root, beside, 1 - root); });
    }
    expect_refused("send_recv", [&] { ddpp::send_recv(comm, one, 1 - comm.rank(), one, 1 - comm.rank()); });
    // Another rank's place, and a part of the buffer.
    const numbers other = memory.at(static_cast<std::ptrdiff_t>((1 - rank) * piece), piece);
    expect_refused("all_gather", [&] { ddpp::all_gather(comm, other, whole); });
    expect_refused("gather", [&] { ddpp::gather(comm, other, whole, comm.rank()); });
    expect_refused("scatter", [&] { ddpp::scatter(comm, whole, other, comm.rank()); });
    expect_refused("reduce_scatter", [&] { ddpp::reduce_scatter(comm, whole, other); });
    std::vector<std::size_t> own_only(n, 0);
    own_only[rank] = piece;
    expect_refused("all_to_all_v", [&] { ddpp::all_to_all_v(comm, whole, even, one, own_only); });
    std::fill(one.begin(), one.end(), 1);
    ddpp::all_reduce(comm, one);
    EXPECT(one.front() == 2 && one.back() == 2);
  });
}

TEST_CASE("the forms with counts, in place") {
  on_ranks(3, [](auto& comm) {
    const std::vector<std::size_t> sizes{300, 0, 500}, offsets{0, 300, 300};
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::int64_t mine = comm.rank() + 1;
    std::vector<std::int64_t> whole(800);
    const numbers own = numbers(whole).subspan(offsets[rank], sizes[rank]);
    const auto fill = [&](std::int64_t others) {
      std::fill(whole.begin(), whole.end(), others);
      std::fill(own.begin(), own.end(), mine);
    };
    const auto is_gathered = [&] {
      return std::all_of(whole.begin(), whole.begin() + 300, [](auto x) { return x == 1; }) &&
             std::all_of(whole.begin() + 300, whole.end(), [](auto x) { return x == 3; });
    };
    fill(-1);
    ddpp::all_gather_v(comm, own, whole, sizes);
    EXPECT(is_gathered());
    for (int root = 0; root < 3; ++root) {
      fill(-1);
      ddpp::gather_v(comm, own, whole, sizes, root);
      if (comm.rank() == root) EXPECT(is_gathered());
      std::iota(whole.begin(), whole.end(), 1000 * mine);
      ddpp::scatter_v(comm, whole, own, sizes, root);
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT(own[i] == 1000 * (root + 1) + static_cast<std::int64_t>(offsets[rank] + i));
      }
    }
    std::iota(whole.begin(), whole.end(), mine);
    ddpp::reduce_scatter_v(comm, whole, own, sizes);
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT(own[i] == 6 + 3 * static_cast<std::int64_t>(offsets[rank] + i));
    }
    if constexpr (ddpp::runs_algorithms<transport>) {
      const std::vector<std::size_t> shares(3, 200);
      std::vector<std::int64_t> exchanged(600, mine);
      ddpp::all_to_all_v(comm, exchanged, shares, exchanged, shares);
      for (std::size_t i = 0; i < 600; ++i) EXPECT(exchanged[i] == static_cast<std::int64_t>(i / 200) + 1);
    }
  });
}
