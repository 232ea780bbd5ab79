// SPDX-License-Identifier: BSL-1.0
// How well scores put positive samples above negative ones: the precision-recall curve, average precision,
// the ROC curve and the area under it, over the scores of all ranks merged (a mean of ranks' values is
// something else). See metrics.hpp.
//
// Exact, each rank holds all scores while it computes, 16 bytes each. With `bins` it holds and sends a
// histogram, however many samples there are: scores in one bin then count as equal, and error_bound() says
// how much that can have changed.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ddpp {
namespace detail {

/// Collective: everyone's elements, rank 0's first.
template <class C, class T>
std::vector<T> all_gather_uneven(C& comm, const std::vector<T>& mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(ranks);
  ddpp::all_gather(comm, std::span(&count, 1), counts, in_host_memory<C>);
  const std::size_t longest = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  std::vector<T> padded = mine, gathered(longest * ranks), all;
  padded.resize(longest);
  ddpp::all_gather(comm, padded, gathered, in_host_memory<C>);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = gathered.begin() + static_cast<std::ptrdiff_t>(r * longest);
    all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[r]));
  }
  return all;
}

}  // namespace detail

namespace metrics {

struct ranking_options {
  std::size_t bins = 0;  ///< 0: exact; else so many equal ones between lowest and highest
  double lowest = 0, highest = 1;
};

}  // namespace metrics

namespace detail {

/// Samples with the same score (or in the same bin), of all ranks together.
struct tied_samples {
  double score = 0;  ///< the lowest
  double positives = 0, negatives = 0;
};

class scored_samples {
 public:
  scored_samples(const char* metric, const metrics::ranking_options& options)
      : metric_(metric), options_(options), counts_(2 * options.bins) {
    if (options.bins > 0 && !(options.lowest < options.highest)) {
      throw usage_error(text(metric, ": the lowest score must be below the highest"));
    }
  }

  void update(double score, bool positive) {
    if (std::isnan(score))
      throw usage_error(text(metric_, ": a score is NaN, which has no place in an order"));
    if (options_.bins == 0) {
      samples_.push_back({score, positive ? 1.0 : 0.0});
    } else {
      ++counts_[2 * bin_of(score) + (positive ? 1 : 0)];
    }
  }

  void reset() {
    samples_.clear();
    counts_.assign(counts_.size(), 0);
  }

  bool is_exact() const noexcept { return options_.bins == 0; }

  /// Collective. The highest score first.
  template <class C>
  std::vector<tied_samples> merged(C& comm) const {
    return options_.bins == 0 ? merged_scores(comm) : merged_bins(comm);
  }

 private:
  struct sample {
    double score, positive;
  };

  std::size_t bin_of(double score) const {
    if (score < options_.lowest || score > options_.highest) {
      throw usage_error(
          text(metric_, ": a score is outside the bins, which lie between `lowest` and `highest`"));
    }
    const double place = (score - options_.lowest) / (options_.highest - options_.lowest);
    return std::min(static_cast<std::size_t>(place * static_cast<double>(options_.bins)), options_.bins - 1);
  }

  template <class C>
  std::vector<tied_samples> merged_scores(C& comm) const {
    std::vector<sample> all = all_gather_uneven(comm, samples_);
    std::sort(all.begin(), all.end(), [](const sample& a, const sample& b) { return a.score > b.score; });
    std::vector<tied_samples> ties;
    for (const sample& each : all) {
      if (ties.empty() || ties.back().score != each.score) ties.push_back({each.score});
      ties.back().positives += each.positive;
      ties.back().negatives += 1 - each.positive;
    }
    return ties;
  }

  template <class C>
  std::vector<tied_samples> merged_bins(C& comm) const {
    std::vector<std::uint64_t> total = counts_;
    ddpp::all_reduce(comm, total, sum, ddpp::detail::in_host_memory<C>);
    std::vector<tied_samples> ties;
    const double width = (options_.highest - options_.lowest) / static_cast<double>(options_.bins);
    for (std::size_t bin = options_.bins; bin-- > 0;) {
      if (total[2 * bin] + total[2 * bin + 1] == 0) continue;
      ties.push_back({options_.lowest + width * static_cast<double>(bin),
                      static_cast<double>(total[2 * bin + 1]), static_cast<double>(total[2 * bin])});
    }
    return ties;
  }

  const char* metric_;
  metrics::ranking_options options_;
  std::vector<sample> samples_;
  std::vector<std::uint64_t> counts_;  // per bin: negatives, positives
};

inline tied_samples total_of(const std::vector<tied_samples>& ties) {
  tied_samples total;
  for (const tied_samples& tie : ties) {
    total.positives += tie.positives;
    total.negatives += tie.negatives;
  }
  return total;
}

}  // namespace detail

namespace metrics {

/// precision[k] and recall[k] of the classifier `score >= threshold[k]`, thresholds ascending, one for every
/// distinct score; then one more point with precision 1 and recall 0, which has no threshold.
struct precision_recall {
  std::vector<double> precision, recall, threshold;
};

/// The area under the precision-recall curve as a sum of steps, sum((recall[k] - recall[k + 1]) *
/// precision[k]), as scikit-learn's average_precision_score.
class average_precision {
 public:
  explicit average_precision(const ranking_options& options = {}) : samples_("average_precision", options) {}

  /// Throws `usage_error` for NaN and for scores outside the bins.
  void update(double score, bool positive) { samples_.update(score, positive); }
  void reset() { samples_.reset(); }

  /// 0 where no sample is positive.
  template <class C>
  double compute(C& comm) const {
    const auto ties = samples_.merged(comm);
    if (ties.empty()) return std::numeric_limits<double>::quiet_NaN();
    const double positives = detail::total_of(ties).positives;
    double area = 0, found = 0, seen = 0;
    for (const auto& tie : ties) {
      found += tie.positives;
      seen += tie.positives + tie.negatives;
      if (positives > 0) area += tie.positives / positives * (found / seen);
    }
    return area;
  }

  /// Where no sample is positive, recall counts as 1 at every threshold.
  template <class C>
  precision_recall curve(C& comm) const {
    const auto ties = samples_.merged(comm);
    const double positives = detail::total_of(ties).positives;
    precision_recall points;
    double found = 0, seen = 0;
    for (const auto& tie : ties) {
      found += tie.positives;
      seen += tie.positives + tie.negatives;
      points.precision.push_back(found / seen);
      points.recall.push_back(positives > 0 ? found / positives : 1);
      points.threshold.push_back(tie.score);
    }
    for (auto* column : {&points.precision, &points.recall, &points.threshold})
      std::reverse(column->begin(), column->end());
    points.precision.push_back(1);
    points.recall.push_back(0);
    return points;
  }

  /// How far compute() can be from the value with the samples of each bin in their true order: they count as
  /// equal, and were the positive ones the first or the last of them, that would make this much. 0 if exact.
  template <class C>
  double error_bound(C& comm) const {
    const auto ties = samples_.merged(comm);
    const double positives = detail::total_of(ties).positives;
    if (samples_.is_exact() || positives == 0) return 0;
    double above = 0, below = 0, found = 0, seen = 0;
    for (const auto& tie : ties) {
      // At best the positives come first, all with one score; at worst last, one by one.
      const double first =
          tie.positives > 0 ? tie.positives * ((found + tie.positives) / (seen + tie.positives)) : 0;
      double last = 0;
      for (double i = 1; i <= tie.positives; ++i) last += (found + i) / (seen + tie.negatives + i);
      found += tie.positives;
      seen += tie.positives + tie.negatives;
      const double equal = tie.positives * (found / seen);
      above += (first - equal) / positives;
      below += (equal - last) / positives;
    }
    return std::max(above, below);
  }

 private:
  detail::scored_samples samples_;
};

/// The rates of the classifier `score >= threshold[k]`, thresholds descending from infinity (rates 0), one
/// for every distinct score. A rate of no samples is NaN.
struct roc {
  std::vector<double> false_positive_rate, true_positive_rate, threshold;
};

/// The area under the ROC curve: the chance that a positive sample has a higher score than a negative one,
/// equal scores counting half; as scikit-learn's roc_auc_score.
class roc_auc {
 public:
  explicit roc_auc(const ranking_options& options = {}) : samples_("roc_auc", options) {}

  /// Throws `usage_error` for NaN and for scores outside the bins.
  void update(double score, bool positive) { samples_.update(score, positive); }
  void reset() { samples_.reset(); }

  /// NaN without positive or without negative samples.
  template <class C>
  double compute(C& comm) const {
    const auto ties = samples_.merged(comm);
    const auto total = detail::total_of(ties);
    double pairs = 0, found = 0;
    for (const auto& tie : ties) {
      pairs += tie.negatives * (found + tie.positives / 2);
      found += tie.positives;
    }
    return pairs / (total.positives * total.negatives);
  }

  template <class C>
  roc curve(C& comm) const {
    const auto ties = samples_.merged(comm);
    const auto total = detail::total_of(ties);
    roc points{{0 / total.negatives}, {0 / total.positives}, {std::numeric_limits<double>::infinity()}};
    double positives = 0, negatives = 0;
    for (const auto& tie : ties) {
      points.false_positive_rate.push_back((negatives += tie.negatives) / total.negatives);
      points.true_positive_rate.push_back((positives += tie.positives) / total.positives);
      points.threshold.push_back(tie.score);
    }
    return points;
  }

  /// How far compute() can be from the exact value: half the share of pairs that are in one bin. 0 if exact.
  template <class C>
  double error_bound(C& comm) const {
    const auto ties = samples_.merged(comm);
    const auto total = detail::total_of(ties);
    if (samples_.is_exact()) return 0;
    double pairs = 0;
    for (const auto& tie : ties) pairs += tie.positives * tie.negatives / 2;
    return pairs / (total.positives * total.negatives);
  }

 private:
  detail::scored_samples samples_;
};

}  // namespace metrics
}  // namespace ddpp
