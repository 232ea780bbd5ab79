// SPDX-License-Identifier: BSL-1.0
// The network of perceptron.hpp on a CUDA device: the same weights for the same seed, the same layout, the
// same sums. Everything is put on a stream; nothing waits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <random>
#include <vector>

#include "cuda_kernels.hpp"

/// Scalar is float or double. Matrices lie column by column; columns are samples.
template <class Scalar>
struct cuda_layer {
  std::size_t inputs, outputs;
  device_array<Scalar> weights, weights_gradient, weights_velocity;
  device_array<Scalar> bias, bias_gradient, bias_velocity;

  cuda_layer(std::size_t from, std::size_t to, std::mt19937& random)
      : inputs(from),
        outputs(to),
        weights(random_weights(from, to, random)),
        weights_gradient(from * to),
        weights_velocity(from * to),
        bias(to),
        bias_gradient(to),
        bias_velocity(to) {}

  static std::vector<Scalar> random_weights(std::size_t from, std::size_t to, std::mt19937& random) {
    std::normal_distribution<double> normal(0, std::sqrt(2.0 / static_cast<double>(from)));
    std::vector<Scalar> values(from * to);
    for (Scalar& each : values) each = static_cast<Scalar>(normal(random));
    return values;
  }

  /// out = weights * in + bias, for `count` samples; where `rectified`, what is below zero becomes zero.
  void forward(cudaStream_t stream, const Scalar* in, Scalar* out, std::size_t count, bool rectified) const {
    const Scalar *const w = weights.data(), *const b = bias.data();
    const std::size_t rows = outputs, columns = inputs;
    for_each_index(stream, rows * count, [=] ON_DEVICE(std::size_t at) {
      const std::size_t row = at % rows, sample = at / rows;
      Scalar sum = b[row];
      for (std::size_t j = 0; j < columns; ++j) sum += w[row + j * rows] * in[j + sample * columns];
      out[at] = rectified && sum < Scalar(0) ? Scalar(0) : sum;
    });
  }

  /// From the derivatives by the layer's output. The two are of their own, as each is final by itself.
  void differentiate_bias(cudaStream_t stream, const Scalar* errors, std::size_t count) const {
    Scalar* const gradient = bias_gradient.data();
    const std::size_t rows = outputs;
    for_each_index(stream, rows, [=] ON_DEVICE(std::size_t row) {
      Scalar sum = 0;
      for (std::size_t k = 0; k < count; ++k) sum += errors[row + k * rows];
      gradient[row] = sum;
    });
  }
  void differentiate_weights(cudaStream_t stream, const Scalar* errors, const Scalar* in,
                             std::size_t count) const {
    Scalar* const gradient = weights_gradient.data();
    const std::size_t rows = outputs, columns = inputs;
    for_each_index(stream, rows * columns, [=] ON_DEVICE(std::size_t at) {
      const std::size_t row = at % rows, column = at / rows;
      Scalar sum = 0;
      for (std::size_t k = 0; k < count; ++k) sum += errors[row + k * rows] * in[column + k * columns];
      gradient[at] = sum;
    });
  }

  /// The derivatives by the layer's input, which was rectified.
  void differentiate_input(cudaStream_t stream, const Scalar* errors, const Scalar* in, Scalar* in_errors,
                           std::size_t count) const {
    const Scalar* const w = weights.data();
    const std::size_t rows = outputs, columns = inputs;
    for_each_index(stream, columns * count, [=] ON_DEVICE(std::size_t at) {
      const std::size_t column = at % columns, sample = at / columns;
      Scalar sum = 0;
      for (std::size_t row = 0; row < rows; ++row)
        sum += w[row + column * rows] * errors[row + sample * rows];
      in_errors[at] = in[at] > Scalar(0) ? sum : Scalar(0);
    });
  }

  void step(cudaStream_t stream, Scalar rate, Scalar momentum) const {
    descend(stream, weights, weights_gradient, weights_velocity, rate, momentum);
    descend(stream, bias, bias_gradient, bias_velocity, rate, momentum);
  }
  static void descend(cudaStream_t stream, const device_array<Scalar>& values,
                      const device_array<Scalar>& gradients, const device_array<Scalar>& velocities,
                      Scalar rate, Scalar momentum) {
    Scalar *const value = values.data(), *const velocity = velocities.data();
    const Scalar* const gradient = gradients.data();
    for_each_index(stream, values.size(), [=] ON_DEVICE(std::size_t i) {
      velocity[i] = momentum * velocity[i] + gradient[i];
      value[i] -= rate * velocity[i];
    });
  }
};

/// For at most `most` samples at a time.
template <class Scalar>
class cuda_perceptron {
 public:
  cuda_perceptron(std::size_t inputs, std::size_t units, std::size_t classes, std::size_t most,
                  std::uint32_t seed)
      : random_(seed),
        hidden(inputs, units, random_),
        output(units, classes, random_),
        activations_(units * most),
        activation_errors_(units * most),
        scores_(classes * most),
        results_(most) {}

  void forward(cudaStream_t stream, const Scalar* samples, std::size_t count) const {
    hidden.forward(stream, samples, activations_.data(), count, true);
    output.forward(stream, activations_.data(), scores_.data(), count, false);
  }

  /// After forward: adds the samples' cross-entropies to *loss, which is device memory. The gradients are of
  /// their sum times `factor`. Calls ready(0..3) for the bias and weights of the output and then the hidden
  /// layer, each as soon as what makes it final is on the stream.
  template <class Ready>
  void backward(cudaStream_t stream, const Scalar* samples, const std::uint8_t* labels, std::size_t count,
                Scalar factor, double* loss, Ready ready) const {
    differentiate_scores(stream, labels, count, factor);
    add_results(stream, count, loss);
    output.differentiate_bias(stream, scores_.data(), count);
    ready(0);
    output.differentiate_weights(stream, scores_.data(), activations_.data(), count);
    ready(1);
    output.differentiate_input(stream, scores_.data(), activations_.data(), activation_errors_.data(), count);
    hidden.differentiate_bias(stream, activation_errors_.data(), count);
    ready(2);
    hidden.differentiate_weights(stream, activation_errors_.data(), samples, count);
    ready(3);
  }

  /// After forward: adds to *correct, which is device memory, the number of samples with their label on top.
  void count_correct(cudaStream_t stream, const std::uint8_t* labels, std::size_t count,
                     double* correct) const {
    const Scalar* const all = scores_.data();
    double* const results = results_.data();
    const std::size_t classes = output.outputs;
    for_each_index(stream, count, [=] ON_DEVICE(std::size_t k) {
      const Scalar* const scores = all + k * classes;
      std::size_t best = 0;
      for (std::size_t c = 1; c < classes; ++c) {
        if (scores[c] > scores[best]) best = c;
      }
      results[k] = best == labels[k] ? 1 : 0;
    });
    add_results(stream, count, correct);
  }

  void step(cudaStream_t stream, Scalar rate, Scalar momentum) const {
    hidden.step(stream, rate, momentum);
    output.step(stream, rate, momentum);
  }

  /// Scores become derivatives of the cross-entropies, which become the results.
  void differentiate_scores(cudaStream_t stream, const std::uint8_t* labels, std::size_t count,
                            Scalar factor) const {
    Scalar* const all = scores_.data();
    double* const results = results_.data();
    const std::size_t classes = output.outputs;
    for_each_index(stream, count, [=] ON_DEVICE(std::size_t k) {
      Scalar* const scores = all + k * classes;
      Scalar greatest = scores[0], total = 0;
      for (std::size_t c = 1; c < classes; ++c) greatest = scores[c] > greatest ? scores[c] : greatest;
      const double of_label = static_cast<double>(scores[labels[k]] - greatest);
      for (std::size_t c = 0; c < classes; ++c) {
        scores[c] = std::exp(scores[c] - greatest);
        total += scores[c];
      }
      results[k] = std::log(static_cast<double>(total)) - of_label;
      for (std::size_t c = 0; c < classes; ++c)
        scores[c] = (scores[c] / total - (c == labels[k] ? Scalar(1) : Scalar(0))) * factor;
    });
  }

  /// In order, so that a run gives the same digits as the one before.
  void add_results(cudaStream_t stream, std::size_t count, double* sum) const {
    const double* const results = results_.data();
    for_each_index(stream, 1, [=] ON_DEVICE(std::size_t) {
      for (std::size_t k = 0; k < count; ++k) *sum += results[k];
    });
  }

 private:
  std::mt19937 random_;

 public:
  cuda_layer<Scalar> hidden, output;

 private:
  device_array<Scalar> activations_, activation_errors_, scores_;
  device_array<double> results_;  // of each sample
};
