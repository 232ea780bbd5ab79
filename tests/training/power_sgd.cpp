// SPDX-License-Identifier: BSL-1.0
// PowerSGD: what it sends, what arrives, and that nothing is lost in the long run.
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/all_gather.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/hooks/power_sgd.hpp>
#include <ddpp/launch.hpp>

#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <doctest/doctest.h>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "../support/ranks.hpp"

namespace {

using ddpp::hooks::power_sgd;
using ddpp::hooks::power_sgd_options;

constexpr std::size_t rows = 40, columns = 30;

/// A matrix and a vector.
template <class T>
struct model {
  std::vector<T> weights = std::vector<T>(rows * columns), weights_gradient = weights;
  std::vector<T> bias = std::vector<T>(rows), bias_gradient = bias;

  std::vector<ddpp::parameter> list() {
    return {ddpp::parameter("weights", weights, weights_gradient).as_matrix(rows),
            ddpp::parameter("bias", bias, bias_gradient)};
  }
  void fill(const std::function<double(std::size_t, std::size_t)>& of) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) weights_gradient[i * columns + j] = T(float(of(i, j)));
      bias_gradient[i] = T(float(of(i, 0)));
    }
  }
  /// The largest difference to `of`.
  double distance(const std::function<double(std::size_t, std::size_t)>& of) const {
    double most = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        const double error = std::abs(double(weights_gradient[i * columns + j]) - of(i, j));
        if (!(error <= most)) most = std::isnan(error) ? HUGE_VAL : error;
      }
    }
    return most;
  }
};

template <class Ddp>
void step(Ddp& ddp, const ddpp::prepare_options& how = {}) {
  ddp.prepare(how);
  ddp.mark_ready(1);
  ddp.mark_ready(0);
  ddp.wait();
}

double product(std::size_t i, std::size_t j) { return std::sin(double(i)) * std::cos(double(j) / 3); }
double anything(std::size_t i, std::size_t j) {
  return std::sin(double(i * i + 3 * j)) + std::cos(double(i * j));
}

}  // namespace

TEST_CASE("a matrix of rank one arrives whole, vectors always do, and little is sent") {
  ddpp::launch<ddpp::threads>(3, [](auto& comm) {
    model<double> m;
    ddpp::distributed_data_parallel ddp(comm, m.list(), {}, power_sgd({.start_step = 1}));
    for (int s = 0; s < 4; ++s) {
      const auto before = ddp.hook().elements_sent();
      m.fill([&](std::size_t i, std::size_t j) { return product(i, j) * (comm.rank() + s); });
      step(ddp);
      EXPECT(m.distance([&](std::size_t i, std::size_t j) { return product(i, j) * (1 + s); }) < 1e-5);
      EXPECT(std::abs(m.bias_gradient[3] - product(3, 0) * (1 + s)) < 1e-6);
      EXPECT(ddp.hook().elements_sent() - before == (s == 0 ? rows * columns + rows : 2 * rows + columns));
    }
    EXPECT(ddp.hook().elements() == 4 * (rows * columns + rows));
  });
}

TEST_CASE("before start_step all is exact") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    model<double> m;
    ddpp::distributed_data_parallel ddp(comm, m.list(), {}, power_sgd({.start_step = 3}));
    for (int s = 0; s < 4; ++s) {
      m.fill([&](std::size_t i, std::size_t j) { return anything(i, j) * (2 * comm.rank()); });
      step(ddp);
      const double error = m.distance([&](std::size_t i, std::size_t j) { return anything(i, j); });
      EXPECT(s < 3 ? error < 1e-6 : error > 0.01);
    }
  });
}

TEST_CASE("with error feedback the steps together bring all of every rank's gradient; without, they do not") {
  for (const bool feedback : {true, false}) {
    ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
      model<double> m;
      ddpp::distributed_data_parallel ddp(
          comm, m.list(), {}, power_sgd({.rank = 2, .start_step = 1, .error_feedback = feedback}));
      std::vector<double> total(rows * columns);
      constexpr int steps = 300;
      for (int s = 0; s < steps; ++s) {
        m.fill([&](std::size_t i, std::size_t j) { return anything(i + std::size_t(comm.rank()), j); });
        step(ddp);
        for (std::size_t k = 0; k < total.size(); ++k) total[k] += m.weights_gradient[k];
      }
      double worst = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
          const double mean = (anything(i, j) + anything(i + 1, j) + anything(i + 2, j)) / 3;
          worst = std::max(worst, std::abs(total[i * columns + j] / steps - mean));
        }
      }
      EXPECT(feedback ? worst < 0.15 : worst > 0.3);
    });
  }
}

TEST_CASE("all ranks hold the same bits, weighted too, in each type and behind a compressor") {
  const auto check = []<class T, class Hook>(std::type_identity<T>, Hook hook, double tolerance) {
    ddpp::launch<ddpp::threads>(4, [&](auto& comm) {
      model<T> m;
      ddpp::distributed_data_parallel ddp(comm, m.list(), {}, hook);
      for (int s = 0; s < 3; ++s) {
        m.fill([&](std::size_t i, std::size_t j) { return product(i, j) * (comm.rank() + 1); });
        step(ddp, {.weight = double(comm.rank() + 1)});
        EXPECT(m.distance([](std::size_t i, std::size_t j) { return product(i, j) * 3; }) < tolerance);
        std::vector<T> all(4 * m.weights_gradient.size());
        ddpp::all_gather(comm, m.weights_gradient, all);
        for (std::size_t k = 0; k < all.size(); ++k)
          EXPECT(float(all[k]) == float(m.weights_gradient[k % m.weights_gradient.size()]));
      }
    });
  };
  const power_sgd hook({.start_step = 1});
  check(std::type_identity<double>{}, hook, 1e-5);
  check(std::type_identity<float>{}, hook, 1e-5);
  check(std::type_identity<ddpp::half>{}, hook, 1e-2);
  check(std::type_identity<ddpp::bfloat16>{}, hook, 1e-1);
  ddpp::hooks::fp16_compress<power_sgd> composed;
  composed.inner = hook;
  check(std::type_identity<float>{}, composed, 1e-2);
}

TEST_CASE("zeros, ranks that have finished, and Eigen's matrices") {
  ddpp::launch<ddpp::threads>(3, [](auto& comm) {
    Eigen::MatrixXf weights = Eigen::MatrixXf::Zero(50, 20), gradient = weights;
    ddpp::distributed_data_parallel ddp(comm, {ddpp::parameter("weights", weights, gradient)}, {},
                                        power_sgd({.rank = 3, .start_step = 1}));
    const auto run = [&](float value) {
      ddp.prepare();
      gradient = value * Eigen::VectorXf::LinSpaced(50, 0, 1) * Eigen::RowVectorXf::LinSpaced(20, 1, 2);
      ddp.mark_ready(0);
      ddp.wait();
    };
    for (int s = 0; s < 3; ++s) run(0);
    EXPECT(gradient.isZero(0));
    ddp.join([&] {
      for (int s = 0; s <= comm.rank(); ++s) {
        run(3);
        EXPECT(gradient.allFinite());
        EXPECT(std::abs(gradient(49, 19) - 2.0f * float(3 - s)) < 1e-3f);
      }
    });
    EXPECT(ddp.hook().elements_sent() < ddp.hook().elements());
  });
}

TEST_CASE("a gradient that is not finite on one rank is seen by all, and forgotten by all") {
  const auto check = []<class T>(std::type_identity<T>, const power_sgd_options& options) {
    ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
      model<T> m;
      ddpp::distributed_data_parallel ddp(comm, m.list(), {}, power_sgd(options));
      const auto run = [&](double spoilt) {
        m.fill([&](std::size_t i, std::size_t j) { return product(i, j) * (comm.rank() + 1); });
        if (comm.rank() == 1 && spoilt != 0) m.weights_gradient[5 * columns + 7] = T(float(spoilt));
        step(ddp);
      };
      const auto error = [&] {
        return m.distance([](std::size_t i, std::size_t j) { return product(i, j) * 2; });
      };
      run(0), EXPECT(error() < 2e-2);
      for (const double spoilt : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        run(spoilt);
        for (const T x : m.weights_gradient) EXPECT(std::isnan(float(x)));  // a loss scaler skips this step
        EXPECT(std::abs(double(m.bias_gradient[3]) - product(3, 0) * 2) < 2e-2);
        for (int s = 0; s < 3; ++s) run(0), EXPECT(error() < 2e-2);
      }
    });
  };
  check(std::type_identity<float>{}, {.start_step = 1});
  check(std::type_identity<double>{}, {.rank = 3, .start_step = 1, .warm_start = false});
  check(std::type_identity<ddpp::half>{}, {.rank = 2, .start_step = 1, .error_feedback = false});
}

TEST_CASE("what PowerSGD and as_matrix refuse") {
  CHECK_THROWS_AS(power_sgd({.rank = 0}), ddpp::usage_error);
  CHECK_THROWS_AS(power_sgd({.start_step = 0}), ddpp::usage_error);
  std::vector<float> v(10), g(10);
  CHECK_THROWS_AS(ddpp::parameter("v", v, g).as_matrix(3), ddpp::usage_error);
  CHECK_THROWS_AS(ddpp::parameter("v", v, g).as_matrix(0), ddpp::usage_error);
  CHECK(ddpp::parameter("v", v, g).as_matrix(5).rows() == 5);
}
