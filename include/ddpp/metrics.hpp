// SPDX-License-Identifier: BSL-1.0
// Evaluation over all ranks' samples: each rank accumulates its own, `compute(comm)` gives every rank the
// value over the union of them, the same bits everywhere. It is collective, blocks, and may be called as
// often as wanted; all ranks must use the same metric. A value over no samples at all is NaN.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace ddpp {
namespace detail {

/// Collective: everyone's elements, rank 0's first.
template <class C, class T>
std::vector<T> all_gather_uneven(C& comm, const std::vector<T>& mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(ranks);
  ddpp::all_gather(comm, std::span(&count, 1), counts);
  const std::size_t longest = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  std::vector<T> padded = mine, gathered(longest * ranks), all;
  padded.resize(longest);
  ddpp::all_gather(comm, padded, gathered);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = gathered.begin() + static_cast<std::ptrdiff_t>(r * longest);
    all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[r]));
  }
  return all;
}

}  // namespace detail

namespace metrics {

/// sum(weight * value) / sum(weight), in double.
class mean {
 public:
  void update(double value, double weight = 1) {
    sum_ += weight * value;
    weight_ += weight;
  }
  void reset() { *this = {}; }

  template <class C>
  double compute(C& comm) const {
    std::array<double, 2> totals = {sum_, weight_};
    ddpp::all_reduce(comm, totals);
    return totals[0] / totals[1];
  }

 private:
  double sum_ = 0, weight_ = 0;
};

/// The mean of |prediction - target|.
class mean_absolute_error {
 public:
  void update(double prediction, double target) { errors_.update(std::abs(prediction - target)); }
  void reset() { errors_.reset(); }
  template <class C>
  double compute(C& comm) const {
    return errors_.compute(comm);
  }

 private:
  mean errors_;
};

/// The mean of (prediction - target)^2.
class mean_squared_error {
 public:
  void update(double prediction, double target) {
    errors_.update((prediction - target) * (prediction - target));
  }
  void reset() { errors_.reset(); }
  template <class C>
  double compute(C& comm) const {
    return errors_.compute(comm);
  }

 private:
  mean errors_;
};

/// The share of predictions that equal their label.
class accuracy {
 public:
  template <class P, class L>
  void update(const P& predicted, const L& label) {
    if constexpr (std::integral<P> && std::integral<L>)
      update(std::cmp_equal(predicted, label));
    else
      update(predicted == label);
  }
  void update(bool correct) {
    correct_ += correct ? 1 : 0;
    ++samples_;
  }
  void reset() { *this = {}; }

  template <class C>
  double compute(C& comm) const {
    std::array<std::uint64_t, 2> totals = {correct_, samples_};
    ddpp::all_reduce(comm, totals);
    return static_cast<double>(totals[0]) / static_cast<double>(totals[1]);
  }

 private:
  std::uint64_t correct_ = 0, samples_ = 0;
};

/// precision[k] and recall[k] of the classifier `score >= threshold[k]`, thresholds ascending, one for every
/// distinct score; then one more point with precision 1 and recall 0, which has no threshold.
struct precision_recall {
  std::vector<double> precision, recall, threshold;
};

/// The area under the precision-recall curve as a sum of steps, sum((recall[k] - recall[k + 1]) *
/// precision[k]), as scikit-learn's average_precision_score. Scores are merged over ranks, not averages. Each
/// rank holds all scores while it computes, 16 bytes each.
class average_precision {
 public:
  /// Throws `usage_error` when the score is NaN, which has no place in an order.
  void update(double score, bool positive) {
    if (std::isnan(score)) throw usage_error("average_precision: a score is NaN");
    samples_.push_back({score, positive ? 1.0 : 0.0});
  }
  void reset() { samples_.clear(); }

  /// 0 where no sample is positive.
  template <class C>
  double compute(C& comm) const {
    const precision_recall points = curve(comm);
    if (points.threshold.empty()) return std::numeric_limits<double>::quiet_NaN();
    double area = 0;
    for (std::size_t k = 0; k + 1 < points.recall.size(); ++k) {
      area += (points.recall[k] - points.recall[k + 1]) * points.precision[k];
    }
    return area;
  }

  /// Where no sample is positive, recall counts as 1 at every threshold.
  template <class C>
  precision_recall curve(C& comm) const {
    std::vector<sample> all = detail::all_gather_uneven(comm, samples_);
    std::sort(all.begin(), all.end(), [](const sample& a, const sample& b) { return a.score > b.score; });
    double positives = 0;
    for (const sample& s : all) positives += s.positive;

    precision_recall points;
    double found = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      found += all[k].positive;
      if (k + 1 < all.size() && all[k + 1].score == all[k].score) continue;  // ties stand or fall together
      points.precision.push_back(found / static_cast<double>(k + 1));
      points.recall.push_back(positives > 0 ? found / positives : 1);
      points.threshold.push_back(all[k].score);
    }
    for (auto* column : {&points.precision, &points.recall, &points.threshold}) {
      std::reverse(column->begin(), column->end());
    }
    points.precision.push_back(1);
    points.recall.push_back(0);
    return points;
  }

 private:
  struct sample {
    double score, positive;
  };
  std::vector<sample> samples_;
};

}  // namespace metrics
}  // namespace ddpp
