// SPDX-License-Identifier: BSL-1.0
// What torch_alone.cpp and torch_parallel.cpp have in common: a convolutional network, and Fashion-MNIST as
// tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>
#include <utility>
#include <vector>

#include "fashion_mnist.hpp"

/// Two convolutions with batch normalisation, and a linear layer: 10,586 parameters.
struct convolution_impl : torch::nn::Module {
  torch::nn::Sequential features = register_module(
      "features",
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)),
                            torch::nn::BatchNorm2d(16), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).padding(1).bias(false)),
                            torch::nn::BatchNorm2d(16), torch::nn::ReLU(), torch::nn::MaxPool2d(2)));
  torch::nn::Linear classes = register_module("classes", torch::nn::Linear(16 * 7 * 7, 10));

  torch::Tensor forward(const torch::Tensor& images) { return classes(features->forward(images).flatten(1)); }
};
TORCH_MODULE_IMPL(convolution, convolution_impl);

struct clothes {
  torch::Tensor images, labels;  // grey values from 0 to 1; classes

  std::size_t size() const { return static_cast<std::size_t>(labels.size(0)); }
  /// Those with numbers [first, last) of a list.
  clothes batch(const std::vector<std::size_t>& numbers, std::size_t first) const {
    constexpr std::size_t batch_size = 64;
    const std::size_t last = std::min(first + batch_size, numbers.size());
    const std::vector<std::int64_t> chosen(numbers.begin() + std::ptrdiff_t(first),
                                           numbers.begin() + std::ptrdiff_t(last));
    const torch::Tensor indices = torch::tensor(chosen);
    return {images.index_select(0, indices), labels.index_select(0, indices)};
  }
};

/// `which` is "train" or "t10k"; at most `limit` of them.
inline clothes read_clothes(const std::string& which, std::int64_t limit) {
  const char* const folder = std::getenv("FASHION_MNIST");
  image_set set = read_image_set(folder != nullptr ? folder : "/usr/share/datasets/fashion-mnist", which);
  const auto count = static_cast<std::int64_t>(set.size());
  const torch::Tensor bytes = torch::from_blob(set.images.data(), {count, 1, 28, 28}, torch::kByte);
  const torch::Tensor labels = torch::from_blob(set.labels.data(), {count}, torch::kByte);
  return {bytes.narrow(0, 0, std::min(limit, count)).to(torch::kFloat) / 255,
          labels.narrow(0, 0, std::min(limit, count)).to(torch::kLong)};
}

/// All numbers below a count, in another order in each epoch: what a ddpp::distributed_sampler is for one
/// rank.
class shuffled_numbers {
 public:
  explicit shuffled_numbers(std::size_t count) : numbers_(count) {
    std::iota(numbers_.begin(), numbers_.end(), 0);
  }
  void set_epoch(std::uint64_t epoch) {
    std::sort(numbers_.begin(), numbers_.end());
    std::shuffle(numbers_.begin(), numbers_.end(), std::mt19937(static_cast<unsigned>(epoch)));
  }
  auto begin() const { return numbers_.begin(); }
  auto end() const { return numbers_.end(); }

 private:
  std::vector<std::size_t> numbers_;
};

/// The share of images that are recognised.
template <class Model>
double accuracy(Model& model, const clothes& set) {
  const torch::NoGradGuard evaluating;
  model->eval();
  std::int64_t correct = 0;
  for (std::int64_t first = 0; first < set.labels.size(0); first += 500) {
    const std::int64_t count = std::min<std::int64_t>(500, set.labels.size(0) - first);
    const torch::Tensor found = model->forward(set.images.narrow(0, first, count)).argmax(1);
    correct += found.eq(set.labels.narrow(0, first, count)).sum().template item<std::int64_t>();
  }
  model->train();
  return static_cast<double>(correct) / static_cast<double>(set.size());
}
