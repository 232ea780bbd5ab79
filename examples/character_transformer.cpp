// SPDX-License-Identifier: BSL-1.0
// Trains a transformer on the licences that every Debian machine has, with several ranks; each step sees the
// same windows of text whatever their number. Gradients are averaged while the backward pass is still at work
// on earlier layers. character_transformer_alone.cpp is this program for one process.
//
// usage: character_transformer [RANKS [STEPS]]    (RANKS counts where no launcher has started any)
#include <ddpp/backends/shm.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/metrics/means.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "character_transformer_model.hpp"
#include "character_transformer_text.hpp"
#include "on_ranks.hpp"

int main(int argc, char** argv) {
  const int ranks = number_of_ranks(argc > 1 ? std::atoi(argv[1]) : 2);
  const int steps = argc > 2 ? std::atoi(argv[2]) : 1000;
  const int report = std::max(1, steps / 10);  // every so many steps
  const character_text text("/usr/share/common-licenses");
  const transformer_shape shape{.vocabulary = text.vocabulary()};
  const std::size_t windows = 8;
  const auto rate = [&](int step) {
    return 3e-3f * (1 - static_cast<float>(step) / static_cast<float>(steps));
  };
  if (ranks < 1 || windows % static_cast<std::size_t>(ranks) != 0) {
    std::fprintf(stderr, "character_transformer: %zu windows are not to be shared by %d ranks\n", windows,
                 ranks);
    return 2;
  }

  on_ranks<ddpp::shm>(ranks, [&](auto& comm) {
    const auto begin = std::chrono::steady_clock::now();
    // snippet: train
    character_transformer<float> model(shape, 1);
    adamw<float> optimizer(model.parameters.size());

    std::vector<ddpp::parameter> parameters;
    std::size_t first = 0;
    for (const auto& [name, count, is_matrix] : model.tensors) {
      parameters.emplace_back(name, std::span(model.parameters).subspan(first, count),
                              std::span(model.gradients).subspan(first, count));
      first += count;
    }
    ddpp::distributed_data_parallel ddp(comm, std::move(parameters), {.bucket_cap_mb = 0.1});

    ddpp::metrics::mean loss;
    for (int step = 0; step < steps; ++step) {
      const auto batch = text.batch(step, windows, shape.context, comm.rank(), comm.size());
      model.zero_gradients();
      ddp.prepare();
      loss.update(model.forward(batch));
      model.backward(batch, [&](std::size_t i) { ddp.mark_ready(i); });
      ddp.wait();
      optimizer.step(model, rate(step));
      if ((step + 1) % report == 0) {
        const double of_all = std::exchange(loss, {}).compute(comm);
        if (comm.rank() == 0) std::printf("step %4d: loss %.4f\n", step + 1, of_all);
      }
    }
    // snippet end

    if (comm.rank() != 0) return;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    std::mt19937 random(1);
    std::printf("%.0f characters/s\n%s\n",
                steps * static_cast<double>(windows * shape.context) / time.count(),
                text.decode(model.continue_text(text.encode("The "), 200, random)).c_str());
  });
}
