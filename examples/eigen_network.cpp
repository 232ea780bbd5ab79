// SPDX-License-Identifier: BSL-1.0
// Eigen: a network is trained on Fashion-MNIST in one process, and then by two ranks (or a launcher's) that
// share each batch. Both see the same images in each step, and end with the same network.
//
// usage: eigen_network [IMAGES]
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/distributed_data_parallel.hpp>

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "fashion_mnist.hpp"
#include "on_ranks.hpp"
#include "perceptron.hpp"

namespace {

using network = perceptron<float>;
constexpr std::size_t batch = 128;

struct part {
  Eigen::MatrixXf samples;  // a column each
  std::vector<std::uint8_t> labels;
};

part load(const image_set& images, std::size_t first, std::size_t count) {
  const Eigen::Map<const Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic>> bytes(
      images.image(first), static_cast<Eigen::Index>(images.pixels), static_cast<Eigen::Index>(count));
  const auto label = images.labels.begin() + static_cast<std::ptrdiff_t>(first);
  return {bytes.cast<float>() / 255.0f, {label, label + static_cast<std::ptrdiff_t>(count)}};
}

double train_alone(const image_set& images, std::size_t count) {
  double loss = 0;
  // snippet: alone
  network model(784, 64, 10, 1);
  for (std::size_t first = 0; first < count; first += batch) {
    const auto [samples, labels] = load(images, first, batch);
    model.forward(samples);
    loss += model.backward(samples, labels, [](std::size_t) {});
    model.step(0.03f, 0.9f);
  }
  // snippet end
  return loss / static_cast<double>(count);
}

template <class C>
double train_together(C& comm, const image_set& images, std::size_t count) {
  std::vector<double> loss(1);
  const std::size_t share = batch / static_cast<std::size_t>(comm.size());
  const std::size_t before = share * static_cast<std::size_t>(comm.rank());
  // snippet: together
  network model(784, 64, 10, 1);
  auto &hidden = model.hidden, &output = model.output;
  ddpp::distributed_data_parallel ddp(
      comm, {ddpp::parameter("output.bias", output.bias, output.bias_gradient),
             ddpp::parameter("output.weights", output.weights, output.weights_gradient),
             ddpp::parameter("hidden.bias", hidden.bias, hidden.bias_gradient),
             ddpp::parameter("hidden.weights", hidden.weights, hidden.weights_gradient)});
  for (std::size_t first = 0; first < count; first += batch) {
    const auto [samples, labels] = load(images, first + before, share);
    ddp.prepare();
    model.forward(samples);
    loss[0] += model.backward(samples, labels, [&](std::size_t i) { ddp.mark_ready(i); });
    ddp.wait();
    model.step(0.03f, 0.9f);
  }
  // snippet end
  ddpp::all_reduce(comm, loss);
  return loss[0] / static_cast<double>(count);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 25'600;
  Eigen::setNbThreads(1);
  try {
    const int ranks = number_of_ranks(2);
    if (batch % static_cast<std::size_t>(ranks) != 0)
      throw std::invalid_argument("batches are not to be shared by so many ranks");
    const image_set images = read_image_set("/usr/share/datasets/fashion-mnist", "train");
    if (count == 0 || count % batch != 0 || count > images.size())
      throw std::invalid_argument("not so many images in whole batches");
    const double alone = train_alone(images, count);
    std::printf("one process: loss %.4f\n", alone);
    std::fflush(stdout);
    on_ranks<ddpp::shm>(ranks, [&](auto& comm) {
      const double together = train_together(comm, images, count);
      if (comm.rank() == 0) std::printf("%d ranks:     loss %.4f\n", comm.size(), together);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "eigen_network: %s\n", error.what());
    return 1;
  }
}
