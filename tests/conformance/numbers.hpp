// SPDX-License-Identifier: BSL-1.0
// Numbers: each type and operation, the same bits everywhere, NaN and signed zeros, 16-bit sums, averages of
// integers.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <sys/mman.h>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Else each rank's number is divided before it is added.
constexpr bool has_exact_averages = ddpp::runs_algorithms<transport>;

template <class T>
void each_operation(auto& comm) {
  const int n = comm.size(), rank = comm.rank();
  const std::vector<T> input(37, T(static_cast<float>(rank + 1)));
  const auto result_of = [&](auto op) {
    auto data = input;
    ddpp::all_reduce(comm, data, op);
    for (const T& x : data) EXPECT(std::memcmp(&x, &data[0], sizeof(T)) == 0);
    return static_cast<double>(data[0]);
  };
  const auto rounded = [](double exact) { return static_cast<double>(T(static_cast<float>(exact))); };
  double product = 1;
  for (int r = 1; r <= n; ++r) product *= r;
  EXPECT(result_of(ddpp::sum) == rounded(n * (n + 1) / 2.0));
  EXPECT(result_of(ddpp::prod) == rounded(product));
  EXPECT(result_of(ddpp::min) == 1 && result_of(ddpp::max) == n);
  if constexpr (std::is_integral_v<T>) {
    int all = 1, any = 1, odd = 1;
    for (int r = 2; r <= n; ++r) all &= r, any |= r, odd ^= r;
    if constexpr (reduces<T, ddpp::band_t>)
      EXPECT(result_of(ddpp::band) == all && result_of(ddpp::bor) == any && result_of(ddpp::bxor) == odd);
    EXPECT(result_of(ddpp::avg) == std::trunc((n + 1) / 2.0));
  } else {
    const double found = result_of(ddpp::avg), exact = (n + 1) / 2.0;
    if (has_exact_averages)
      EXPECT(found == exact);
    else
      EXPECT(std::abs(found - exact) < 0.01 * exact);
  }
  EXPECT(result_of(ddpp::premul_sum(2)) == rounded(n * (n + 1)));
}

/// A hundred numbers that ranks, be they threads or processes, leave to the test.
class shared_numbers {
 public:
  shared_numbers()
      : memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
  }
  ~shared_numbers() { ::munmap(memory_, bytes); }
  shared_numbers(const shared_numbers&) = delete;
  shared_numbers& operator=(const shared_numbers&) = delete;

  std::uint64_t& operator[](std::size_t i) const { return static_cast<std::uint64_t*>(memory_)[i]; }

 private:
  static constexpr std::size_t bytes = 100 * sizeof(std::uint64_t);
  void* memory_;
};

struct complex_pair {
  float re, im;
};

struct twelve_bytes {
  std::int32_t a, b, c;
};

class always_valid {  // trivially copyable, but not to be made of nothing
 public:
  explicit always_valid(int number) : number_(number) {}
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

TEST_CASE("each type with each operation") {
  for (const int n : {1, 2, 3, 5}) {
    on_ranks(n, [](auto& comm) {
      each_operation<std::int8_t>(comm);
      each_operation<std::uint8_t>(comm);
      if constexpr (reduces<std::int16_t, ddpp::sum_t>) {
        each_operation<std::int16_t>(comm);
        each_operation<std::uint16_t>(comm);
      }
      each_operation<std::int32_t>(comm);
      each_operation<std::uint32_t>(comm);
      each_operation<std::int64_t>(comm);
      each_operation<std::uint64_t>(comm);
      each_operation<ddpp::half>(comm);
      each_operation<ddpp::bfloat16>(comm);
      if constexpr (reduces<ddpp::float8_e4m3, ddpp::sum_t>) {
        each_operation<ddpp::float8_e4m3>(comm);
        each_operation<ddpp::float8_e5m2>(comm);
      }
      each_operation<float>(comm);
      each_operation<double>(comm);
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "any trivially copyable type with any callable") {
  on_ranks(5, [](auto& comm) {
    with_each_algorithm([&](auto algorithm) {
      std::vector<complex_pair> z(3000, {1.0f, 2.0f});
      ddpp::all_reduce(
          comm, z,
          [](complex_pair x, complex_pair y) {
            return complex_pair{x.re + y.re, x.im + y.im};
          },
          algorithm);
      for (const auto& x : z) EXPECT(x.re == 5.0f && x.im == 10.0f);
      // An element size that does not divide a segment.
      std::vector<twelve_bytes> t(30'011, {comm.rank(), 1, -comm.rank()});
      ddpp::all_reduce(
          comm, t,
          [](twelve_bytes x, twelve_bytes y) {
            return twelve_bytes{x.a + y.a, x.b + y.b, x.c < y.c ? x.c : y.c};
          },
          algorithm);
      for (const auto& x : t) EXPECT(x.a == 10 && x.b == 5 && x.c == -4);
      std::vector<always_valid> v(1000, always_valid(comm.rank()));
      ddpp::all_reduce(
          comm, v, [](always_valid x, always_valid y) { return always_valid(x.number() + y.number()); },
          algorithm);
      for (const auto& x : v) EXPECT(x.number() == 10);
    });
  });
}

TEST_CASE("sums of floats are close to the exact ones, and the same bits on all ranks and from run to run") {
  for (int n = 2; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const std::size_t count = 20'011;
      std::vector<double> exact(count);
      std::vector<float> input;
      for (int r = 0; r < comm.size(); ++r) {
        std::mt19937 random(static_cast<unsigned>(r));
        std::normal_distribution<float> normal;
        std::vector<float> theirs(count);
        for (std::size_t i = 0; i < count; ++i)
          theirs[i] = normal(random), exact[i] += static_cast<double>(theirs[i]);
        if (r == comm.rank()) input = theirs;
      }
      with_each_algorithm([&](auto algorithm) {
        auto first = input, second = input;
        ddpp::all_reduce(comm, first, ddpp::sum, algorithm);
        ddpp::all_reduce(comm, second, ddpp::sum, algorithm);
        for (std::size_t i = 0; i < count; ++i)
          EXPECT(std::abs(static_cast<double>(first[i]) - exact[i]) < 1e-5);
        EXPECT(std::memcmp(first.data(), second.data(), count * sizeof(float)) == 0);
        expect_same_bits(comm, first);
      });

      const int root = comm.size() / 2;
      with_each<ddpp::algorithms::tree, ddpp::algorithms::scatter_gather>([&](auto... algorithm) {
        std::vector<float> total(count);
        ddpp::reduce(comm, input, total, ddpp::sum, root, algorithm...);
        for (std::size_t i = 0; comm.rank() == root && i < count; ++i)
          EXPECT(std::abs(static_cast<double>(total[i]) - exact[i]) < 1e-5);
      });

      const std::size_t piece = count / static_cast<std::size_t>(comm.size());
      const std::size_t start = piece * static_cast<std::size_t>(comm.rank());
      const auto whole = std::span(input).first(piece * static_cast<std::size_t>(comm.size()));
      with_each<ddpp::algorithms::ring, ddpp::algorithms::halving_doubling>([&](auto... algorithm) {
        std::vector<float> part(piece);
        ddpp::reduce_scatter(comm, whole, part, ddpp::sum, algorithm...);
        for (std::size_t i = 0; i < piece; ++i)
          EXPECT(std::abs(static_cast<double>(part[i]) - exact[start + i]) < 1e-5);
      });
    });
  }
}

TEST_CASE("the same bits when the same program runs again") {
  for (const int n : {3, most_ranks}) {
    const shared_numbers found;
    for (std::size_t run = 0; run < 2; ++run) {
      on_ranks(n, [&](auto& comm) {
        std::mt19937 random(static_cast<unsigned>(comm.rank()));
        std::normal_distribution<float> normal;
        std::vector<float> input(5003);
        for (float& x : input) x = normal(random);
        std::size_t next = 50 * run;
        with_each_algorithm([&](auto algorithm) {
          auto data = input;
          ddpp::all_reduce(comm, data, ddpp::sum, algorithm);
          if (comm.rank() == 0) found[next++] = hash_of(std::span<const float>(data));
        });
      });
    }
    CHECK(found[0] != 0);
    for (std::size_t i = 0; i < 50; ++i) CHECK(found[i] == found[50 + i]);
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "reproducible follows one tree over ranks, whatever the size") {
  // The tree, written down again: pairs fold until a power of two is left, then neighbours at distance 1, 2,
  // 4, ...
  const auto tree_sum = [](std::vector<float> values) {
    std::size_t size = 1;
    while (2 * size <= values.size()) size *= 2;
    const std::size_t extra = values.size() - size;
    std::vector<float> group;
    for (std::size_t r = 0; r < values.size(); ++r) {
      if (r < 2 * extra)
        group.push_back(values[r] + values[r + 1]), ++r;
      else
        group.push_back(values[r]);
    }
    for (; group.size() > 1;) {
      std::vector<float> next;
      for (std::size_t i = 0; i < group.size(); i += 2) next.push_back(group[i] + group[i + 1]);
      group = next;
    }
    return group[0];
  };
  const auto value = [](int rank, std::size_t i) {
    return std::ldexp(
        1.0f + static_cast<float>((i * 7919 + static_cast<std::size_t>(rank) * 104729) % 1000) / 1000.0f,
        static_cast<int>((i + static_cast<std::size_t>(rank)) % 20));
  };
  for (int n = 2; n <= most_ranks; ++n) {
    on_ranks(n, [&](auto& comm) {
      for (const std::size_t count : {1u, 100u, 3000u, 40'000u}) {
        std::vector<float> x(count);
        for (std::size_t i = 0; i < count; ++i) x[i] = value(comm.rank(), i);
        ddpp::all_reduce(comm, x, ddpp::sum, ddpp::algorithms::reproducible{});
        const std::size_t stride = count > 1000 ? 11 : 1;  // enough of what takes long
        for (std::size_t i = 0; i < count; i += stride) {
          std::vector<float> all;
          for (int r = 0; r < comm.size(); ++r) all.push_back(value(r, i));
          EXPECT(x[i] == tree_sum(all));
        }
      }
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "min and max keep NaN, and order signed zeros and infinities") {
  for (const int n : {2, 3, 4, 7}) {
    on_ranks(n, [](auto& comm) {
      const int size = comm.size();
      with_each_algorithm([&](auto algorithm) {
        // Element i is special on rank i, one row for each special value.
        constexpr float inf = std::numeric_limits<float>::infinity();
        for (const float special : {std::numeric_limits<float>::quiet_NaN(), inf, -inf, -0.0f, 0.0f}) {
          std::vector<float> least(static_cast<std::size_t>(size), special == 0 ? -special : 1.0f);
          least[static_cast<std::size_t>(comm.rank())] = special;
          auto most = least;
          ddpp::all_reduce(comm, least, ddpp::min, algorithm);
          ddpp::all_reduce(comm, most, ddpp::max, algorithm);
          for (std::size_t i = 0; i < least.size(); ++i) {
            if (std::isnan(special)) {
              EXPECT(std::isnan(least[i]) && std::isnan(most[i]));
            } else if (special == 0) {
              EXPECT(least[i] == 0 && std::signbit(least[i]) && most[i] == 0 && !std::signbit(most[i]));
            } else {
              EXPECT(least[i] == std::min(special, 1.0f) && most[i] == std::max(special, 1.0f));
            }
          }
          expect_same_bits(comm, least);
        }
      });
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "NaN on each rank in turn, among numbers, infinities and zeros, in each floating-point type") {
  on_ranks(4, [](auto& comm) {
    const auto check = [&]<class T>(T) {
      constexpr float inf = std::numeric_limits<float>::infinity();
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const auto result = [&](float mine, auto op) {
        std::vector<T> x(19, T(mine));
        ddpp::all_reduce(comm, x, op);
        expect_same_bits(comm, x);
        return static_cast<float>(x[18]);
      };
      const auto rank = static_cast<std::size_t>(comm.rank());
      for (std::size_t with_nan = 0; with_nan < 4; ++with_nan) {
        for (const std::vector<float>& row :
             {std::vector<float>{1, 2, 3, 4}, {-inf, inf, inf, -inf}, {0.0f, -0.0f, -0.0f, 0.0f}}) {
          const float mine = rank == with_nan ? nan : row[rank];
          EXPECT(std::isnan(result(mine, ddpp::min)) && std::isnan(result(mine, ddpp::max)));
          EXPECT(std::isnan(result(mine, ddpp::sum)));
        }
        const float infinite = rank == with_nan ? inf : 1.0f;
        EXPECT(result(infinite, ddpp::max) == inf && result(infinite, ddpp::min) == 1 &&
               result(infinite, ddpp::sum) == inf);
        EXPECT(result(-infinite, ddpp::min) == -inf && result(-infinite, ddpp::max) == -1);
        const float zero = rank == with_nan ? -0.0f : 0.0f;
        EXPECT(std::signbit(result(zero, ddpp::min)) && !std::signbit(result(zero, ddpp::max)));
        EXPECT(!std::signbit(result(-zero, ddpp::max)) && std::signbit(result(-zero, ddpp::min)));
      }
      EXPECT(std::isnan(result(rank == 0 ? inf : -inf, ddpp::sum)));
    };
    check(ddpp::half());
    check(ddpp::bfloat16());
    check(float());
    check(double());
  });
}

CASE_WHERE(ddpp::runs_algorithms<transport>,
           "sums of short floats are those in float, in the order of ranks, rounded once") {
  for (int n = 2; n <= most_ranks; ++n) {
    on_ranks(n, [](auto& comm) {
      const auto check = [&]<class T>(T) {
        const auto ranks = static_cast<std::size_t>(comm.size()),
                   rank = static_cast<std::size_t>(comm.rank());
        const std::size_t piece = 333, count = ranks * piece;
        std::vector<float> totals(count);
        std::vector<T> mine;
        for (std::size_t r = 0; r < ranks; ++r) {
          std::mt19937 random(static_cast<unsigned>(r));
          std::normal_distribution<float> normal;
          std::vector<T> theirs(count);
          for (std::size_t i = 0; i < count; ++i) {
            theirs[i] = T(normal(random));
            totals[i] += static_cast<float>(theirs[i]);
          }
          if (r == rank) mine = theirs;
        }
        const auto is_right = [&](std::span<const T> found, std::size_t from, float divisor) {
          for (std::size_t i = 0; i < found.size(); ++i) {
            if (found[i].bits != T(totals[from + i] / divisor).bits) return false;
          }
          return true;
        };
        auto everywhere = mine, average = mine;
        ddpp::all_reduce(comm, everywhere);
        ddpp::all_reduce(comm, average, ddpp::avg);
        EXPECT(is_right(everywhere, 0, 1) && is_right(average, 0, static_cast<float>(ranks)));
        std::vector<T> at_root(count), own(piece);
        ddpp::reduce(comm, mine, at_root, ddpp::sum, comm.size() - 1);
        EXPECT(rank != ranks - 1 || is_right(at_root, 0, 1));
        ddpp::reduce_scatter(comm, mine, own);
        EXPECT(is_right(own, rank * piece, 1));
      };
      check(ddpp::half());
      check(ddpp::bfloat16());
      check(ddpp::float8_e4m3());
    });
  }
}

CASE_WHERE(ddpp::runs_algorithms<transport>, "sums of 16-bit floats lose nothing hop by hop") {
  on_ranks(8, [](auto& comm) {
    // 1 on rank 0 and 2^-9 elsewhere: each alone would be rounded away.
    std::vector<ddpp::bfloat16> x(1000, ddpp::bfloat16(comm.rank() == 0 ? 1.0f : 0x1p-9f));
    auto reduced = x;
    ddpp::all_reduce(comm, x);
    const float once = static_cast<float>(ddpp::bfloat16(1.0f + 7 * 0x1p-9f));
    EXPECT(once > 1.0f);
    for (const auto& v : x) EXPECT(static_cast<float>(v) == once);
    ddpp::reduce(comm, reduced, ddpp::sum, 3);
    EXPECT(comm.rank() != 3 || static_cast<float>(reduced[999]) == once);
    std::vector<ddpp::bfloat16> all(8 * 10, ddpp::bfloat16(comm.rank() == 0 ? 1.0f : 0x1p-9f)), piece(10);
    ddpp::reduce_scatter(comm, all, piece);
    for (const auto& v : piece) EXPECT(static_cast<float>(v) == once);
  });
  on_ranks(10, [](auto& comm) {
    std::vector<ddpp::half> x(77, ddpp::half(65504.0f / 2));  // half the largest: the sum would be infinite
    ddpp::all_reduce(comm, x, ddpp::avg);
    for (const auto& v : x) EXPECT(static_cast<float>(v) == 65504.0f / 2);
    std::vector<ddpp::half> root(77, ddpp::half(65504.0f / 2)), all(770, ddpp::half(-65504.0f / 2)),
        piece(77);
    ddpp::reduce(comm, root, ddpp::avg);
    ddpp::reduce_scatter(comm, all, piece, ddpp::avg);
    EXPECT(static_cast<float>(root[76]) == 65504.0f / 2 && static_cast<float>(piece[76]) == -65504.0f / 2);
    const ddpp::bfloat16 large(0x1.fp126f);  // ten of them are more than a float holds
    std::vector<ddpp::bfloat16> y(77, large);
    ddpp::all_reduce(comm, y, ddpp::premul_sum(0.125f));
    EXPECT(static_cast<float>(y[0]) == 0x1.36p127f);
  });
}

TEST_CASE("averages of integers round toward zero") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x = {comm.rank() == 0 ? 3 : 4, comm.rank() == 0 ? -3 : -4};
    ddpp::all_reduce(comm, x, ddpp::avg);
    EXPECT(x[0] == 3 && x[1] == -3);
    std::vector<std::int8_t> small(3, 50);
    ddpp::all_reduce(comm, small, ddpp::avg);
    EXPECT(small[0] == 50);
    std::vector<int> y = {comm.rank() == 0 ? 3 : 4, comm.rank() == 0 ? -3 : -4}, at_root(2), piece(1);
    ddpp::reduce(comm, y, at_root, ddpp::avg, 1);
    EXPECT(comm.rank() != 1 || (at_root[0] == 3 && at_root[1] == -3));
    ddpp::reduce_scatter(comm, y, piece, ddpp::avg);
    EXPECT(piece[0] == (comm.rank() == 0 ? 3 : -3));
  });
  on_ranks(3, [](auto& comm) {
    std::vector<std::int64_t> x = {-2 * comm.rank(), -5, 1 - 2 * comm.rank()};  // sums: -6, -15, -3
    ddpp::all_reduce(comm, x, ddpp::avg);
    EXPECT((x == std::vector<std::int64_t>{-2, -5, -1}));
  });
}

TEST_CASE("pre-multiplied sums take each rank's own factor and keep the input") {
  on_ranks(3, [](auto& comm) {
    const std::vector<double> in(5, 1.0);
    std::vector<double> out(5);
    ddpp::all_reduce(comm, in, out, ddpp::premul_sum(0.5 * (comm.rank() + 1)));
    EXPECT(out[4] == 3.0 && in[4] == 1.0);
  });
}

TEST_CASE("integers wrap around when multiplied as when added") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x(3, std::numeric_limits<int>::max());
    ddpp::all_reduce(comm, x, ddpp::premul_sum(2));
    EXPECT(x[0] == -4);
    if constexpr (reduces<std::uint16_t, ddpp::sum_t>) {
      std::vector<std::uint16_t> y(3, 0xffff);
      ddpp::all_reduce(comm, y, ddpp::premul_sum(0xffff));
      EXPECT(y[0] == 2);
    }
  });
}

TEST_CASE("elements at any address") {
  on_ranks(3, [](auto& comm) {
    const auto shifted = [&]<class T>(T) {
      std::vector<T> storage(1030, T(1.0f));
      for (std::size_t shift = 0; shift < 9; ++shift) {
        const auto part = std::span(storage).subspan(shift, 1009);
        std::fill(storage.begin(), storage.end(), T(1.0f));
        ddpp::all_reduce(comm, part);
        for (const T& x : part) EXPECT(static_cast<float>(x) == 3.0f);
        EXPECT(shift == 0 || static_cast<float>(storage[shift - 1]) == 1.0f);
        EXPECT(static_cast<float>(storage[shift + 1009]) == 1.0f);
      }
    };
    shifted(std::int8_t{});
    if constexpr (reduces<std::int16_t, ddpp::sum_t>) shifted(std::int16_t{});
    shifted(ddpp::half{});
    shifted(float{});
    shifted(double{});
  });
}
