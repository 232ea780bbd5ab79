// SPDX-License-Identifier: BSL-1.0
// Trains a convolutional network on Fashion-MNIST with libtorch: torch_alone.cpp in one process,
// torch_parallel.cpp in several. usage: PROGRAM [EPOCHS [IMAGES]]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "torch_convolution.hpp"

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 2;
  const clothes training = read_clothes("train", argc > 2 ? std::atol(argv[2]) : 60'000);
  const clothes test = read_clothes("t10k", 10'000);

  torch::manual_seed(1);
  convolution model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  shuffled_numbers order(training.size());

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    order.set_epoch(static_cast<unsigned>(epoch));
    const std::vector<std::size_t> mine(order.begin(), order.end());
    for (std::size_t first = 0; first < mine.size(); first += 64) {
      const clothes batch = training.batch(mine, first);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(batch.images), batch.labels).backward();
      optimizer.step();
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    const double speed = static_cast<double>(training.size()) / time.count(), correct = accuracy(model, test);
    std::printf("epoch %d: %.0f images/s, accuracy %.2f %%\n", epoch, speed, 100 * correct);
  }
}
