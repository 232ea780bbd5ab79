// SPDX-License-Identifier: BSL-1.0
// Trains the network of train_fashion_mnist.cpp on CUDA devices: the same curve, whatever the number of
// devices. A thread per device, or, under a launcher (ddpp-run, torchrun, mpirun), this process is one rank.
//
//   nvcc -std=c++20 --extended-lambda -O2 -arch=native -Iinclude examples/cuda_fashion_mnist.cu -lnccl -lz
//   ./a.out [--data DIRECTORY] [--devices N] [--epochs N] [--precision float|double]
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/nccl.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/sampler.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_kernels.hpp"
#include "cuda_perceptron.hpp"
#include "fashion_mnist.hpp"

namespace {

constexpr std::size_t batch = 128;  // of all ranks together
constexpr std::size_t chunk = 500;  // of the test images
constexpr std::size_t classes = 10, units = 128;
constexpr double rate = 0.03, momentum = 0.9;
constexpr std::uint32_t seed = 1;

struct settings {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int devices = 0;  // 0: all
  int epochs = 8;
  bool in_double = false;
};

struct images {
  image_set training, test;
};

/// Images in device memory, and some of them as a network takes them.
template <class Scalar>
class device_images {
 public:
  explicit device_images(const image_set& from)
      : pixels_(from.pixels),
        images_(from.images),
        labels_(from.labels),
        samples_(pixels_ * std::max(batch, chunk)),
        sample_labels_(std::max(batch, chunk)) {}

  const Scalar* samples() const { return samples_.data(); }
  const std::uint8_t* labels() const { return sample_labels_.data(); }

  /// Makes samples of `count` images, scaled to 0..1: those whose numbers are at `indices`, device memory.
  void load(cudaStream_t stream, const std::uint32_t* indices, std::size_t count) {
    const std::uint8_t *const from = images_.data(), *const from_labels = labels_.data();
    Scalar* const to = samples_.data();
    std::uint8_t* const to_labels = sample_labels_.data();
    const std::size_t pixels = pixels_;
    for_each_index(stream, pixels * count, [=] ON_DEVICE(std::size_t at) {
      const std::size_t image = indices[at / pixels];
      to[at] = Scalar(from[image * pixels + at % pixels]) / Scalar(255);
      if (at % pixels == 0) to_labels[at / pixels] = from_labels[image];
    });
  }

 private:
  std::size_t pixels_;
  device_array<std::uint8_t> images_, labels_;
  device_array<Scalar> samples_;
  device_array<std::uint8_t> sample_labels_;
};

template <class Scalar, class C>
class trainer {
 public:
  trainer(C& comm, const images& data)
      : comm_(comm),
        stream_(comm.stream()),
        count_(data.training.size()),
        test_count_(data.test.size()),
        training_(data.training),
        test_(data.test),
        mine_(std::max(count_, test_count_)),
        sum_(1),
        model_(data.training.pixels, units, classes, std::max(batch, chunk),
               seed + static_cast<std::uint32_t>(comm.rank())),  // rank 0's counts
        ddp_(comm,
             {parameter("output.bias", model_.output.bias, model_.output.bias_gradient),
              parameter("output.weights", model_.output.weights, model_.output.weights_gradient),
              parameter("hidden.bias", model_.hidden.bias, model_.hidden.bias_gradient),
              parameter("hidden.weights", model_.hidden.weights, model_.hidden.weights_gradient)},
             {.bucket_cap_mb = 0.25}),
        sampler_(comm, count_, {.seed = seed, .padding = ddpp::sampler_padding::none}) {}

  void run(int epochs) {
    if (comm_.rank() == 0) std::printf("epoch            loss  accuracy  images/s\n");
    for (int epoch = 1; epoch <= epochs; ++epoch) {
      const auto begin = std::chrono::steady_clock::now();
      const double loss = train_epoch(epoch);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      const double correct = test();
      if (comm_.rank() != 0) continue;
      constexpr int digits = sizeof(Scalar) == sizeof(double) ? 12 : 6;
      std::printf("%5d  %14.*f  %6.2f %%  %8.0f\n", epoch, digits, loss, 100 * correct,
                  static_cast<double>(count_) / time.count());
      std::fflush(stdout);
    }
  }

  /// The mean loss over all images. Of a global batch [first, last) of the epoch's order this rank has every
  /// size()-th from its own rank on: the next of its sampler's. The host waits for the device once, at the
  /// end.
  double train_epoch(int epoch) {
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
    take_numbers(sampler_);
    const auto rank = static_cast<std::size_t>(comm_.rank()), ranks = static_cast<std::size_t>(comm_.size());
    const auto mine_before = [&](std::size_t position) { return (position + ranks - 1 - rank) / ranks; };
    for (std::size_t first = 0; first < count_; first += batch) {
      const std::size_t last = std::min(first + batch, count_), begin = mine_before(first),
                        share = mine_before(last) - begin;
      training_.load(stream_, mine_.data() + begin, share);
      model_.forward(stream_, training_.samples(), share);
      // The ranks' average of these gradients is the batch's, also where shares differ.
      const auto factor = static_cast<Scalar>(static_cast<double>(ranks) / static_cast<double>(last - first));
      ddp_.prepare();
      model_.backward(stream_, training_.samples(), training_.labels(), share, factor, sum_.data(),
                      [&](std::size_t i) { ddp_.mark_ready(i); });
      ddp_.wait();
      model_.step(stream_, static_cast<Scalar>(rate), static_cast<Scalar>(momentum));
    }
    return sum_of_all() / static_cast<double>(count_);
  }

  /// The share of test images that are recognised, each looked at by one rank.
  double test() {
    ddpp::distributed_sampler sampler(comm_, test_count_,
                                      {.shuffle = false, .padding = ddpp::sampler_padding::none});
    const std::size_t all = take_numbers(sampler);
    for (std::size_t first = 0; first < all; first += chunk) {
      const std::size_t count = std::min(chunk, all - first);
      test_.load(stream_, mine_.data() + first, count);
      model_.forward(stream_, test_.samples(), count);
      model_.count_correct(stream_, test_.labels(), count, sum_.data());
    }
    return sum_of_all() / static_cast<double>(test_count_);
  }

 private:
  static ddpp::parameter parameter(const char* name, const device_array<Scalar>& values,
                                   const device_array<Scalar>& gradients) {
    return {name, values.span(), gradients.span()};
  }

  // What an epoch needs of device memory is there from the beginning: to free it is to wait for all devices
  // of this process, whose ranks may be waiting for this one.

  /// Begins a sum, and brings the numbers of this rank's images to the device. Returns how many.
  std::size_t take_numbers(ddpp::distributed_sampler& sampler) {
    std::vector<std::uint32_t> all;
    for (const std::size_t each : sampler) all.push_back(static_cast<std::uint32_t>(each));
    check(cudaMemsetAsync(sum_.data(), 0, sizeof(double), stream_));
    check(cudaMemcpyAsync(mine_.data(), all.data(), all.size() * sizeof all[0], cudaMemcpyHostToDevice,
                          stream_));
    check(cudaStreamSynchronize(stream_));
    return all.size();
  }

  /// Over all ranks, once it is there.
  double sum_of_all() {
    ddpp::all_reduce(comm_, sum_.span());
    double sum = 0;
    check(cudaMemcpyAsync(&sum, sum_.data(), sizeof sum, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return sum;
  }

  C& comm_;
  cudaStream_t stream_;
  std::size_t count_, test_count_;
  device_images<Scalar> training_, test_;
  device_array<std::uint32_t> mine_;  // the numbers of this rank's images
  device_array<double> sum_;
  cuda_perceptron<Scalar> model_;
  ddpp::distributed_data_parallel<C> ddp_;
  ddpp::distributed_sampler sampler_;
};

int number(std::string_view option, std::string_view text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < 1)
    throw std::invalid_argument(std::string(option) + " is a number from 1");
  return value;
}

settings parse(int argc, char** argv) {
  settings chosen;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(std::string(option) + ": a value is missing");
    const std::string_view value = argv[i + 1];
    if (option == "--data")
      chosen.data = value;
    else if (option == "--devices")
      chosen.devices = number(option, value);
    else if (option == "--epochs")
      chosen.epochs = number(option, value);
    else if (option == "--precision" && (value == "float" || value == "double"))
      chosen.in_double = value == "double";
    else
      throw std::invalid_argument("not understood: " + std::string(option) + " " + std::string(value));
  }
  return chosen;
}

void run(const images& data, const settings& chosen) {
  const auto each_rank = [&](auto& comm) {
    using comm_type = std::remove_reference_t<decltype(comm)>;
    if (chosen.in_double)
      trainer<double, comm_type>(comm, data).run(chosen.epochs);
    else
      trainer<float, comm_type>(comm, data).run(chosen.epochs);
  };
  if (ddpp::launched_ranks() > 0) {
    if (chosen.devices != 0)
      throw std::invalid_argument("--devices was given, but a launcher has started this rank");
    auto comm = ddpp::init<ddpp::nccl>();
    return each_rank(comm);
  }
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  ddpp::launch<ddpp::nccl>(chosen.devices != 0 ? chosen.devices : devices, each_rank);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings chosen = parse(argc, argv);
    const images data{read_image_set(chosen.data, "train"), read_image_set(chosen.data, "t10k")};
    if (data.training.pixels != data.test.pixels)
      throw std::runtime_error("training and test images differ in size");
    run(data, chosen);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_fashion_mnist: %s\n", error.what());
    return 1;
  }
}
