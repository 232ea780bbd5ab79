// SPDX-License-Identifier: BSL-1.0
// Trains a small network on Fashion-MNIST with several ranks. Whatever their number, each step sees the same
// images: those of one global batch, shared out, with gradients averaged over all of them.
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/hooks/power_sgd.hpp>
#include <ddpp/metrics.hpp>
#include <ddpp/sampler.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <variant>
#include <vector>

#include "fashion_mnist.hpp"
#include "on_ranks.hpp"
#include "perceptron.hpp"

#ifdef TRAIN_ON_MPI
#include <ddpp/backends/mpi.hpp>
#else
#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/visit_backend.hpp>
#endif

namespace {

/// visit_transport calls f(std::type_identity<T>{}) for the transport of that name.
#ifdef TRAIN_ON_MPI
const std::vector<std::string> transports{"mpi"};
template <class F>
void visit_transport(const std::string&, F f) {
  f(std::type_identity<ddpp::mpi>{});
}
#else
const std::vector<std::string> transports{"shm", "threads", "tcp", "hierarchical"};
template <class F>
void visit_transport(const std::string& name, F f) {
  ddpp::visit_backend<ddpp::hierarchical<ddpp::shm, ddpp::tcp>>(name, f);
}
#endif

struct settings {
  int ranks = 2;
  std::string transport = transports.front(), precision = "float", hook = "all_reduce";
  std::string data = "/usr/share/datasets/fashion-mnist";
  int epochs = 8;
  std::size_t batch = 128;  // global
  std::size_t hidden = 128;
  double rate = 0.03;
  std::uint32_t seed = 1;
};

struct images {
  image_set training, test;
};

/// A hook chosen at run time, and how much it has sent (what each rank puts into all-reduces).
struct chosen_hook {
  std::variant<ddpp::hooks::all_reduce, ddpp::hooks::fp16_compress<>, ddpp::hooks::bf16_compress<>,
               ddpp::hooks::power_sgd>
      hook;
  double bytes_sent = 0;

  explicit chosen_hook(const std::string& name) {
    if (name == "fp16_compress") hook = ddpp::hooks::fp16_compress{};
    if (name == "bf16_compress") hook = ddpp::hooks::bf16_compress{};
    if (name == "power_sgd") hook = ddpp::hooks::power_sgd({.rank = 2, .start_step = 10});
  }
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) {
    const auto count = static_cast<double>(bucket.count());
    const double size = bucket.visit([]<class T>(std::span<T>) { return static_cast<double>(sizeof(T)); });
    std::visit([&](auto& chosen) { chosen(comm, bucket); }, hook);
    if (const auto* const low_rank = std::get_if<ddpp::hooks::power_sgd>(&hook))
      bytes_sent = static_cast<double>(low_rank->elements_sent()) * size;
    else
      bytes_sent += count * (hook.index() == 0 ? size : 2);
  }
};

/// Fills columns with images scaled to 0..1, and labels with theirs.
template <class Matrix>
void load(const image_set& from, std::span<const std::size_t> indices, Matrix& samples,
          std::vector<std::uint8_t>& labels) {
  using scalar = typename Matrix::Scalar;
  samples.resize(static_cast<Eigen::Index>(from.pixels), static_cast<Eigen::Index>(indices.size()));
  labels.resize(indices.size());
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const Eigen::Map<const Eigen::Matrix<std::uint8_t, Eigen::Dynamic, 1>> image(
        from.image(indices[k]), static_cast<Eigen::Index>(from.pixels));
    samples.col(static_cast<Eigen::Index>(k)) = image.template cast<scalar>() / scalar{255};
    labels[k] = from.labels[indices[k]];
  }
}

/// One line that moves, on terminals only.
class progress_line {
 public:
  explicit progress_line(bool speaks) : shown_(speaks && isatty(STDOUT_FILENO) != 0) {}
  void show(int epoch, std::size_t step, std::size_t steps, double loss) {
    if (!shown_ || step * 100 / steps == percent_) return;
    percent_ = step * 100 / steps;
    std::printf("\r%5d  %3zu %%  loss %.4f ", epoch, percent_, loss);
    std::fflush(stdout);
  }
  void clear() {
    if (shown_) std::printf("\r\33[K");
  }

 private:
  bool shown_;
  std::size_t percent_ = 101;
};

template <class Scalar, class C>
class trainer {
 public:
  trainer(C& comm, const images& data, const settings& chosen)
      : comm_(comm),
        data_(data),
        chosen_(chosen),
        model_(static_cast<Eigen::Index>(data.training.pixels), static_cast<Eigen::Index>(chosen.hidden), 10,
               chosen.seed + static_cast<std::uint32_t>(comm.rank())),  // rank 0's counts
        ddp_(comm,
             {ddpp::parameter("output.bias", model_.output.bias, model_.output.bias_gradient),
              ddpp::parameter("output.weights", model_.output.weights, model_.output.weights_gradient),
              ddpp::parameter("hidden.bias", model_.hidden.bias, model_.hidden.bias_gradient),
              ddpp::parameter("hidden.weights", model_.hidden.weights, model_.hidden.weights_gradient)},
             {.bucket_cap_mb = 0.25}, chosen_hook(chosen.hook)),
        sampler_(comm, data.training.size(), {.seed = chosen.seed, .padding = ddpp::sampler_padding::none}),
        progress_(comm.rank() == 0) {}

  void run() {
    if (comm_.rank() == 0) {
      std::printf("epoch            loss  accuracy  images/s  waiting\n");
      std::fflush(stdout);
    }
    for (int epoch = 1; epoch <= chosen_.epochs; ++epoch) {
      const auto begin = std::chrono::steady_clock::now();
      const auto waited = ddp_.statistics().waiting;
      const double loss = train_epoch(epoch);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      const std::chrono::duration<double> waiting = ddp_.statistics().waiting - waited;
      const double correct = test();
      if (comm_.rank() != 0) continue;
      progress_.clear();
      constexpr int digits = sizeof(Scalar) == sizeof(double) ? 12 : 6;
      std::printf("%5d  %14.*f  %6.2f %%  %8.0f  %5.1f %%\n", epoch, digits, loss, 100 * correct,
                  static_cast<double>(data_.training.size()) / time.count(), 100 * waiting / time);
      std::fflush(stdout);
    }
    if (comm_.rank() == 0 && comm_.size() > 1) {
      const auto steps = static_cast<double>(ddp_.statistics().steps);
      std::printf("gradients: %.1f KB per step and rank (%s)\n", ddp_.hook().bytes_sent / steps / 1000,
                  chosen_.hook.c_str());
    }
  }

 private:
  /// The mean loss over all images. Of a global batch [first, last) of the epoch's order this rank has every
  /// size()-th from its own rank on: the next of its sampler's.
  double train_epoch(int epoch) {
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
    const std::vector<std::size_t> mine(sampler_.begin(), sampler_.end());
    const auto rank = static_cast<std::size_t>(comm_.rank()), ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t all = data_.training.size(), batch = std::min(chosen_.batch, all);
    const auto mine_before = [&](std::size_t position) { return (position + ranks - 1 - rank) / ranks; };
    ddpp::metrics::mean loss;
    double seen_loss = 0, seen = 0;
    for (std::size_t first = 0; first < all; first += batch) {
      const std::size_t last = std::min(first + batch, all), begin = mine_before(first),
                        end = mine_before(last);
      const auto share = std::span(mine).subspan(begin, end - begin);
      load(data_.training, share, samples_, labels_);
      if ((last - first) % ranks == 0)
        ddp_.prepare();
      else
        ddp_.prepare({.weight = static_cast<double>(share.size())});  // the shares are not equal
      model_.forward(samples_);
      const double sum = model_.backward(samples_, labels_, [&](std::size_t i) { ddp_.mark_ready(i); });
      ddp_.wait();
      model_.step(static_cast<Scalar>(chosen_.rate), Scalar(0.9));
      if (!share.empty())
        loss.update(sum / static_cast<double>(share.size()), static_cast<double>(share.size()));
      seen_loss += sum;
      seen += static_cast<double>(share.size());
      progress_.show(epoch, last, all, seen_loss / std::max(seen, 1.0));
    }
    return loss.compute(comm_);
  }

  /// The share of test images that are recognised, each looked at by one rank.
  double test() {
    ddpp::distributed_sampler sampler(comm_, data_.test.size(),
                                      {.shuffle = false, .padding = ddpp::sampler_padding::none});
    const std::vector<std::size_t> mine(sampler.begin(), sampler.end());
    constexpr std::size_t chunk = 500;
    ddpp::metrics::accuracy accuracy;
    for (std::size_t first = 0; first < mine.size(); first += chunk) {
      load(data_.test, std::span(mine).subspan(first, std::min(chunk, mine.size() - first)), samples_,
           labels_);
      const auto& scores = model_.forward(samples_);
      for (Eigen::Index k = 0; k < scores.cols(); ++k) {
        Eigen::Index best = 0;
        scores.col(k).maxCoeff(&best);
        accuracy.update(best, labels_[static_cast<std::size_t>(k)]);
      }
    }
    return accuracy.compute(comm_);
  }

  C& comm_;
  const images& data_;
  const settings& chosen_;
  perceptron<Scalar> model_;
  ddpp::distributed_data_parallel<C, chosen_hook> ddp_;
  ddpp::distributed_sampler sampler_;
  progress_line progress_;
  typename perceptron<Scalar>::matrix samples_;
  std::vector<std::uint8_t> labels_;
};

void run(const images& data, const settings& chosen) {
  visit_transport(chosen.transport, [&](auto tag) {
    using transport = typename decltype(tag)::type;
    on_ranks<transport>(chosen.ranks, [&](auto& comm) {
      using comm_type = std::remove_reference_t<decltype(comm)>;
      if (chosen.precision == "float")
        trainer<float, comm_type>(comm, data, chosen).run();
      else
        trainer<double, comm_type>(comm, data, chosen).run();
    });
  });
}

/// Throws CLI::ParseError, ddpp::init_error or ddpp::usage_error.
settings parse(CLI::App& app, int argc, char** argv) {
  settings chosen;
  app.add_option("--ranks", chosen.ranks, "how many (unless a launcher starts them)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--transport", chosen.transport, "between ranks")
      ->check(CLI::IsMember(transports))
      ->capture_default_str();
  app.add_option("--epochs", chosen.epochs, "passes over the images")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--batch", chosen.batch, "images per step, all ranks together")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--hidden", chosen.hidden, "units of the hidden layer")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option("--rate", chosen.rate, "learning rate, above 0 and up to 10")->capture_default_str();
  app.add_option("--precision", chosen.precision, "of the network")
      ->check(CLI::IsMember({"float", "double"}))
      ->capture_default_str();
  app.add_option("--hook", chosen.hook, "how gradients travel")
      ->check(CLI::IsMember({"all_reduce", "fp16_compress", "bf16_compress", "power_sgd"}))
      ->capture_default_str();
  app.add_option("--data", chosen.data, "directory with the four .gz files")->capture_default_str();
  app.add_option("--seed", chosen.seed, "of weights and order")->capture_default_str();
  app.parse(argc, argv);

  if (!(chosen.rate > 0 && chosen.rate <= 10))
    throw ddpp::usage_error("--rate is a number above 0 and up to 10");
  const bool launched = ddpp::launched_ranks() > 0;
  if (launched && app.count("--ranks") > 0) {
    throw ddpp::usage_error("--ranks was given, but a launcher has started this rank");
  }
  if (launched && chosen.transport == "threads") {
    throw ddpp::usage_error(
        "--transport threads joins ranks of one process, but a launcher has started this one as a process");
  }
  const int ranks = number_of_ranks(chosen.ranks);
  if (chosen.batch < static_cast<std::size_t>(ranks)) {
    throw ddpp::usage_error("--batch " + std::to_string(chosen.batch) +
                            " is less than one image for each of " + std::to_string(ranks) + " ranks");
  }
  return chosen;
}

int bad_input(const char* what) {
  std::fprintf(stderr, "train_fashion_mnist: %s\n", what);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Eigen::setNbThreads(1);
  CLI::App app("Trains a network with one hidden layer on Fashion-MNIST, data-parallel.");
  settings chosen;
  images data;
  try {
    chosen = parse(app, argc, argv);
    data = {read_image_set(chosen.data, "train"), read_image_set(chosen.data, "t10k")};
    if (data.training.pixels != data.test.pixels)
      throw std::runtime_error("training and test images differ in size");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return bad_input(error.what());
  } catch (const std::exception& error) {
    return bad_input(error.what());
  }
  try {
    run(data, chosen);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_fashion_mnist: %s\n", error.what());
    return 1;
  }
}
