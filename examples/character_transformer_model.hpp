// SPDX-License-Identifier: BSL-1.0
// A language model over characters with GPT-2's architecture, small: embeddings of characters and positions,
// blocks of attention and a perceptron, each normalised before and added to what came in, and an output that
// shares its weights with the embedding of characters. As in llm.c, all parameters are one array, all
// gradients another, and a table says where each tensor begins.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "character_transformer_kernels.hpp"

struct transformer_shape {
  std::size_t vocabulary;
  std::size_t context = 32, width = 64, heads = 4, layers = 2;
};

/// Windows of a text, each `length` characters, and for each character the one that follows it.
struct character_batch {
  std::size_t windows = 0, length = 0;
  std::vector<std::uint8_t> characters = {}, following = {};
};

template <class T>
class character_transformer {
 public:
  struct tensor {
    std::string name;
    std::size_t count;
    bool is_matrix;
  };
  std::vector<tensor> tensors;
  std::vector<T> parameters, gradients;

  character_transformer(const transformer_shape& shape, std::uint32_t seed) : shape_(shape) {
    if (shape.heads == 0 || shape.width % shape.heads != 0)
      throw std::invalid_argument("the width is not a multiple of the number of heads");
    list_tensors();
    std::size_t count = 0;
    for (const tensor& t : tensors) count += t.count;
    parameters.resize(count);
    gradients.resize(count);
    connect();
    initialise(seed);
  }
  character_transformer(const character_transformer&) = delete;
  character_transformer& operator=(const character_transformer&) = delete;

  void zero_gradients() { std::fill(gradients.begin(), gradients.end(), T(0)); }

  /// The mean cross-entropy of the following characters. What backward() needs is kept.
  double forward(const character_batch& batch) {
    const std::size_t rows = batch.windows * batch.length;
    predict(batch);
    double loss = 0;
    for (std::size_t i = 0; i < rows; ++i)
      loss -= std::log(static_cast<double>(probabilities_[i * shape_.vocabulary + batch.following[i]]));
    return loss / static_cast<double>(rows);
  }

  /// After forward() with the same batch: adds to the gradients, and calls ready(i) as soon as that of tensor
  /// i is final. The embedding of characters is written to twice, as the output and as the input: it is ready
  /// after the second time, last of all.
  template <class Ready>
  void backward(const character_batch& batch, Ready ready) {
    const std::size_t rows = batch.windows * batch.length, width = shape_.width,
                      vocabulary = shape_.vocabulary;
    for (std::size_t i = 0; i < rows; ++i) probabilities_[i * vocabulary + batch.following[i]] -= 1;
    for (T& p : probabilities_) p /= static_cast<T>(rows);
    multiply_add(embedding_.gradient, {probabilities_.data(), 1, vocabulary}, output_.data(), vocabulary,
                 rows, width);
    d_output_.assign(rows * width, 0);
    multiply_add(d_output_.data(), {probabilities_.data(), vocabulary, 1}, embedding_.value, rows, vocabulary,
                 width);

    std::size_t next = tensors.size();
    const auto ready_down_to = [&](std::size_t first) {
      while (next > first) ready(--next);
    };
    d_stream_.assign(rows * width, 0);
    last_norm_.backward(d_stream_.data(), d_output_.data(), rows);
    ready_down_to(next - 2);
    for (std::size_t layer = blocks_.size(); layer-- > 0;) {
      blocks_[layer].backward(d_stream_, batch.windows, batch.length);
      ready_down_to(next - block::tensors);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t d = 0; d < width; ++d) {
        positions_.gradient[i % batch.length * width + d] += d_stream_[i * width + d];
        embedding_.gradient[batch.characters[i] * width + d] += d_stream_[i * width + d];
      }
    }
    ready_down_to(0);
  }

  /// The text goes on with `count` characters of the model's.
  std::vector<std::uint8_t> continue_text(std::vector<std::uint8_t> text, std::size_t count,
                                          std::mt19937& random) {
    for (; count > 0; --count) {
      const std::size_t length = std::min(text.size(), shape_.context);
      predict({1, length, {text.end() - static_cast<std::ptrdiff_t>(length), text.end()}, {}});
      const T* const last = &probabilities_[(length - 1) * shape_.vocabulary];
      std::discrete_distribution<int> next(last, last + shape_.vocabulary);
      text.push_back(static_cast<std::uint8_t>(next(random)));
    }
    return text;
  }

 private:
  struct block {
    static constexpr std::size_t tensors = 12;
    layer_norm<T> norm_before_attention;
    linear<T> queries_keys_values;
    causal_attention<T> attention;
    linear<T> projection;
    layer_norm<T> norm_before_perceptron;
    linear<T> up, down;
    std::vector<T> normalised = {}, heads = {}, mixed = {}, normalised_again = {}, raised = {},
                   activated = {}, added = {}, d_narrow = {}, d_wide = {};

    void forward(std::vector<T>& stream, std::size_t windows, std::size_t length) {
      const std::size_t rows = windows * length, width = projection.inputs;
      for (auto* x : {&normalised, &mixed, &normalised_again, &added}) x->resize(rows * width);
      for (auto* x : {&raised, &activated}) x->resize(rows * up.outputs);
      heads.resize(rows * queries_keys_values.outputs);
      const auto add = [&] {
        for (std::size_t i = 0; i < stream.size(); ++i) stream[i] += added[i];
      };

      norm_before_attention.forward(normalised.data(), stream.data(), rows);
      queries_keys_values.forward(heads.data(), normalised.data(), rows);
      attention.forward(mixed.data(), heads.data(), windows, length);
      projection.forward(added.data(), mixed.data(), rows);
      add();
      norm_before_perceptron.forward(normalised_again.data(), stream.data(), rows);
      up.forward(raised.data(), normalised_again.data(), rows);
      gelu<T>::forward(activated.data(), raised.data(), raised.size());
      down.forward(added.data(), activated.data(), rows);
      add();
    }

    /// The gradient of what came out becomes that of what came in: along the stream, and through both
    /// branches.
    void backward(std::vector<T>& d_stream, std::size_t windows, std::size_t length) {
      const std::size_t rows = windows * length;
      d_wide.assign(activated.size(), 0);
      down.backward(d_wide.data(), d_stream.data(), activated.data(), rows);
      gelu<T>::backward(d_wide.data(), raised.data(), raised.size());
      d_narrow.assign(d_stream.size(), 0);
      up.backward(d_narrow.data(), d_wide.data(), normalised_again.data(), rows);
      norm_before_perceptron.backward(d_stream.data(), d_narrow.data(), rows);

      d_narrow.assign(d_stream.size(), 0);
      projection.backward(d_narrow.data(), d_stream.data(), mixed.data(), rows);
      d_wide.assign(heads.size(), 0);
      attention.backward(d_wide.data(), d_narrow.data(), heads.data(), windows, length);
      d_narrow.assign(d_stream.size(), 0);
      queries_keys_values.backward(d_narrow.data(), d_wide.data(), normalised.data(), rows);
      norm_before_attention.backward(d_stream.data(), d_narrow.data(), rows);
    }
  };

  void list_tensors() {
    const std::size_t width = shape_.width;
    tensors = {{"characters", shape_.vocabulary * width, true}, {"positions", shape_.context * width, true}};
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string in = "block" + std::to_string(layer) + ".";
      const auto norm = [&](const std::string& name) {
        tensors.push_back({in + name + ".scale", width, false});
        tensors.push_back({in + name + ".shift", width, false});
      };
      const auto transform = [&](const std::string& name, std::size_t inputs, std::size_t outputs) {
        tensors.push_back({in + name + ".weights", inputs * outputs, true});
        tensors.push_back({in + name + ".bias", outputs, false});
      };
      norm("norm_before_attention");
      transform("queries_keys_values", width, 3 * width);
      transform("projection", width, width);
      norm("norm_before_perceptron");
      transform("up", width, 4 * width);
      transform("down", 4 * width, width);
    }
    tensors.push_back({"last_norm.scale", width, false});
    tensors.push_back({"last_norm.shift", width, false});
  }

  /// Layers get their tensors in the order of the table.
  void connect() {
    const std::size_t width = shape_.width;
    std::size_t index = 0, at = 0;
    const auto next = [&] {
      const trained<T> here{parameters.data() + at, gradients.data() + at};
      at += tensors[index++].count;
      return here;
    };
    const auto norm = [&] {
      const auto scale = next(), shift = next();
      return layer_norm<T>{scale, shift, width};
    };
    const auto transform = [&](std::size_t inputs, std::size_t outputs) {
      const auto weights = next(), bias = next();
      return linear<T>{weights, bias, inputs, outputs};
    };
    embedding_ = next();
    positions_ = next();
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      blocks_.push_back({norm(),
                         transform(width, 3 * width),
                         {width, shape_.heads},
                         transform(width, width),
                         norm(),
                         transform(width, 4 * width),
                         transform(4 * width, width)});
    }
    last_norm_ = norm();
  }

  /// Matrices are random, what scales is 1, what shifts is 0.
  void initialise(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 0.08);
    auto at = parameters.begin();
    for (const tensor& t : tensors) {
      const auto end = at + static_cast<std::ptrdiff_t>(t.count);
      if (t.is_matrix)
        std::generate(at, end, [&] { return static_cast<T>(normal(random)); });
      else
        std::fill(at, end, T(t.name.ends_with("scale") ? 1 : 0));
      at = end;
    }
  }

  /// The probabilities of what follows, a row for each character.
  void predict(const character_batch& batch) {
    const std::size_t rows = batch.windows * batch.length, width = shape_.width,
                      vocabulary = shape_.vocabulary;
    stream_.resize(rows * width);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t d = 0; d < width; ++d) {
        stream_[i * width + d] = embedding_.value[batch.characters[i] * width + d] +
                                 positions_.value[i % batch.length * width + d];
      }
    }
    for (block& b : blocks_) b.forward(stream_, batch.windows, batch.length);
    output_.resize(rows * width);
    last_norm_.forward(output_.data(), stream_.data(), rows);
    transpose(embedding_.value, vocabulary, width, transposed_);
    probabilities_.assign(rows * vocabulary, 0);
    multiply_add(probabilities_.data(), {output_.data(), width, 1}, transposed_.data(), rows, width,
                 vocabulary);
    for (std::size_t i = 0; i < rows; ++i)
      causal_attention<T>::softmax(&probabilities_[i * vocabulary], vocabulary);
  }

  transformer_shape shape_;
  trained<T> embedding_ = {}, positions_ = {};
  std::vector<block> blocks_;
  layer_norm<T> last_norm_ = {};
  std::vector<T> stream_, output_, transposed_, probabilities_, d_output_, d_stream_;
};

/// Adam with weight decay of the matrices, apart from the gradient (AdamW).
template <class T>
class adamw {
 public:
  explicit adamw(std::size_t count) : mean_(count), square_(count) {}

  void step(character_transformer<T>& model, T rate) {
    constexpr T keep_mean = T(0.9), keep_square = T(0.99), decay = T(0.1), least = T(1e-8);
    ++steps_;
    const T mean_so_far = 1 - std::pow(keep_mean, static_cast<T>(steps_)),
            square_so_far = 1 - std::pow(keep_square, static_cast<T>(steps_));
    std::size_t i = 0;
    for (const auto& t : model.tensors) {
      for (const std::size_t end = i + t.count; i < end; ++i) {
        const T gradient = model.gradients[i];
        mean_[i] = keep_mean * mean_[i] + (1 - keep_mean) * gradient;
        square_[i] = keep_square * square_[i] + (1 - keep_square) * gradient * gradient;
        const T towards = mean_[i] / mean_so_far / (std::sqrt(square_[i] / square_so_far) + least);
        model.parameters[i] -= rate * (towards + (t.is_matrix ? decay * model.parameters[i] : T(0)));
      }
    }
  }

 private:
  std::vector<T> mean_, square_;
  int steps_ = 0;
};
