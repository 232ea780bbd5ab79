// SPDX-License-Identifier: BSL-1.0
#include <ddpp/backends/threads.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/metrics.hpp>

#include <cmath>
#include <cstddef>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

#include "../support/ranks.hpp"
#include "oracles.hpp"

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

TEST_CASE("average precision and its curve are scikit-learn's") {
  for (const auto& expected : oracles::precisions) {
    for (const int ranks : {1, 3}) {
      ddpp::launch<ddpp::threads>(ranks, [&](auto& comm) {
        ddpp::metrics::average_precision precision;
        for (std::size_t i = 0; i < expected.scores.size(); ++i) {
          if (int(i % 3) % ranks == comm.rank())
            precision.update(expected.scores[i], expected.labels[i] == 1);
        }
        const auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
          bool same = a.size() == b.size();
          for (std::size_t i = 0; same && i < a.size(); ++i) same = std::abs(a[i] - b[i]) < 1e-12;
          return same;
        };
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
