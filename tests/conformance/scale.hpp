// SPDX-License-Identifier: BSL-1.0
// Many elements, many groups, high sequence numbers, many threads.
#pragma once

#include <ddpp/concepts.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include "suite.hpp"

using namespace conformance;

namespace {

constexpr bool is_full_speed() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#elif defined(__has_feature)
  return !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
  return true;
#endif
}

/// More bytes than an int counts, and no multiple of anything.
constexpr std::size_t beyond_int = (std::size_t{1} << 31) + 7;

/// Recognises a byte that is in the wrong place: neighbours differ, and so do 2^31-th neighbours. Written and
/// compared as blocks, since loops over all take long without optimisation.
class pattern {
 public:
  explicit pattern(unsigned seed) : block_(length) {
    for (std::size_t i = 0; i < length; ++i) block_[i] = static_cast<std::uint8_t>((i * 31 + seed * 7) % 251);
  }
  void write(std::span<std::uint8_t> to) const {
    for (std::size_t i = 0; i < to.size(); i += length) std::memcpy(&to[i], block_.data(), part(to, i));
  }
  bool is_in(std::span<const std::uint8_t> found) const {
    for (std::size_t i = 0; i < found.size(); i += length) {
      if (std::memcmp(&found[i], block_.data(), part(found, i)) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t length = 1'000'003;
  template <class S>
  static std::size_t part(const S& of, std::size_t from) {
    return std::min(length, of.size() - from);
  }
  std::vector<std::uint8_t> block_;
};

/// Begins to count collectives at another number than 1.
template <class Base>
struct far_ahead : Base {
  using Base::Base;
  std::uint64_t offset = 0;

  void enter(ddpp::fingerprint print) requires ddpp::has_control_plane<Base> {
    print.sequence += offset;
    Base::enter(print);
  }
};

/// What a process has open.
struct holdings {
  std::ptrdiff_t descriptors, threads, mappings;

  static holdings now() {
    const auto entries = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder),
                           std::filesystem::directory_iterator());
    };
    std::ifstream maps("/proc/self/maps");
    const auto lines =
        std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
    return {entries("/proc/self/fd"), entries("/proc/self/task"), lines};
  }
};

}  // namespace

TEST_CASE("10,556,587 elements on eight ranks") {
  if (!is_full_speed()) return;
  on_ranks(8, [](auto& comm) {
    std::vector<std::int32_t> x(10'556'587, comm.rank());
    x.front() = x.back() = 1;
    ddpp::all_reduce(comm, x);
    EXPECT(x.front() == 8 && x.back() == 8);
    EXPECT(std::count(x.begin(), x.end(), 28) == static_cast<std::ptrdiff_t>(x.size()) - 2);
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "elements of kilobytes among many ranks") {
  struct block {
    std::array<int, 1000> numbers;
  };
  struct sum_of_blocks {
    block operator()(block a, const block& b) const {
      for (std::size_t i = 0; i < a.numbers.size(); ++i) a.numbers[i] += b.numbers[i];
      return a;
    }
  };
  const int ranks = is_full_speed() ? 64 : 16;
  on_ranks(ranks, [](auto& comm) {
    const auto number = static_cast<std::size_t>(comm.size());
    const int sum = comm.size() * (comm.size() - 1) / 2;
    std::vector<block> all(3), each(2 * number), mine(2);
    for (std::vector<block>* const blocks : {&all, &each}) {
      for (block& one : *blocks) one.numbers.fill(comm.rank());
    }
    ddpp::all_reduce(comm, all, sum_of_blocks());
    ddpp::reduce_scatter(comm, each, mine, sum_of_blocks());
    for (const std::vector<block>* const blocks : {&all, &mine}) {
      for (const block& one : *blocks) {
        for (const int found : one.numbers) EXPECT(found == sum);
      }
    }
  });
}

TEST_SUITE("full") {
  TEST_CASE("2^31 + 7 bytes" * doctest::timeout(1200)) {
    on_ranks(
        2,
        [](auto& comm) {
          const int rank = comm.rank(), other = 1 - rank;
          const pattern mine(static_cast<unsigned>(rank)), theirs(static_cast<unsigned>(other)), of_0(0);
          {
            std::vector<std::uint8_t> out(beyond_int), in(beyond_int);
            mine.write(out);
            ddpp::send_recv(comm, out, other, in, other);
            EXPECT(theirs.is_in(in));
            ddpp::broadcast(comm, out);
            EXPECT(of_0.is_in(out));
            mine.write(out);
            if constexpr (ddpp::runs_algorithms<transport>)
              ddpp::all_reduce(comm, out, ddpp::max, ddpp::algorithms::ring{});
            else
              ddpp::all_reduce(comm, out, ddpp::max);
            std::vector<std::uint8_t> most(1'000'003), least(1'000'003);
            mine.write(most);
            theirs.write(least);
            for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], least[i]);
            for (std::size_t i = 0; i < out.size(); i += most.size()) {
              EXPECT(std::memcmp(&out[i], most.data(), std::min(most.size(), out.size() - i)) == 0);
            }
          }
          {
            const std::size_t large = beyond_int - 5, small = 5;  // one piece of many bytes
            const std::size_t sizes[] = {small, large};
            std::vector<std::uint8_t> all(beyond_int), piece(sizes[rank]);
            mine.write(piece);
            ddpp::all_gather_v(comm, piece, all, sizes);
            EXPECT(of_0.is_in(std::span(all).first(small)) &&
                   pattern(1).is_in(std::span(all).subspan(small)));
            std::fill(piece.begin(), piece.end(), std::uint8_t{0});
            ddpp::scatter_v(comm, all, piece, sizes, 0);
            EXPECT(mine.is_in(piece));
            std::fill(all.begin(), all.end(), std::uint8_t{0});
            ddpp::gather_v(comm, piece, all, sizes, 0);
            EXPECT(rank != 0 || pattern(1).is_in(std::span(all).subspan(small)));
          }
        },
        600s);
  }
}

TEST_CASE("collectives whose numbers are about to wrap around") {
  constexpr std::uint64_t borders[] = {std::uint64_t{1} << 16, std::uint64_t{1} << 31, std::uint64_t{1} << 32,
                                       std::uint64_t{1} << 63, 0};
  for (const std::uint64_t border : borders) {
    on_ranks<far_ahead<transport>>(3, [&](auto& comm) {
      comm.transport().offset = border - 6;
      std::vector<ddpp::work> pending;
      std::vector<std::vector<int>> x(12, std::vector<int>(1000, 1));
      for (auto& each : x) pending.push_back(ddpp::all_reduce_async(comm, each));
      for (auto& work : pending) work.wait();
      for (const auto& each : x) EXPECT(each.front() == 3 && each.back() == 3);
      std::vector<int> all(3);
      for (int i = 0; i < 12; ++i) ddpp::all_gather(comm, std::vector<int>(1, i), all);
      EXPECT(all == std::vector<int>(3, 11));
    });
  }
}

CASE_IF(tells_of_mismatches(), "a mismatch is found where numbers wrap around, too") {
  for (const std::uint64_t border : {std::uint64_t{1} << 32, std::uint64_t{1} << 63}) {
    on_ranks<far_ahead<transport>>(3, [&](auto& comm) {
      comm.transport().offset = border - 3;
      std::vector<int> x(comm.rank() == 1 ? 9 : 10);
      const std::string text = EXPECT_THROWS(ddpp::mismatch_error, {
        for (int i = 0; i < 2; ++i) ddpp::barrier(comm);  // where a slow rank may hear of it
        ddpp::all_reduce(comm, x);
      });
      EXPECT(says(text, "rank 1"));
    });
  }
}

TEST_CASE("a thousand subgroups leave nothing behind") {
  const int groups = is_full_speed() ? 1000 : 50;
  on_ranks(2, [=](auto& comm) {
    const auto come_and_go = [&] {
      auto part = comm.split(0, -comm.rank());
      std::vector<int> x(10, 1);
      ddpp::all_reduce(part, x);
      EXPECT(x[9] == 2);
    };
    const auto settled = [&] {  // both are between the same operations
      ddpp::barrier(comm);
      const holdings found = holdings::now();
      ddpp::barrier(comm);
      return found;
    };
    for (int i = 0; i < 20; ++i) come_and_go();
    const holdings before = settled();
    for (int i = 0; i < groups; ++i) come_and_go();
    const ddpp::deadline until = std::chrono::steady_clock::now() + generous;
    holdings after = settled();
    for (std::vector<int> waits(1, 1); waits[0] != 0 && std::chrono::steady_clock::now() < until;) {
      after = settled();  // what ends on its own has a while to do so
      waits[0] = after.descriptors > before.descriptors || after.threads > before.threads;
      ddpp::all_reduce(comm, waits, ddpp::max);
    }
    EXPECT(after.descriptors <= before.descriptors);
    EXPECT(after.threads <= before.threads);
    EXPECT(after.mappings <= before.mappings + 50);  // the allocator's
  });
}

// On a stream that they share operations of one communicator wait for those of another.
CASE_WHERE(!ddpp::has_stream_order<transport>, "four threads of each rank, with a communicator each") {
  on_ranks(2, [](auto& comm) {
    using communicator = std::remove_reference_t<decltype(comm)>;
    std::vector<communicator> own;
    for (int t = 0; t < 4; ++t) own.push_back(comm.duplicate());
    std::vector<std::exception_ptr> errors(own.size());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < own.size(); ++t) {
      threads.emplace_back([&, t] {
        try {
          const int other = 1 - own[t].rank();
          for (int k = 0; k < 40; ++k) {
            std::vector<int> x(static_cast<std::size_t>(1 + 500 * k), static_cast<int>(t) + k), in(x.size());
            auto received = ddpp::irecv(own[t], in, other);
            ddpp::send(own[t], x, other);
            received.wait();
            EXPECT(in == x);
            ddpp::all_reduce(own[t], x);
            EXPECT(x.back() == 2 * (static_cast<int>(t) + k));
          }
        } catch (...) {
          errors[t] = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  });
}
