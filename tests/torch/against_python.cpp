// SPDX-License-Identifier: BSL-1.0
// The same modules and the same steps as in generate_oracles.py, which says what PyTorch's own
// DistributedDataParallel makes of them.
#include <ddpp/adapters/torch.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/launch.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <doctest/doctest.h>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"
#include "oracles.hpp"

namespace {

namespace nn = torch::nn;

constexpr double rate = 0.125;
constexpr int steps = 6;

bool has(const std::string& name, const char* trait) { return name.find(trait) != std::string::npos; }

torch::Tensor pattern(at::IntArrayRef shape, int modulus, int factor, int offset, double scale) {
  torch::Tensor values = torch::empty(shape, torch::kDouble);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::int64_t number = (factor * i + offset) % modulus - modulus / 2;
    values.data_ptr<double>()[i] = static_cast<double>(number) / scale;
  }
  return values;
}

struct network : nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& x, bool used) = 0;
};

struct perceptron : network {
  nn::Linear a = register_module("a", nn::Linear(6, 8)), b = register_module("b", nn::Linear(8, 3));
  torch::Tensor forward(const torch::Tensor& x, bool) override { return b(torch::tanh(a(x))); }
};

struct convolution : network {
  nn::Conv2d conv = register_module("conv", nn::Conv2d(1, 4, 3));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(4));
  nn::Linear out = register_module("out", nn::Linear(4, 3));
  torch::Tensor forward(const torch::Tensor& x, bool) override {
    const torch::Tensor images = x.reshape({-1, 1, 2, 3}).repeat({1, 1, 2, 2});
    return out(torch::relu(norm(conv(images))).mean({2, 3}));
  }
};

struct shared : network {
  nn::Linear first = register_module("first", nn::Linear(6, 6)), second = register_module("second", first);
  nn::Linear out = register_module("out", nn::Linear(6, 3));
  torch::Tensor forward(const torch::Tensor& x, bool) override {
    return out(torch::tanh(second(torch::tanh(first(x)))));
  }
};

struct heads : network {
  nn::Linear body = register_module("body", nn::Linear(6, 5));
  nn::Linear always = register_module("always", nn::Linear(5, 3));
  nn::Linear sometimes = register_module("sometimes", nn::Linear(5, 3));
  nn::Linear never = register_module("never", nn::Linear(5, 3));
  torch::Tensor forward(const torch::Tensor& x, bool used) override {
    const torch::Tensor y = torch::tanh(body(x));
    return used ? always(y) + sometimes(y) : always(y);
  }
};

std::shared_ptr<network> network_named(const std::string& name) {
  if (has(name, "perceptron")) return std::make_shared<perceptron>();
  if (has(name, "convolution")) return std::make_shared<convolution>();
  if (has(name, "shared")) return std::make_shared<shared>();
  return std::make_shared<heads>();
}

std::vector<torch::Tensor> distinct(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> found;
  for (const torch::Tensor& each : tensors) {
    if (std::ranges::none_of(found, [&](const torch::Tensor& other) { return other.is_same(each); }))
      found.push_back(each);
  }
  return found;
}

std::shared_ptr<network> make_network(const std::string& name, int rank) {
  const torch::NoGradGuard no_grad;
  auto net = network_named(name);
  net->to(has(name, "half") ? torch::kFloat : torch::kDouble);
  int k = 0;
  for (torch::Tensor& w : distinct(net->parameters())) w.copy_(pattern(w.sizes(), 19, 3, 5 * k++ + rank, 16));
  k = 0;
  for (torch::Tensor& b : net->buffers()) {
    if (b.numel() > 1) b.fill_(k + rank + 1);  // not the number of batches
    ++k;
  }
  if (has(name, "frozen")) net->named_parameters()["a.bias"].set_requires_grad(false);
  return net;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const network& net) {
  std::vector<torch::Tensor> trained = distinct(net.parameters());
  std::erase_if(trained, [](const torch::Tensor& each) { return !each.requires_grad(); });
  if (has(name, "adam"))
    return std::make_unique<torch::optim::Adam>(trained, torch::optim::AdamOptions(rate));
  const auto options = torch::optim::SGDOptions(rate).momentum(has(name, "momentum") ? 0.5 : 0);
  return std::make_unique<torch::optim::SGD>(trained, options);
}

void zero_gradients(network& net, bool to_none) {
  for (torch::Tensor& each : net.parameters()) {
    if (to_none)
      each.mutable_grad() = torch::Tensor();
    else if (each.grad().defined())
      each.mutable_grad().detach_().zero_();  // as torch::optim::Optimizer::zero_grad
  }
}

/// Returns this rank's parameters and buffers.
template <class Hook, class C>
std::vector<double> train(C& comm, const std::string& name, Hook hook) {
  const int rank = comm.rank();
  const auto net = make_network(name, rank);
  const auto dtype = net->parameters().front().scalar_type();
  ddpp::torch_ddp ddp(comm, net,
                      {.bucket_cap_mb = 0.0002,
                       .find_unused_parameters = has(name, "unused"),
                       .gradient_as_bucket_view = has(name, "bucket_views"),
                       .static_graph = has(name, "static_graph")},
                      hook);
  EXPECT(ddp.bucket_assignment().size() > 1);
  const auto optimizer = make_optimizer(name, *net);

  const auto loss = [&](int step) {
    const int shift = 11 * step + 5 * rank;
    const torch::Tensor x = pattern({4, 6}, 17, 7, shift, 8).to(dtype);
    const torch::Tensor y = pattern({4, 3}, 5, 3, shift, 2).to(dtype);
    return (ddp.forward(x, !has(name, "static_graph") && (rank + step) % 2 == 0) - y).square().mean();
  };
  const auto loop = [&] {
    for (int step = 0; step < (has(name, "uneven") ? 2 + 2 * rank : steps); ++step) {
      const bool synchronised = !has(name, "accumulation") || step % 3 == 2;
      {
        std::optional<typename decltype(ddp)::no_sync_guard> accumulating;
        if (!synchronised) accumulating.emplace(ddp.no_sync());
        const torch::Tensor total = has(name, "twice") ? loss(step) + loss(step + 1) : loss(step);
        total.backward();
      }
      if (!synchronised) continue;
      optimizer->step();
      zero_gradients(*net, step % 2 == 0 || has(name, "unused"));
    }
  };
  if (has(name, "uneven"))
    ddp.join(loop);
  else
    loop();

  std::vector<torch::Tensor> tensors = distinct(net->parameters());
  for (const torch::Tensor& each : net->buffers()) tensors.push_back(each);
  std::vector<double> values;
  for (const torch::Tensor& each : tensors) {
    const torch::Tensor flat = each.detach().to(torch::kDouble).flatten();
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

/// 16-bit gradients: what is rounded before or after the sum, and in float, differs in the last of 11 bits.
double tolerance(const std::string& name) { return has(name, "half") ? 1e-4 : 1e-9; }

template <class C>
void compare(C& comm, const oracles::training& oracle) {
  const std::string name = oracle.name;
  const auto values = has(name, "half") ? train(comm, name, ddpp::hooks::fp16_compress{})
                                        : train(comm, name, ddpp::hooks::all_reduce{});
  const auto& expected = oracle.values.at(static_cast<std::size_t>(comm.rank()));
  EXPECT(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ::support::expect(std::abs(values[i] - expected[i]) <= tolerance(name),
                      name + ", " + std::to_string(comm.size()) + " ranks, rank " +
                          std::to_string(comm.rank()) + ": number " + std::to_string(i) + " is " +
                          std::to_string(values[i]) + ", not " + std::to_string(expected[i]));
  }
}

const int one_thread_per_rank = (torch::set_num_threads(1), 1);  // before any fork

}  // namespace

TEST_CASE("processes end with the parameters and buffers of PyTorch's DistributedDataParallel") {
  for (const oracles::training& each : oracles::trainings)
    ddpp::launch<ddpp::shm>(each.ranks, [&](auto& comm) { compare(comm, each); });
}

TEST_CASE("threads, too") {
  REQUIRE(oracles::trainings.size() > 20);
  for (const oracles::training& each : oracles::trainings)
    ddpp::launch<ddpp::threads>(each.ranks, [&](auto& comm) { compare(comm, each); });
}
