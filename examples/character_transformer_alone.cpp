// SPDX-License-Identifier: BSL-1.0
// Trains a transformer on the licences that every Debian machine has, in one process;
// character_transformer.cpp is this program for several. usage: character_transformer_alone [STEPS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "character_transformer_model.hpp"
#include "character_transformer_text.hpp"

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int report = std::max(1, steps / 10);  // every so many steps
  const character_text text("/usr/share/common-licenses");
  const transformer_shape shape{.vocabulary = text.vocabulary()};
  const std::size_t windows = 8;
  const auto rate = [&](int step) {
    return 3e-3f * (1 - static_cast<float>(step) / static_cast<float>(steps));
  };

  // snippet: train
  character_transformer<float> model(shape, 1);
  adamw<float> optimizer(model.parameters.size());

  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const auto batch = text.batch(step, windows, shape.context);
    model.zero_gradients();
    loss += model.forward(batch);
    model.backward(batch, [](std::size_t) {});
    optimizer.step(model, rate(step));
    if ((step + 1) % report == 0)
      std::printf("step %4d: loss %.4f\n", step + 1, std::exchange(loss, 0) / report);
  }
  // snippet end

  std::mt19937 random(1);
  std::printf("%s\n", text.decode(model.continue_text(text.encode("The "), 200, random)).c_str());
}
