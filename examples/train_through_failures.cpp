// SPDX-License-Identifier: BSL-1.0
// Training that goes on when a rank runs out of memory (all halve the batch) and when one is killed (the
// others shrink), in the same processes, from the last step that all had finished. See docs/failure.md.
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/metrics.hpp>
#include <ddpp/sampler.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/visit_backend.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "fashion_mnist.hpp"
#include "perceptron.hpp"

namespace {

struct settings {
  int ranks = 4, epochs = 6;
  int out_of_memory_rank = 1, killed_rank = 0;
  std::string transport = "shm", data = "/usr/share/datasets/fashion-mnist";
};

/// All that a step changes: what is kept at a commit, and gone back to after a failure.
struct training {
  perceptron<float> model;
  int epoch = 1;
  std::size_t first = 0;    // of the images of the epoch's order that have not been seen
  std::size_t batch = 256;  // global
  double loss = 0;          // summed over the epoch's images, those of all ranks, up to the last commit
};

class trainer {
 public:
  trainer(const image_set& images, const settings& chosen, int origin)
      : images_(images),
        chosen_(chosen),
        origin_(origin),
        now_{perceptron<float>(static_cast<Eigen::Index>(images.pixels), 64, 10, 1)},
        committed_(now_) {}

  template <class C>
  void run(C& comm) {
    for (bool finished = false; !finished;) {
      bool out_of_memory = false;
      try {
        now_ = committed_;
        loss_here_ = 0;
        std::vector<std::size_t> batch{now_.batch};
        ddpp::all_reduce(comm, batch, ddpp::min);  // not all may know of all that went wrong
        now_.batch = batch[0];
        train(comm);
        finished = comm.agree(true);
      } catch (const std::bad_alloc&) {
        comm.revoke("out of memory");
        out_of_memory = true;
      } catch (const ddpp::revoked_error&) {
        out_of_memory = true;
      } catch (const ddpp::peer_lost&) {
      }
      if (finished) break;
      comm = comm.shrink();  // the members that are left: all of them, if nobody has died
      if (out_of_memory) committed_.batch /= 2;
      if (comm.rank() == 0) {
        std::printf("%s: %d ranks go on from epoch %d, image %zu\n",
                    out_of_memory ? "out of memory" : "a rank was lost", comm.size(), committed_.epoch,
                    committed_.first);
        std::fflush(stdout);
      }
    }
  }

 private:
  template <class C>
  void train(C& comm) {
    ddpp::distributed_data_parallel ddp(
        comm,
        {ddpp::parameter("output.bias", now_.model.output.bias, now_.model.output.bias_gradient),
         ddpp::parameter("output.weights", now_.model.output.weights, now_.model.output.weights_gradient),
         ddpp::parameter("hidden.bias", now_.model.hidden.bias, now_.model.hidden.bias_gradient),
         ddpp::parameter("hidden.weights", now_.model.hidden.weights, now_.model.hidden.weights_gradient)});
    ddpp::distributed_sampler sampler(comm, images_.size(), {.padding = ddpp::sampler_padding::none});
    for (int steps = 1; now_.epoch <= chosen_.epochs; ++steps) {
      sampler.set_epoch(static_cast<std::uint64_t>(now_.epoch));
      const std::vector<std::size_t> mine(sampler.begin(), sampler.end());
      const std::size_t last = std::min(now_.first + now_.batch, images_.size());
      step(comm, ddp, mine, last);
      now_.first = last;
      if (last == images_.size()) finish_epoch(comm);
      if (steps % 20 == 0) commit(comm);
    }
  }

  /// On the images [now_.first, last) of the epoch's order, of which this rank has every size()-th.
  template <class C, class Ddp>
  void step(C& comm, Ddp& ddp, const std::vector<std::size_t>& mine, std::size_t last) {
    const auto rank = static_cast<std::size_t>(comm.rank()), ranks = static_cast<std::size_t>(comm.size());
    const auto before = [&](std::size_t position) { return (position + ranks - 1 - rank) / ranks; };
    const std::size_t begin = before(now_.first), count = before(last) - begin;
    samples_.resize(static_cast<Eigen::Index>(images_.pixels), static_cast<Eigen::Index>(count));
    labels_.resize(count);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t index = mine[begin + k];
      const Eigen::Map<const Eigen::Matrix<std::uint8_t, Eigen::Dynamic, 1>> image(
          images_.image(index), static_cast<Eigen::Index>(images_.pixels));
      samples_.col(static_cast<Eigen::Index>(k)) = image.cast<float>() / 255.0f;
      labels_[k] = images_.labels[index];
    }
    ddp.prepare({.weight = static_cast<double>(count)});
    now_.model.forward(samples_);
    misfortune();
    loss_here_ += now_.model.backward(samples_, labels_, [&](std::size_t i) { ddp.mark_ready(i); });
    ddp.wait();
    now_.model.step(0.03f, 0.9f);
  }

  /// All ranks do, or none.
  template <class C>
  void commit(C& comm) {
    collect_loss(comm);
    if (comm.agree(true)) committed_ = now_;
  }

  template <class C>
  void collect_loss(C& comm) {
    std::vector<double> loss{loss_here_};
    ddpp::all_reduce(comm, loss);
    now_.loss += loss[0];
    loss_here_ = 0;
  }

  template <class C>
  void finish_epoch(C& comm) {
    collect_loss(comm);
    if (comm.rank() == 0) {
      std::printf("epoch %d: loss %.4f (%d ranks, batch %zu)\n", now_.epoch,
                  now_.loss / static_cast<double>(images_.size()), comm.size(), now_.batch);
      std::fflush(stdout);
    }
    ++now_.epoch;
    now_.first = 0;
    now_.loss = 0;
  }

  /// What this example is about, in the middle of epochs 2 and 4.
  void misfortune() {
    if (now_.first < images_.size() / 2) return;
    if (now_.epoch == 2 && origin_ == chosen_.out_of_memory_rank && now_.batch == 256) throw std::bad_alloc();
    if (now_.epoch == 4 && origin_ == chosen_.killed_rank) std::raise(SIGKILL);
  }

  const image_set& images_;
  const settings& chosen_;
  const int origin_;
  training now_, committed_;
  double loss_here_ = 0;  // of this rank's images since the last commit
  perceptron<float>::matrix samples_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace

int main(int argc, char** argv) {
  Eigen::setNbThreads(1);
  settings chosen;
  CLI::App app("Trains on Fashion-MNIST through a rank that runs out of memory and one that is killed.");
  app.add_option("--ranks", chosen.ranks)->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--epochs", chosen.epochs)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--transport", chosen.transport)
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  app.add_option("--out-of-memory", chosen.out_of_memory_rank, "rank, in epoch 2; -1: none")
      ->capture_default_str();
  app.add_option("--killed", chosen.killed_rank, "rank, in epoch 4; -1: none")->capture_default_str();
  app.add_option("--data", chosen.data, "directory with the four .gz files")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const image_set images = read_image_set(chosen.data, "train");
    ddpp::visit_backend(chosen.transport, [&](auto tag) {
      using transport = typename decltype(tag)::type;
      const auto train = [&] {
        auto comm = ddpp::init<transport>();
        trainer(images, chosen, comm.rank()).run(comm);
      };
      if (ddpp::launched_ranks() > 0) return train();  // of which most end the job when a rank is killed
      // A rank that fails ends the job after `grace`, unless the others have ended before: here they go on.
      ddpp::spawn(chosen.ranks, [&](int) { train(); }, {.grace = std::chrono::hours(24)});
    });
  } catch (const ddpp::spawn_error& e) {
    std::printf("(%s)\n", e.what());
    return e.rank() == chosen.killed_rank && e.signal() == SIGKILL ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_through_failures: %s\n", e.what());
    return 2;
  }
}
