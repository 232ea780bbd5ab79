// SPDX-License-Identifier: BSL-1.0
// A network with one hidden layer, its gradients, and stochastic gradient descent with momentum, in Eigen.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

/// Scalar is float or double. Columns of matrices are samples.
template <class Scalar>
class perceptron {
 public:
  using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
  using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

  struct layer {
    matrix weights, weights_gradient, weights_velocity;
    vector bias, bias_gradient, bias_velocity;

    layer(Eigen::Index inputs, Eigen::Index outputs, std::mt19937& random)
        : weights(outputs, inputs),
          weights_gradient(matrix::Zero(outputs, inputs)),
          weights_velocity(weights_gradient),
          bias(vector::Zero(outputs)),
          bias_gradient(bias),
          bias_velocity(bias) {
      std::normal_distribution<double> normal(0, std::sqrt(2.0 / static_cast<double>(inputs)));
      weights = weights.unaryExpr([&](Scalar) { return static_cast<Scalar>(normal(random)); });
    }
    void step(Scalar rate, Scalar momentum) {
      weights_velocity = momentum * weights_velocity + weights_gradient;
      weights -= rate * weights_velocity;
      bias_velocity = momentum * bias_velocity + bias_gradient;
      bias -= rate * bias_velocity;
    }
  };

  perceptron(Eigen::Index inputs, Eigen::Index units, Eigen::Index classes, std::uint32_t seed)
      : random_(seed), hidden(inputs, units, random_), output(units, classes, random_) {}

  /// Raw scores, a row per class.
  const matrix& forward(const matrix& samples) {
    activations_.noalias() = hidden.weights * samples;
    activations_ = (activations_.colwise() + hidden.bias).cwiseMax(Scalar{0});
    scores_.noalias() = output.weights * activations_;
    scores_.colwise() += output.bias;
    return scores_;
  }

  /// After forward: the sum of the samples' cross-entropies. The gradients are of its mean over the samples,
  /// zero where there are none. Calls ready(0..3) for the bias and weights of the output and then the hidden
  /// layer, each as soon as it is final.
  template <class Ready>
  double backward(const matrix& samples, const std::vector<std::uint8_t>& labels, Ready ready) {
    double loss = 0;
    for (Eigen::Index k = 0; k < scores_.cols(); ++k) {
      auto column = scores_.col(k);
      const Eigen::Index label = labels[static_cast<std::size_t>(k)];
      column.array() -= column.maxCoeff();
      loss -= static_cast<double>(column[label]);
      column = column.array().exp();
      const Scalar total = column.sum();
      loss += std::log(static_cast<double>(total));
      column /= total;
      column[label] -= Scalar{1};
    }
    if (scores_.cols() > 0) scores_ /= static_cast<Scalar>(scores_.cols());
    output.bias_gradient = scores_.rowwise().sum();
    ready(0);
    output.weights_gradient.noalias() = scores_ * activations_.transpose();
    ready(1);
    errors_.noalias() = output.weights.transpose() * scores_;
    errors_ = (activations_.array() > Scalar{0}).select(errors_, Scalar{0});
    hidden.bias_gradient = errors_.rowwise().sum();
    ready(2);
    hidden.weights_gradient.noalias() = errors_ * samples.transpose();
    ready(3);
    return loss;
  }

  void step(Scalar rate, Scalar momentum) {
    hidden.step(rate, momentum);
    output.step(rate, momentum);
  }

 private:
  std::mt19937 random_;
  matrix activations_, scores_, errors_;

 public:
  layer hidden, output;
};
