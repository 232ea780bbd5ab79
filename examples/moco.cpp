// SPDX-License-Identifier: BSL-1.0
// Momentum contrast (He et al., 2020) on Fashion-MNIST without its labels: two views of an image are to have
// similar encodings, views of different images are not. As in the original, keys come from an encoder that
// follows the trained one slowly, and are kept in a queue; which rank encodes which key is drawn anew at each
// step, so that nothing that a network computes over its batch can give away which key belongs to which
// query.
//
// usage: moco [RANKS [EPOCHS [IMAGES]]]    (RANKS counts where no launcher has started any)
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/all_gather.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/metrics/means.hpp>
#include <ddpp/sampler.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fashion_mnist.hpp"
#include "moco_encoder.hpp"
#include "moco_views.hpp"
#include "on_ranks.hpp"

namespace {

constexpr std::size_t batch = 128;  // of all ranks together
constexpr Eigen::Index queue_length = 2048;

struct images {
  image_set training, test;
};

template <class C>
class momentum_contrast {
 public:
  momentum_contrast(C& comm, const images& data, std::size_t count)
      : comm_(comm),
        data_(data),
        share_(static_cast<Eigen::Index>(batch) / comm.size()),
        queries_({static_cast<Eigen::Index>(data.training.pixels), 256, 128, 64}, 1),
        ddp_(comm, parameters(queries_), {.bucket_cap_mb = 0.25}),
        keys_(queries_),
        queue_(matrix::Random(64, queue_length).colwise().normalized()),
        sampler_(comm, count, {.seed = 1}) {
    ddpp::broadcast(comm_, queue_);
  }

  /// The mean loss over the epoch.
  double train_epoch(int epoch) {
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
    const std::vector<std::size_t> mine(sampler_.begin(), sampler_.end());
    const auto share = static_cast<std::size_t>(share_);
    ddpp::metrics::mean loss;
    for (std::size_t first = 0; first + share <= mine.size(); first += share)
      loss.update(step(std::span(mine).subspan(first, share), static_cast<std::uint32_t>(epoch)));
    return loss.compute(comm_);
  }

  /// The share of test images that are recognised, each seen in a random view, by the class of the most
  /// similar of the first `count` training images: similar are features at a small angle.
  template <class Features>
  double nearest_neighbours(std::size_t count, Features features) {
    const auto directions = [&](const matrix& samples) {
      return matrix(features(samples).colwise().normalized());
    };
    std::vector<std::size_t> here(count / static_cast<std::size_t>(comm_.size()));
    std::iota(here.begin(), here.end(), here.size() * static_cast<std::size_t>(comm_.rank()));
    const matrix known_here = directions(load_images(data_.training, here));
    matrix known(known_here.rows(), known_here.cols() * comm_.size());
    ddpp::all_gather(comm_, known_here, known);

    ddpp::distributed_sampler test(comm_, 1000, {.shuffle = false, .padding = ddpp::sampler_padding::none});
    const std::vector<std::size_t> mine(test.begin(), test.end());
    const matrix similarity = known.transpose() * directions(load_views(data_.test, mine, 0));
    ddpp::metrics::accuracy accuracy;
    for (std::size_t k = 0; k < mine.size(); ++k) {
      Eigen::Index nearest = 0;
      similarity.col(static_cast<Eigen::Index>(k)).maxCoeff(&nearest);
      accuracy.update(data_.training.labels[static_cast<std::size_t>(nearest)], data_.test.labels[mine[k]]);
    }
    return accuracy.compute(comm_);
  }
  encoder& trained() { return queries_; }

 private:
  static std::vector<ddpp::parameter> parameters(encoder& network) {
    std::vector<ddpp::parameter> all;
    for (auto& layer : network.layers) {
      const std::string name = "layer" + std::to_string(all.size() / 2);
      all.emplace_back(name + ".weights", layer.weights, layer.weights_gradient);
      all.emplace_back(name + ".bias", layer.bias, layer.bias_gradient);
    }
    return all;
  }

  double step(std::span<const std::size_t> indices, std::uint32_t epoch) {
    const matrix all_keys = shuffled_keys(load_views(data_.training, indices, 2 * epoch));
    const matrix views = load_views(data_.training, indices, 2 * epoch + 1);

    ddp_.prepare();
    const auto [loss, gradient] = contrast_with_queue(
        queries_.forward(views), all_keys.middleCols(comm_.rank() * share_, share_), queue_);
    queries_.backward(views, gradient, [&](std::size_t i) { ddp_.mark_ready(i); });
    ddp_.wait();
    queries_.step(0.02f);

    keys_.follow(queries_, 0.99f);
    queue_.middleCols(next_in_queue_, all_keys.cols()) = all_keys;
    next_in_queue_ = (next_in_queue_ + all_keys.cols()) % queue_length;
    return loss;
  }

  /// The keys of all ranks' views, in the order of the ranks.
  matrix shuffled_keys(const matrix& views) {
    std::vector<std::uint32_t> order(batch);
    std::iota(order.begin(), order.end(), 0u);
    if (comm_.rank() == 0) std::shuffle(order.begin(), order.end(), random_);
    ddpp::broadcast(comm_, order);

    matrix all_views(views.rows(), share_ * comm_.size());
    ddpp::all_gather(comm_, views, all_views);
    matrix others_views(views.rows(), share_);
    for (Eigen::Index k = 0; k < share_; ++k)
      others_views.col(k) = all_views.col(order[static_cast<std::size_t>(comm_.rank() * share_ + k)]);

    matrix shuffled(64, share_ * comm_.size()), keys(64, share_ * comm_.size());
    ddpp::all_gather(comm_, keys_.forward(others_views), shuffled);
    for (Eigen::Index k = 0; k < keys.cols(); ++k)
      keys.col(order[static_cast<std::size_t>(k)]) = shuffled.col(k);
    return keys;
  }

  C& comm_;
  const images& data_;
  const Eigen::Index share_;
  encoder queries_;
  ddpp::distributed_data_parallel<C> ddp_;
  encoder keys_;  // after ddp_, which takes rank 0's weights
  matrix queue_;
  ddpp::distributed_sampler sampler_;
  Eigen::Index next_in_queue_ = 0;
  std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = number_of_ranks(argc > 1 ? std::atoi(argv[1]) : 2),
            epochs = argc > 2 ? std::atoi(argv[2]) : 10;
  const std::size_t count = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 10'240;
  if (ranks < 1 || batch % static_cast<std::size_t>(ranks) != 0 || count % batch != 0 || count > 60'000) {
    std::fprintf(stderr, "moco: %zu images in batches of %zu are not to be shared by %d ranks\n", count,
                 batch, ranks);
    return 2;
  }
  Eigen::setNbThreads(1);
  const std::string directory = "/usr/share/datasets/fashion-mnist";
  try {
    const images data{read_image_set(directory, "train"), read_image_set(directory, "t10k")};
    on_ranks<ddpp::shm>(ranks, [&](auto& comm) {
      momentum_contrast contrast(comm, data, count);
      const auto learned = [&](const matrix& samples) -> const matrix& {
        contrast.trained().forward(samples);
        return contrast.trained().features();
      };
      const double of_pixels =
          contrast.nearest_neighbours(count, [](const matrix& samples) { return samples; });
      const double of_random = contrast.nearest_neighbours(count, learned);
      if (comm.rank() == 0)
        std::printf("nearest neighbours by pixels %.1f %%, before training %.1f %%\n", 100 * of_pixels,
                    100 * of_random);
      for (int epoch = 1; epoch <= epochs; ++epoch) {
        const auto begin = std::chrono::steady_clock::now();
        const double loss = contrast.train_epoch(epoch);
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        const double nearest = contrast.nearest_neighbours(count, learned);
        if (comm.rank() == 0)
          std::printf("epoch %2d: loss %.4f, nearest neighbours %.1f %%, %.0f images/s\n", epoch, loss,
                      100 * nearest, static_cast<double>(count) / time.count());
      }
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moco: %s\n", error.what());
    return 1;
  }
}
