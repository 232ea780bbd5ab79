// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/threads.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/metrics.hpp>
#include <ddpp/sampler.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <doctest/doctest.h>
#include <limits>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"
#include "oracles.hpp"

namespace {

bool near(const std::vector<double>& a, const std::vector<double>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = std::abs(a[i] - b[i]) < 1e-12;
  return same;
}

/// Shares out samples over ranks, the last of which may have none.
bool is_mine(std::size_t sample, int rank, int ranks) { return int(sample % 3) % ranks == rank; }

}  // namespace

TEST_CASE("means and accuracy over all ranks, some of which have nothing") {
  for (const int ranks : {1, 2, 3, 5}) {
    ddpp::launch<ddpp::threads>(ranks, [&](auto& comm) {
      ddpp::metrics::mean mean;
      ddpp::metrics::mean_absolute_error mae;
      ddpp::metrics::mean_squared_error mse;
      ddpp::metrics::accuracy accuracy;
      EXPECT(std::isnan(mean.compute(comm)) && std::isnan(accuracy.compute(comm)));
      for (int i = 0; i < 12; ++i) {
        if (ranks > 1 && i % (ranks - 1) != comm.rank()) continue;  // the last rank has none
        mean.update(i, i % 2);
        mae.update(i, 6);
        mse.update(i, 6);
        accuracy.update(i % 4, i % 3);
        accuracy.update(std::size_t(1), 1);
      }
      EXPECT(mean.compute(comm) == 6 && mae.compute(comm) == 3);
      EXPECT(std::abs(mse.compute(comm) - 146.0 / 12) < 1e-12);
      EXPECT(std::abs(accuracy.compute(comm) - 15.0 / 24) < 1e-12);
      mean.reset();
      EXPECT(std::isnan(mean.compute(comm)));
    });
  }
}

TEST_CASE("errors and accuracy are scikit-learn's") {
  for (const auto& expected : oracles::errors) {
    ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
      ddpp::metrics::mean_absolute_error absolute;
      ddpp::metrics::mean_squared_error squared;
      ddpp::metrics::accuracy accuracy;
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        if (!is_mine(i, comm.rank(), 3)) continue;
        absolute.update(expected.values[i], expected.truths[i]);
        squared.update(expected.values[i], expected.truths[i]);
        accuracy.update(expected.predicted[i], expected.labels[i]);
      }
      EXPECT(std::abs(absolute.compute(comm) - expected.absolute) < 1e-12);
      EXPECT(std::abs(squared.compute(comm) - expected.squared) < 1e-12);
      EXPECT(std::abs(accuracy.compute(comm) - expected.accuracy) < 1e-12);
    });
  }
  std::printf("%zu sets of samples as by %s\n",
              oracles::errors.size() + oracles::precisions.size() + oracles::areas.size() +
                  oracles::confusions.size(),
              oracles::made_by);
}

TEST_CASE("an evaluation counts each sample once, whatever the number of ranks") {
  for (const auto& [samples, ranks] : {std::pair(10, 4), std::pair(4, 9), std::pair(0, 3)}) {
    ddpp::launch<ddpp::threads>(ranks, [samples = samples](auto& comm) {
      ddpp::distributed_sampler sampler(comm, std::size_t(samples),
                                        {.shuffle = false, .padding = ddpp::sampler_padding::none});
      ddpp::metrics::mean mean;
      ddpp::metrics::confusion_matrix seen(10);
      for (const std::size_t i : sampler) mean.update(double(i)), seen.update(i, i);
      const double average = mean.compute(comm);
      EXPECT(samples == 0 ? std::isnan(average) : average == double(samples - 1) / 2);
      const auto counts = seen.compute(comm);
      for (std::size_t i = 0; i < 10; ++i) EXPECT(counts(i, i) == (i < std::size_t(samples) ? 1 : 0));
    });
  }
}

TEST_CASE("average precision and its curve are scikit-learn's") {
  for (const auto& expected : oracles::precisions) {
    for (const int ranks : {1, 3}) {
      ddpp::launch<ddpp::threads>(ranks, [&](auto& comm) {
        ddpp::metrics::average_precision precision;
        for (std::size_t i = 0; i < expected.scores.size(); ++i) {
          if (is_mine(i, comm.rank(), ranks)) precision.update(expected.scores[i], expected.labels[i] == 1);
        }
        EXPECT(std::abs(precision.compute(comm) - expected.average) < 1e-12);
        const auto curve = precision.curve(comm);
        EXPECT(near(curve.precision, expected.precision) && near(curve.recall, expected.recall));
        EXPECT(near(curve.threshold, expected.threshold));
      });
    }
  }
}

TEST_CASE("average precision without positives, without samples, and of NaN") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    ddpp::metrics::average_precision precision;
    EXPECT(std::isnan(precision.compute(comm)));
    precision.update(0.5, false);
    EXPECT(precision.compute(comm) == 0);
    bool refused = false;
    try {
      precision.update(std::numeric_limits<double>::quiet_NaN(), true);
    } catch (const ddpp::usage_error&) {
      refused = true;
    }
    EXPECT(refused);
  });
}

TEST_CASE("the ROC curve and its area are scikit-learn's") {
  for (const auto& expected : oracles::areas) {
    for (const int ranks : {1, 4}) {
      ddpp::launch<ddpp::threads>(ranks, [&](auto& comm) {
        ddpp::metrics::roc_auc area;
        EXPECT(std::isnan(area.compute(comm)));
        for (std::size_t i = 0; i < expected.scores.size(); ++i) {
          if (is_mine(i, comm.rank(), ranks)) area.update(expected.scores[i], expected.labels[i] == 1);
        }
        EXPECT(std::abs(area.compute(comm) - expected.value) < 1e-12 && area.error_bound(comm) == 0);
        const auto curve = area.curve(comm);
        EXPECT(near(curve.false_positive_rate, expected.false_rate));
        EXPECT(near(curve.true_positive_rate, expected.true_rate));
        EXPECT(curve.threshold.size() == curve.true_positive_rate.size());
      });
    }
  }
}

TEST_CASE("histograms are as near as they say, and exact where a bin holds one score") {
  for (const auto& expected : oracles::areas) {
    ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
      for (const std::size_t bins : {1u, 2u, 10u, 1000u, 1000000u}) {
        ddpp::metrics::roc_auc area({.bins = bins}), exact_area;
        ddpp::metrics::average_precision precision({.bins = bins}), exact_precision;
        for (std::size_t i = 0; i < expected.scores.size(); ++i) {
          if (!is_mine(i, comm.rank(), 3)) continue;
          for (auto* each : {&area, &exact_area}) each->update(expected.scores[i], expected.labels[i] == 1);
          for (auto* each : {&precision, &exact_precision})
            each->update(expected.scores[i], expected.labels[i] == 1);
        }
        const double area_error = std::abs(area.compute(comm) - exact_area.compute(comm));
        EXPECT(area_error <= area.error_bound(comm) + 1e-12);
        const double precision_error = std::abs(precision.compute(comm) - exact_precision.compute(comm));
        EXPECT(precision_error <= precision.error_bound(comm) + 1e-12);
        if (bins == 1) EXPECT(std::abs(area.compute(comm) - 0.5) < 1e-12 && area.error_bound(comm) == 0.5);
        if (bins == 1000000) EXPECT(area_error < 1e-12 && precision_error < 1e-12);
      }
    });
  }
  using bad = ddpp::usage_error;
  ddpp::metrics::roc_auc percent({.bins = 10, .lowest = -100, .highest = 100});
  CHECK_NOTHROW(percent.update(-100, true));
  CHECK_NOTHROW(percent.update(100, true));
  CHECK_THROWS_AS(percent.update(100.5, true), bad);
  CHECK_THROWS_AS(percent.update(std::numeric_limits<double>::quiet_NaN(), true), bad);
  CHECK_THROWS_AS(ddpp::metrics::roc_auc({.bins = 1, .lowest = 1, .highest = 1}), bad);
}

TEST_CASE("the error bound holds where the positives of a bin have one score") {
  ddpp::launch<ddpp::threads>(1, [](auto& comm) {
    ddpp::metrics::average_precision binned({.bins = 2}), exact;
    for (auto* each : {&binned, &exact}) {
      for (int i = 0; i < 1000; ++i) each->update(0.9, false), each->update(0.1, false);
      for (int i = 0; i < 11; ++i) each->update(0.4, true);
    }
    const double error = std::abs(binned.compute(comm) - exact.compute(comm));
    EXPECT(error > 0.005 && error <= binned.error_bound(comm) + 1e-12);
  });
}

TEST_CASE("the confusion matrix is scikit-learn's") {
  for (const auto& expected : oracles::confusions) {
    ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
      ddpp::metrics::confusion_matrix matrix(expected.classes);
      for (std::size_t i = 0; i < expected.labels.size(); ++i) {
        if (is_mine(i, comm.rank(), 3)) matrix.update(expected.predicted[i], expected.labels[i]);
      }
      const auto counts = matrix.compute(comm);
      for (std::size_t i = 0; i < expected.counts.size(); ++i)
        EXPECT(counts(i / expected.classes, i % expected.classes) == expected.counts[i]);
    });
  }
  ddpp::metrics::confusion_matrix matrix(2);
  CHECK_THROWS_AS(matrix.update(2, 0), ddpp::usage_error);
  CHECK_THROWS_AS(matrix.update(0, 2), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::metrics::confusion_matrix(0), ddpp::usage_error);
  matrix.update(1, 1);
  matrix.update(1, 0);
  ddpp::launch<ddpp::threads>(1, [&](auto& comm) {
    const auto counts = matrix.compute(comm);
    EXPECT(counts.precision(1) == 0.5 && counts.recall(1) == 1 && counts.recall(0) == 0);
    EXPECT(std::isnan(counts.precision(0)));
  });
}
