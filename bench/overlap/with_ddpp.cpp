// SPDX-License-Identifier: BSL-1.0
// One rank of the overlap benchmark: times what a training step consists of, alone and together. See `run`.
//
// usage: with_ddpp TRANSPORT DATA STEPS BATCH BUCKET_MB WIDTH...    (a launcher's environment says which rank
// it is)
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/init.hpp>
#include <ddpp/visit_backend.hpp>

#include <Eigen/Core>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/fashion_mnist.hpp"

namespace {

/// Linear layers with max(0, x) between them, and the cross-entropy of the classes that come out. Columns of
/// matrices are samples.
class network {
 public:
  using matrix = Eigen::MatrixXf;
  struct layer {
    matrix weights, weights_gradient;
    Eigen::VectorXf bias, bias_gradient;
  };

  explicit network(const std::vector<Eigen::Index>& widths) : outputs_(widths.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::size_t k = 0; k + 1 < widths.size(); ++k) {
      const float scale = std::sqrt(2.0f / static_cast<float>(widths[k]));
      layers_.push_back(
          {matrix::NullaryExpr(widths[k + 1], widths[k], [&] { return scale * normal(random); }),
           matrix::Zero(widths[k + 1], widths[k]), Eigen::VectorXf::Zero(widths[k + 1]),
           Eigen::VectorXf::Zero(widths[k + 1])});
    }
  }

  std::vector<ddpp::parameter> parameters() {
    std::vector<ddpp::parameter> list;
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const std::string name = "layer " + std::to_string(k);
      list.emplace_back(name + " weights", layers_[k].weights, layers_[k].weights_gradient);
      list.emplace_back(name + " bias", layers_[k].bias, layers_[k].bias_gradient);
    }
    return list;
  }

  void forward(const matrix& samples) {
    outputs_[0] = samples;
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      outputs_[k + 1].noalias() = layers_[k].weights * outputs_[k];
      outputs_[k + 1].colwise() += layers_[k].bias;
      if (k + 1 < layers_.size()) outputs_[k + 1] = outputs_[k + 1].cwiseMax(0.0f);
    }
  }

  /// Calls ready(i) as soon as the gradient of parameters()[i] is final.
  template <class Ready>
  void backward(const std::vector<std::uint8_t>& labels, Ready ready) {
    matrix errors = outputs_.back();
    for (Eigen::Index sample = 0; sample < errors.cols(); ++sample) {
      auto column = errors.col(sample);
      column = (column.array() - column.maxCoeff()).exp();
      column /= column.sum();
      column[labels[static_cast<std::size_t>(sample)]] -= 1;
    }
    errors /= static_cast<float>(errors.cols());
    for (std::size_t k = layers_.size(); k-- > 0;) {
      layers_[k].bias_gradient = errors.rowwise().sum();
      ready(2 * k + 1);
      layers_[k].weights_gradient.noalias() = errors * outputs_[k].transpose();
      ready(2 * k);
      if (k == 0) break;
      const matrix before = layers_[k].weights.transpose() * errors;
      errors = (outputs_[k].array() > 0).select(before, 0);
    }
  }

 private:
  std::vector<layer> layers_;
  std::vector<matrix> outputs_;
};

template <class C, class F>
double seconds(C& comm, F&& f) {
  ddpp::barrier(comm);
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void print(const char* name, const std::vector<double>& times, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < times.size(); ++i) std::printf("%s%.9f", i == 0 ? "" : ", ", times[i]);
  std::printf("]%s", end);
}

template <class C>
void measure(C& comm, const image_set& images, std::size_t steps, std::size_t batch, double bucket_mb,
             const std::vector<Eigen::Index>& widths) {
  network model(widths);
  ddpp::distributed_data_parallel ddp(comm, model.parameters(), {.bucket_cap_mb = bucket_mb});
  const std::size_t first = static_cast<std::size_t>(comm.rank()) * batch;
  network::matrix samples(images.pixels, batch);
  for (std::size_t k = 0; k < batch; ++k) {
    const Eigen::Map<const Eigen::Matrix<std::uint8_t, Eigen::Dynamic, 1>> image(
        images.image(first + k), static_cast<Eigen::Index>(images.pixels));
    samples.col(static_cast<Eigen::Index>(k)) = image.cast<float>() / 255.0f;
  }
  const auto at = images.labels.begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<std::uint8_t> labels(at, at + static_cast<std::ptrdiff_t>(batch));

  const auto compute = [&](auto ready) {
    model.forward(samples);
    model.backward(labels, ready);
  };
  const auto step = [&] {
    ddp.prepare();
    compute([&](std::size_t i) { ddp.mark_ready(i); });
    ddp.wait();
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) step();  // and the buckets are laid out anew

  std::vector<std::vector<float>> buckets;
  for (const std::size_t bytes : ddp.statistics().bucket_bytes) buckets.emplace_back(bytes / sizeof(float));
  const auto communicate = [&] {
    std::vector<ddpp::work> pending;
    for (auto& bucket : buckets) pending.push_back(ddpp::all_reduce_async(comm, bucket, ddpp::avg));
    for (auto& each : pending) each.wait();
  };
  communicate();

  std::vector<double> alone, communication, together;
  for (std::size_t s = 0; s < steps; ++s) {
    alone.push_back(seconds(comm, [&] { compute([](std::size_t) {}); }));
    communication.push_back(seconds(comm, communicate));
    together.push_back(seconds(comm, step));
  }
  for (auto* times : {&alone, &communication, &together}) ddpp::all_reduce(comm, *times, ddpp::max);
  if (comm.rank() != 0) return;
  std::printf("{\"buckets\": %zu, ", buckets.size());
  print("compute", alone, ", ");
  print("communication", communication, ", ");
  print("step", together, "}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) {
    std::fprintf(stderr, "usage: with_ddpp TRANSPORT DATA STEPS BATCH BUCKET_MB WIDTH...\n");
    return 2;
  }
  Eigen::setNbThreads(1);
  std::vector<Eigen::Index> widths;
  for (int i = 6; i < argc; ++i) widths.push_back(std::atol(argv[i]));
  try {
    const image_set images = read_image_set(argv[2], "train");
    ddpp::visit_backend(argv[1], [&](auto tag) {
      auto comm = ddpp::init<typename decltype(tag)::type>();
      measure(comm, images, std::strtoul(argv[3], nullptr, 10), std::strtoul(argv[4], nullptr, 10),
              std::atof(argv[5]), widths);
      ddpp::barrier(comm);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "with_ddpp: %s\n", error.what());
    return 1;
  }
}
