// SPDX-License-Identifier: BSL-1.0
// PowerSGD: gradients of matrices travel as products of two thin ones (Vogels, Karimireddy and Jaggi, 2019;
// PyTorch's powerSGD_hook).
//
// A matrix M of n by m, this rank's gradient plus what the approximation has kept back so far, is sent as P
// (n by r) and Q (m by r), r being small:
//
//     P = M Q, summed over ranks and orthonormalised; Q = M^T P, averaged over ranks; everyone takes P Q^T
//
// and keeps back M - P Q^T (error feedback). Q is where the next step begins (warm start), so the steps
// together are a power iteration towards the gradients' main directions. Three collectives per bucket: P, Q,
// and the gradients that are not worth compressing, as they are.
//
// A gradient that is not finite on some rank makes P not finite on all. Everyone then gets NaN for this
// matrix, as an average would give, and forgets what it kept of it: the next step begins anew. (PyTorch's
// hook keeps NaN in its memory from then on.)
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>
#include <ddpp/gradient_bucket.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <vector>

namespace ddpp::hooks {

struct power_sgd_options {
  std::size_t rank = 1;  ///< r, of the approximation
  /// Steps before it, at least one, are reduced whole: early gradients change too much.
  std::uint64_t start_step = 1000;
  bool error_feedback = true, warm_start = true;
  double min_compression = 2;  ///< a matrix is compressed only if it gets more than so many times smaller
  std::uint64_t seed = 0;      ///< of the first Q; the same on all ranks
};

class power_sgd {
 public:
  static constexpr bool takes_scaled_gradients = false;

  power_sgd() = default;
  explicit power_sgd(const power_sgd_options& options) : options_(options) {
    if (options.rank == 0) throw usage_error("power_sgd: the rank of the approximation must be at least 1");
    if (options.start_step == 0)
      throw usage_error("power_sgd: start_step counts from 1: the first step is reduced whole");
  }

  template <class C>
  void operator()(C& comm, gradient_bucket& bucket) {
    static_assert(!detail::is_on_device<C>,
                  "ddpp: power_sgd works in host memory; on a device use fp16_compress or bf16_compress");
    bucket.visit([&](auto gradients) {
      elements_ += gradients.size();
      if (step_ < options_.start_step) {
        reduce_whole(comm, gradients, bucket.scale());
      } else {
        reduce_compressed(comm, bucket, gradients);
      }
    });
    if (bucket.is_last()) ++step_;
  }

  /// How many elements were to be reduced so far, and how many have been in their place.
  std::uint64_t elements() const noexcept { return elements_; }
  std::uint64_t elements_sent() const noexcept { return sent_; }

 private:
  /// What is kept of a matrix between steps: by parameter, so that buckets may be laid out anew.
  template <class Number>
  struct memory {
    std::vector<Number> kept_back, q;
  };

  /// A gradient in its bucket, row by row.
  template <class T>
  struct matrix {
    std::size_t parameter = 0, rows = 0, columns = 0;
    std::span<T> gradient = {};
    memory<detail::arithmetic_t<T>>* kept = nullptr;
    bool is_lost = false;  // not finite: on all ranks alike, which have the same P and Q
  };

  template <class C, class T>
  void reduce_whole(C& comm, std::span<T> gradients, double scale) {
    detail::scale(gradients, scale);
    ddpp::all_reduce(comm, gradients);
    sent_ += gradients.size();
  }

  bool is_worth_it(std::size_t rows, std::size_t columns) const {
    const auto sent = static_cast<double>((rows + columns) * options_.rank);
    return sent * options_.min_compression < static_cast<double>(rows) * static_cast<double>(columns);
  }

  template <class C, class T>
  void reduce_compressed(C& comm, gradient_bucket& bucket, std::span<T> gradients) {
    using number = detail::arithmetic_t<T>;
    std::vector<matrix<T>> matrices;
    std::vector<std::span<T>> others;
    for (std::size_t k = 0; k < bucket.parameters().size(); ++k) {
      const std::size_t begin = bucket.offsets()[k], count = bucket.offsets()[k + 1] - begin;
      const std::size_t rows = bucket.rows()[k], columns = rows == 0 ? 0 : count / rows;
      if (is_worth_it(rows, columns)) {
        matrices.push_back({bucket.parameters()[k], rows, columns, gradients.subspan(begin, count)});
        recall(matrices.back());
      } else
        others.push_back(gradients.subspan(begin, count));
    }
    reduce_together(comm, others, bucket.scale());
    if (matrices.empty()) return;

    // M takes the place of what was kept back. Scaled so that the mean over ranks is what is wanted.
    const auto scale = static_cast<number>(bucket.scale() * comm.size());
    std::vector<number> p, q;
    for (const matrix<T>& each : matrices) {
      memory<number>& mine = *each.kept;
      for (std::size_t i = 0; i < each.gradient.size(); ++i)
        mine.kept_back[i] += scale * static_cast<number>(each.gradient[i]);
      append_product(p, mine.kept_back, each.rows, each.columns, mine.q);
    }
    ddpp::all_reduce(comm, p);
    sent_ += p.size();
    std::size_t p_begin = 0;
    for (matrix<T>& each : matrices) {
      const std::span<number> mine(p.data() + p_begin, each.rows * options_.rank);
      std::vector<number>& m = each.kept->kept_back;
      if (!are_finite(std::span<const number>(mine))) {
        each.is_lost = true;
        std::fill(m.begin(), m.end(), number{0});
        std::fill(mine.begin(), mine.end(), number{0});
      }
      orthonormalise(mine, each.rows);
      append_transposed_product(q, m, each.rows, each.columns, std::span<const number>(mine));
      p_begin += mine.size();
    }
    ddpp::all_reduce(comm, q, ddpp::avg);
    sent_ += q.size();
    p_begin = 0;
    std::size_t q_begin = 0;
    for (const matrix<T>& each : matrices) {
      memory<number>& mine = *each.kept;
      const std::size_t p_count = each.rows * options_.rank, q_count = each.columns * options_.rank;
      const std::span<const number> its_q = std::span<const number>(q).subspan(q_begin, q_count);
      if (each.is_lost || !are_finite(its_q)) {
        std::fill(each.gradient.begin(), each.gradient.end(), T(std::numeric_limits<float>::quiet_NaN()));
        mine = {};
      } else {
        mine.q.assign(its_q.begin(), its_q.end());
        expand(each, std::span<const number>(p).subspan(p_begin, p_count), mine);
      }
      p_begin += p_count;
      q_begin += q_count;
    }
  }

  template <class C, class T>
  void reduce_together(C& comm, const std::vector<std::span<T>>& parts, double scale) {
    std::vector<T> joined;
    for (const std::span<T> part : parts) joined.insert(joined.end(), part.begin(), part.end());
    reduce_whole(comm, std::span<T>(joined), scale);
    auto from = joined.begin();
    for (const std::span<T> part : parts) {
      std::copy_n(from, part.size(), part.begin());
      from += static_cast<std::ptrdiff_t>(part.size());
    }
  }

  /// Finds what is kept of a matrix, with an orthonormal Q.
  template <class T>
  void recall(matrix<T>& of) {
    using number = detail::arithmetic_t<T>;
    memory<number>& mine = std::get<std::map<std::size_t, memory<number>>>(memories_)[of.parameter];
    mine.kept_back.resize(of.gradient.size());
    mine.q.resize(of.columns * options_.rank);
    orthonormalise(std::span<number>(mine.q), of.columns);
    renew_zero_columns(std::span<number>(mine.q), of);
    of.kept = &mine;
  }

  /// From zero no iteration leads anywhere: the first time, and after gradients that were zero.
  template <class Number, class T>
  void renew_zero_columns(std::span<Number> q, const matrix<T>& of) const {
    std::mt19937_64 random(options_.seed * 0x9E3779B97F4A7C15u + step_ * 1'000'003 + of.parameter);
    std::normal_distribution<double> normal;
    bool renewed = false;
    for (std::size_t k = 0; k < options_.rank; ++k) {
      bool is_zero = true;
      for (std::size_t j = 0; j < of.columns; ++j) is_zero = is_zero && q[j * options_.rank + k] == 0;
      if (!is_zero) continue;
      renewed = true;
      for (std::size_t j = 0; j < of.columns; ++j)
        q[j * options_.rank + k] = static_cast<Number>(normal(random));
    }
    if (renewed) orthonormalise(q, of.columns);
  }

  template <class Number>
  static bool are_finite(std::span<const Number> values) {
    return std::ranges::all_of(values, [](Number x) { return std::isfinite(x); });
  }

  /// p += M q: row by row.
  template <class Number>
  void append_product(std::vector<Number>& p, const std::vector<Number>& m, std::size_t rows,
                      std::size_t columns, const std::vector<Number>& q) const {
    const std::size_t begin = p.size(), r = options_.rank;
    p.resize(begin + rows * r);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        for (std::size_t k = 0; k < r; ++k) p[begin + i * r + k] += m[i * columns + j] * q[j * r + k];
      }
    }
  }

  template <class Number>
  void append_transposed_product(std::vector<Number>& q, const std::vector<Number>& m, std::size_t rows,
                                 std::size_t columns, std::span<const Number> p) const {
    const std::size_t begin = q.size(), r = options_.rank;
    q.resize(begin + columns * r);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        for (std::size_t k = 0; k < r; ++k) q[begin + j * r + k] += m[i * columns + j] * p[i * r + k];
      }
    }
  }

  /// The average P Q^T goes to the gradient; what it lacks of M is kept back.
  template <class Number, class T>
  void expand(const matrix<T>& to, std::span<const Number> p, memory<Number>& mine) const {
    const std::size_t r = options_.rank;
    for (std::size_t i = 0; i < to.rows; ++i) {
      for (std::size_t j = 0; j < to.columns; ++j) {
        Number sum = 0;
        for (std::size_t k = 0; k < r; ++k) sum += p[i * r + k] * mine.q[j * r + k];
        const std::size_t at = i * to.columns + j;
        to.gradient[at] = T(sum);
        mine.kept_back[at] = options_.error_feedback ? mine.kept_back[at] - sum : Number{0};
      }
    }
    if (!options_.warm_start) mine.q.clear();
  }

  /// Gram and Schmidt, column by column of `rows` by r. A column that depends on those before it becomes
  /// zero.
  template <class Number>
  void orthonormalise(std::span<Number> columns, std::size_t rows) const {
    const std::size_t r = options_.rank;
    const auto dot = [&](std::size_t a, std::size_t b) {
      double sum = 0;
      for (std::size_t i = 0; i < rows; ++i)
        sum += static_cast<double>(columns[i * r + a]) * static_cast<double>(columns[i * r + b]);
      return sum;
    };
    for (std::size_t k = 0; k < r; ++k) {
      const double before = std::sqrt(dot(k, k));
      for (std::size_t earlier = 0; earlier < k; ++earlier) {
        const auto share = static_cast<Number>(dot(k, earlier));
        for (std::size_t i = 0; i < rows; ++i) columns[i * r + k] -= share * columns[i * r + earlier];
      }
      const double length = std::sqrt(dot(k, k));
      const bool depends = !(length > 1e-6 * before);
      const auto factor = static_cast<Number>(depends ? 0 : 1 / length);
      for (std::size_t i = 0; i < rows; ++i) columns[i * r + k] *= factor;
    }
  }

  power_sgd_options options_ = {};
  std::uint64_t step_ = 0, elements_ = 0, sent_ = 0;
  std::tuple<std::map<std::size_t, memory<float>>, std::map<std::size_t, memory<double>>> memories_;
};

}  // namespace ddpp::hooks
