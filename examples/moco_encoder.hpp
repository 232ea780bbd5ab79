// SPDX-License-Identifier: BSL-1.0
// The network of the contrastive example and its loss, in Eigen. Columns of matrices are samples.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

using matrix = Eigen::MatrixXf;

/// Fully connected layers with rectifiers between them; outputs have length 1.
class encoder {
 public:
  struct layer {
    matrix weights, weights_gradient, weights_velocity;
    Eigen::VectorXf bias, bias_gradient, bias_velocity;
  };
  std::vector<layer> layers;

  /// `sizes` of the input, of each hidden layer and of the output.
  encoder(const std::vector<Eigen::Index>& sizes, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      std::normal_distribution<float> normal(0, std::sqrt(2.0f / static_cast<float>(sizes[i])));
      const matrix zero = matrix::Zero(sizes[i + 1], sizes[i]);
      layers.push_back({zero.unaryExpr([&](float) { return normal(random); }), zero, zero, zero.col(0),
                        zero.col(0), zero.col(0)});
    }
    outputs_.resize(layers.size());
  }

  const matrix& forward(const matrix& samples) {
    const matrix* in = &samples;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      outputs_[i].noalias() = layers[i].weights * *in;
      outputs_[i].colwise() += layers[i].bias;
      if (i + 1 < layers.size()) outputs_[i] = outputs_[i].cwiseMax(0.0f);
      in = &outputs_[i];
    }
    lengths_ = in->colwise().norm().cwiseMax(1e-6f);
    units_ = in->array().rowwise() / lengths_.array();
    return units_;
  }
  /// After forward(): what the last layer but one has found in the samples.
  const matrix& features() const { return outputs_[outputs_.size() - 2]; }

  /// After forward() with the same samples: the gradients of a loss, given that of the outputs. Calls
  /// ready(i) for the weights (2 layer) and the bias (2 layer + 1), as soon as they are final.
  template <class Ready>
  void backward(const matrix& samples, const matrix& d_units, Ready ready) {
    const Eigen::RowVectorXf along = (units_.array() * d_units.array()).colwise().sum();
    matrix d = (d_units.array() - units_.array().rowwise() * along.array()).rowwise() / lengths_.array();
    for (std::size_t i = layers.size(); i-- > 0;) {
      const matrix& in = i == 0 ? samples : outputs_[i - 1];
      layers[i].bias_gradient = d.rowwise().sum();
      ready(2 * i + 1);
      layers[i].weights_gradient.noalias() = d * in.transpose();
      ready(2 * i);
      if (i == 0) break;
      matrix d_in = layers[i].weights.transpose() * d;
      d = (in.array() > 0.0f).select(d_in, 0.0f);
    }
  }

  /// Stochastic gradient descent with momentum.
  void step(float rate) {
    for (layer& l : layers) {
      l.weights_velocity = 0.9f * l.weights_velocity + l.weights_gradient;
      l.weights -= rate * l.weights_velocity;
      l.bias_velocity = 0.9f * l.bias_velocity + l.bias_gradient;
      l.bias -= rate * l.bias_velocity;
    }
  }

  /// Keeps so much of itself and takes the rest from the other.
  void follow(const encoder& leader, float keep) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].weights = keep * layers[i].weights + (1 - keep) * leader.layers[i].weights;
      layers[i].bias = keep * layers[i].bias + (1 - keep) * leader.layers[i].bias;
    }
  }

 private:
  std::vector<matrix> outputs_;
  Eigen::RowVectorXf lengths_;
  matrix units_;
};

struct contrast {
  double loss;      // mean over the queries
  matrix gradient;  // of it, by the queries
};

/// InfoNCE: each query is to be more similar to its own key than to those in the queue.
inline contrast contrast_with_queue(const matrix& queries, const matrix& keys, const matrix& queue) {
  constexpr float temperature = 0.1f;
  Eigen::RowVectorXf own = (queries.array() * keys.array()).colwise().sum() / temperature;
  matrix others = queue.transpose() * queries / temperature;
  const Eigen::RowVectorXf greatest = own.cwiseMax(others.colwise().maxCoeff());
  const Eigen::RowVectorXf own_score = own - greatest;
  own = own_score.array().exp();
  others = (others.rowwise() - greatest).array().exp();
  const Eigen::RowVectorXf total = own + others.colwise().sum();
  const double loss = (total.array().log() - own_score.array()).cast<double>().mean();
  own = own.array() / total.array() - 1.0f;
  others = others.array().rowwise() / total.array();
  matrix gradient = queue * others;
  gradient.array() += keys.array().rowwise() * own.array();
  return {loss, gradient / (temperature * static_cast<float>(queries.cols()))};
}
