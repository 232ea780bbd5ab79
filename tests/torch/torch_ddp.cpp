// SPDX-License-Identifier: BSL-1.0
// What torch_ddp promises beside the averages, and the collectives of tensors.
#include <ddpp/adapters/torch.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/hooks/power_sgd.hpp>
#include <ddpp/launch.hpp>
#ifdef DDPP_TEST_ON_DOUBLE
#include <ddpp/backends/nccl.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"

namespace {

namespace nn = torch::nn;
using ddpp::reducer_error;
using ddpp::usage_error;

const int one_thread_per_rank = (torch::set_num_threads(1), 1);  // before any fork

/// The text of the Error that f throws.
template <class Error, class F>
std::string text_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::logic_error("nothing was thrown");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// forward() is the sum of two products: the gradient of `a` is x, that of `b` is 2 x.
struct products_impl : nn::Module {
  torch::Tensor a = register_parameter("a", torch::ones({3}));
  torch::Tensor b = register_parameter("b", torch::ones({3}));
  torch::Tensor forward(const torch::Tensor& x) { return (a * x).sum() + (2 * b * x).sum(); }
};
TORCH_MODULE_IMPL(products, products_impl);

torch::Tensor filled(double value) { return torch::full({3}, value); }

bool holds(const torch::Tensor& tensor, double value) {
  return tensor.defined() && tensor.eq(torch::full_like(tensor, value)).all().item<bool>();
}

/// 1, 2, ... on ranks 0, 1, ...
template <class C>
torch::Tensor input(const C& comm) {
  return filled(comm.rank() + 1);
}

/// Adds nothing, and throws in the backward pass where it is told to.
struct throws_in_backward : torch::autograd::Function<throws_in_backward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               bool throws) {
    context->saved_data["throws"] = throws;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["throws"].toBool()) throw std::runtime_error("no gradient today");
    return {gradients[0], torch::Tensor()};
  }
};

/// A module made of functions.
struct custom : nn::Module {
  std::function<torch::Tensor(custom&, const torch::Tensor&)> f;
  torch::Tensor forward(const torch::Tensor& x) { return f(*this, x); }
  torch::Tensor& add(const std::string& name, double value = 1) {
    return register_parameter(name, filled(value));
  }
};

template <class F>
std::shared_ptr<custom> make_custom(const std::vector<std::string>& names, F f) {
  auto module = std::make_shared<custom>();
  for (const std::string& name : names) module->add(name);
  module->f = [f](custom& self, const torch::Tensor& x) { return f(self.named_parameters(), x); };
  return module;
}
using named = torch::OrderedDict<std::string, torch::Tensor>;

template <class T, class F>
void on_ranks(int ranks, F f) {
  ddpp::launch<T>(ranks, f);
}

}  // namespace

TEST_CASE("gradients are averages after backward(), and the engine needs no other call") {
  on_ranks<ddpp::shm>(3, [](auto& comm) {
    for (const bool views : {false, true}) {
      products module;
      ddpp::torch_ddp ddp(comm, module, {.bucket_cap_mb = 1e-6, .gradient_as_bucket_view = views});
      EXPECT(ddp.bucket_assignment().size() == 2);
      for (int step = 0; step < 4; ++step) {
        ddp(input(comm)).backward();
        EXPECT(holds(module->a.grad(), 2) && holds(module->b.grad(), 4));
        for (torch::Tensor& p : module->parameters()) {
          if (step % 2 == 0)
            p.mutable_grad() = torch::Tensor();
          else
            p.mutable_grad().detach_().zero_();
        }
      }
      ddp.forward(input(comm)).backward();
      ddp.forward(input(comm))
          .backward();  // nobody has set them to zero: the average of average and gradient
      EXPECT(holds(module->a.grad(), 4));
      EXPECT(ddp.statistics().steps == 6);
    }
  });
}

TEST_CASE("bucket views: gradients lie in buckets, wherever those move, and outlive them") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    auto module = make_custom({"first", "second", "third"}, [](const named& p, const torch::Tensor& x) {
      return ((p["second"] * x).tanh() * (p["third"] + p["first"])).sum();
    });
    auto kept = std::vector<torch::Tensor>();
    {
      ddpp::torch_ddp ddp(comm, module, {.bucket_cap_mb = 1e-5, .gradient_as_bucket_view = true});
      const auto before = ddp.bucket_assignment();
      ddp.forward(input(comm)).backward();
      for (const auto& each : module->parameters()) kept.push_back(each.grad());
      const auto* const first_place = kept[0].data_ptr();
      const auto value = kept[2].clone();
      for (auto& each : kept) each.zero_();
      ddp.forward(input(comm));  // buckets are laid out anew
      EXPECT(ddp.bucket_assignment() != before);
      EXPECT(kept[0].data_ptr() != first_place);
      EXPECT(module->parameters()[0].grad().is_same(kept[0]));
      ddp.forward(input(comm)).backward();
      EXPECT(torch::equal(kept[2], value));  // written where the kept tensor is: no copy
      const auto* const place = kept[0].data_ptr();
      module->parameters()[0].mutable_grad() = filled(100);  // somebody's own
      ddp.forward(input(comm)).backward();
      EXPECT(module->parameters()[0].grad().data_ptr() == place);
      EXPECT(module->parameters()[0].grad().ge(50).all().template item<bool>());
    }
    const auto value = module->parameters()[1].grad().clone();
    for (auto& each : kept) each.add_(1);  // the memory is the gradients' own now
    EXPECT(torch::equal(module->parameters()[1].grad(), value + 1));
  });
}

TEST_CASE("a gradient that never comes is an error at once, and names the parameter") {
  on_ranks<ddpp::shm>(2, [](auto& comm) {
    auto module = make_custom({"used", "left_out"}, [](const named& p, const torch::Tensor& x) {
      return (x[0].template item<float>() > 0 ? p["used"] * x + p["left_out"] : p["used"] * x).sum();
    });
    ddpp::torch_ddp ddp(comm, module, {.bucket_cap_mb = 1e-6});
    const auto text = text_of<reducer_error>([&] { ddp.forward(filled(-1)).backward(); });
    EXPECT(contains(text, "no gradient came for parameter 1 (\"left_out\")"));
    module->zero_grad();
    ddp.forward(input(comm)).backward();  // all ranks made the same mistake: they go on
    EXPECT(holds(module->parameters()[0].grad(), 1.5));
  });
}

TEST_CASE("unused parameters") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    for (const bool views : {false, true}) {
      auto module = make_custom({"all", "some", "none"}, [&](const named& p, const torch::Tensor& x) {
        return ((comm.rank() == 0 ? p["all"] + p["some"] : p["all"]) * x).sum();
      });
      auto parameters = module->parameters();
      ddpp::torch_ddp ddp(comm, module, {.find_unused_parameters = true, .gradient_as_bucket_view = views});
      for (int step = 0; step < 3; ++step) {
        ddp.forward(input(comm)).backward();
        EXPECT(holds(parameters[0].grad(), 1.5) && holds(parameters[1].grad(), 0.5));
        EXPECT(!parameters[2].grad().defined());
        EXPECT(ddp.globally_unused() == std::vector<std::size_t>{2});
        for (auto& each : parameters) each.mutable_grad() = torch::Tensor();
      }
      // A rank may use none at all.
      const bool reaches = comm.rank() == 0;
      const auto loss = ddp.forward(input(comm));
      if (reaches)
        loss.backward();
      else
        ddp.wait();
      EXPECT(holds(parameters[0].grad(), 0.5));
    }
  });
}

TEST_CASE("static graph: a change is an error that names the parameter") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    bool changes = false;
    auto module = make_custom({"always", "never"}, [&](const named& p, const torch::Tensor& x) {
      return ((changes ? p["always"] + p["never"] : p["always"]) * x).sum();
    });
    ddpp::torch_ddp ddp(comm, module, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      module->zero_grad();
      for (auto& each : module->parameters()) each.mutable_grad() = torch::Tensor();
      ddp.forward(input(comm)).backward();
      EXPECT(holds(module->parameters()[0].grad(), 1.5) && !module->parameters()[1].grad().defined());
    }
    changes = true;
    EXPECT(contains(text_of<reducer_error>([&] { ddp.forward(input(comm)).backward(); }), "\"never\""));
    changes = false;
    module->parameters()[0].mutable_grad() = torch::Tensor();
    ddp.forward(input(comm)).backward();
    EXPECT(holds(module->parameters()[0].grad(), 1.5));
  });
}

TEST_CASE("a module that is not what it was") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    struct grows : products_impl {
      void grow() { register_parameter("c", torch::ones({1})); }
      void swap() { parameters_["b"] = torch::ones({3}, torch::requires_grad()); }
    };
    auto module = std::make_shared<grows>();
    module->a.set_requires_grad(false);
    const auto refusal = [&](auto&& mistake) {
      ddpp::torch_ddp ddp(comm, module);
      mistake();
      return text_of<reducer_error>([&] { ddp.forward(input(comm)); });
    };
    EXPECT(contains(refusal([&] { module->b.set_data(torch::ones({3})); }), "(\"b\") has moved"));
    EXPECT(contains(refusal([&] { module->swap(); }), "(\"b\") has been replaced"));
    EXPECT(contains(refusal([&] { module->a.set_requires_grad(true); }), "(\"a\") has been unfrozen"));
    EXPECT(contains(refusal([&] { module->grow(); }), "\"c\" has been added"));
    // A member that refers to another tensor than the module has: its gradient never comes.
    auto plain = std::make_shared<products_impl>();
    ddpp::torch_ddp ddp(comm, plain);
    plain->b = torch::ones({3}, torch::requires_grad());
    EXPECT(contains(text_of<reducer_error>([&] { ddp.forward(input(comm)).backward(); }), "\"b\""));
  });
}

TEST_CASE("modules that cannot be trained are refused on all ranks") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    const auto refusal = [&]<class Error>(std::type_identity<Error>, const torch::Tensor& tensor,
                                          bool is_buffer) {
      struct holder : nn::Module {
        torch::Tensor forward(const torch::Tensor& x) { return x; }
      };
      auto module = std::make_shared<holder>();
      if (is_buffer)
        module->register_buffer("state", tensor);
      else
        module->register_parameter("weight", tensor, tensor.is_floating_point() || tensor.is_complex());
      return text_of<Error>([&] { ddpp::torch_ddp ddp(comm, module); });
    };
    const std::type_identity<usage_error> usage;
    const auto meta = torch::empty({2}, torch::device(torch::kMeta));
    EXPECT(contains(refusal(usage, meta, false), "\"weight\" is on meta"));
    EXPECT(contains(refusal(usage, meta, true), "\"state\" is on meta"));
    EXPECT(contains(refusal(usage, torch::zeros({2}).expand({3, 2}), true), "has gaps"));
    EXPECT(contains(refusal(usage, torch::zeros({2}, torch::kLong), false), "is of Long"));
    EXPECT(contains(refusal(usage, torch::zeros({2}, torch::kComplexFloat), false), "is of ComplexFloat"));
    const auto one = torch::zeros({2, comm.rank() == 0 ? 2 : 3});
    EXPECT(contains(refusal(std::type_identity<reducer_error>{}, one, false), "6 float on rank 1"));
    auto other_order = torch::zeros({1, 2, 3, 3});
    if (comm.rank() == 1) other_order = other_order.contiguous(torch::MemoryFormat::ChannelsLast);
    EXPECT(contains(refusal(std::type_identity<reducer_error>{}, other_order, false), "strides"));

    auto twins = std::make_shared<products_impl>();
    twins->b.set_data(twins->a.data());
    EXPECT(contains(text_of<usage_error>([&] { ddpp::torch_ddp ddp(comm, twins); }), "\"a\" and \"b\""));
    twins->a.set_requires_grad(false), twins->b.set_data(torch::ones({3})), twins->b.set_requires_grad(false);
    EXPECT(contains(text_of<usage_error>([&] { ddpp::torch_ddp ddp(comm, twins); }), "nothing to reduce"));

    auto sparse = std::make_shared<nn::EmbeddingImpl>(nn::EmbeddingOptions(4, 2).sparse(true));
    std::string text;
    try {
      ddpp::torch_ddp ddp(comm, sparse);
      ddp.forward(torch::tensor({1, 2})).sum().backward();
    } catch (const std::exception& error) {
      text = error.what();
    }
    EXPECT(contains(text, "is sparse") || contains(text, "an exception ended a backward pass"));
  });
}

TEST_CASE("channels last, 16-bit and mixed parameters") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    for (const bool views : {false, true}) {
      struct mixed : nn::Module {
        torch::Tensor w = register_parameter(
            "w", torch::arange(12.0).reshape({1, 3, 2, 2}).contiguous(torch::MemoryFormat::ChannelsLast));
        torch::Tensor h = register_parameter("h", torch::ones({5}, torch::kBFloat16));
        torch::Tensor d = register_parameter("d", torch::ones({2}, torch::kDouble));
        torch::Tensor none = register_parameter("none", torch::ones({0}));
        torch::Tensor forward(const torch::Tensor& x) {
          return (w * x).sum() + h.to(torch::kFloat).sum() * x.sum() + d.sum().to(torch::kFloat) * x.sum() +
                 none.sum();
        }
      };
      auto module = std::make_shared<mixed>();
      ddpp::torch_ddp ddp(comm, module, {.gradient_as_bucket_view = views});
      for (int step = 0; step < 3; ++step) {
        module->zero_grad();
        const auto x = torch::arange(12.0).reshape({1, 3, 2, 2});
        ddp.forward(comm.rank() == 0 ? x : -3 * x).backward();
        EXPECT(torch::equal(module->w.grad(), -x));
        EXPECT(module->w.grad().strides() == module->w.strides());
        EXPECT(holds(module->h.grad(), -66) && holds(module->d.grad(), -66));
      }
    }
  });
}

TEST_CASE("forward without backward, with gradients on one rank only, and without") {
  on_ranks<ddpp::shm>(2, [](auto& comm) {
    struct counting : products_impl {
      torch::Tensor state = register_buffer("state", torch::zeros({1}));
    };
    auto module = std::make_shared<products_impl>();
    {
      ddpp::torch_ddp ddp(comm, module);
      if (comm.rank() == 0) ddp.forward(input(comm)), ddp.forward(input(comm));
      ddp.forward(input(comm)).backward();
      EXPECT(holds(module->a.grad(), 1.5));
      ddp.forward(input(comm)).backward();  // with the buckets laid out anew
      if (comm.rank() == 1) ddp.forward(input(comm));
    }
    ddpp::barrier(comm);  // rank 1's begun step was nobody's business

    auto with_buffer = std::make_shared<counting>();
    with_buffer->state.fill_(comm.rank() + 1);
    ddpp::torch_ddp ddp(comm, with_buffer);
    EXPECT(holds(with_buffer->state, 1));
    with_buffer->state.fill_(comm.rank() + 1);
    {
      const torch::NoGradGuard evaluating;
      ddp.forward(input(comm)), EXPECT(holds(with_buffer->state, 1));
    }
    with_buffer->state.fill_(comm.rank() + 1);
    ddp.forward(input(comm)).backward();
    with_buffer->state.fill_(comm.rank() + 1);
    ddp.forward(input(comm)), EXPECT(holds(with_buffer->state, 1));
    ddpp::torch_ddp apart(comm, with_buffer, {.broadcast_buffers = false});
    with_buffer->state.fill_(comm.rank() + 1);
    apart.forward(input(comm)).backward();
    EXPECT(holds(with_buffer->state, comm.rank() + 1));
  });
}

TEST_CASE("what goes past torch_ddp is local") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    auto module = std::make_shared<products_impl>();
    std::optional<ddpp::torch_ddp<std::remove_reference_t<decltype(comm)>, products_impl>> ddp;
    ddp.emplace(comm, module);
    module->forward(input(comm)).backward();
    EXPECT(holds(module->a.grad(), comm.rank() + 1));
    ddp->module()->zero_grad();
    module->a.mutable_grad() = module->b.mutable_grad() = torch::Tensor();
    {
      auto guard = ddp->no_sync();
      ddp->forward(input(comm)).backward();
      ddp->forward(input(comm)).backward();
      EXPECT(holds(module->a.grad(), 2 * (comm.rank() + 1)));
    }
    ddp->forward(input(comm)).backward();
    EXPECT(holds(module->a.grad(), 4.5));
    const auto pending = ddp->forward(input(comm));
    ddp.reset();
    module->a.mutable_grad() = torch::Tensor();
    pending.backward();  // its torch_ddp is gone: nobody is called
    EXPECT(holds(module->a.grad(), comm.rank() + 1));
  });
}

TEST_CASE("weights, and samples that only one rank has") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    auto module = std::make_shared<products_impl>();
    ddpp::torch_ddp ddp(comm, module);
    ddp.prepare({.weight = comm.rank() == 0 ? 3.0 : 1.0});
    ddp.forward(input(comm)).backward();
    EXPECT(holds(module->a.grad(), 1.25));
  });
}

TEST_CASE("hooks get the module's matrices") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    struct look {
      std::vector<std::size_t> rows = {};
      void operator()(std::remove_reference_t<decltype(comm)>& inside, ddpp::gradient_bucket& bucket) {
        rows.assign(bucket.rows().begin(), bucket.rows().end());
        ddpp::hooks::all_reduce{}(inside, bucket);
      }
    };
    auto layer = std::make_shared<nn::Conv2dImpl>(3, 4, 2);
    ddpp::torch_ddp ddp(comm, layer, {}, look{});
    ddp.forward(torch::ones({1, 3, 2, 2})).sum().backward();
    auto rows = ddp.hook().rows;
    std::ranges::sort(rows);
    EXPECT(rows == std::vector<std::size_t>{1, 4});
    ddpp::torch_ddp low_rank(comm, layer, {.gradient_as_bucket_view = true},
                             ddpp::hooks::power_sgd({.rank = 1, .start_step = 2}));
    for (int step = 0; step < 4; ++step) {
      layer->zero_grad();
      low_rank.forward(torch::full({1, 3, 2, 2}, comm.rank() + 1.0)).sum().backward();
      EXPECT(torch::allclose(layer->weight.grad(), torch::full_like(layer->weight, 1.5)));  // it is of rank 1
    }
  });
}

TEST_CASE("join: ranks with fewer batches, and gradients of those that wait") {
  on_ranks<ddpp::threads>(3, [](auto& comm) {
    for (const bool views : {false, true}) {
      auto module = make_custom({"a", "b", "c"}, [](const named& p, const torch::Tensor& x) {
        return ((p["b"] * x).tanh() * (p["c"] + p["a"])).sum();
      });
      ddpp::torch_ddp ddp(comm, module, {.bucket_cap_mb = 1e-5, .gradient_as_bucket_view = views});
      torch::optim::SGD optimizer(module->parameters(), 0.1);
      ddp.join([&] {
        for (int step = 0; step < comm.rank(); ++step) {
          optimizer.zero_grad();
          ddp.forward(input(comm)).backward();
          optimizer.step();
        }
      });
      std::vector<float> mine, everyone(9 * 3);
      for (const auto& each : module->parameters()) {
        const auto values = ddpp::tensor_span<float>(each);
        mine.insert(mine.end(), values.begin(), values.end());
        if (each.grad().defined()) each.grad().add_(1);  // is memory that still is
      }
      ddpp::all_gather(comm, mine, everyone);
      for (std::size_t i = 0; i < everyone.size(); ++i) EXPECT(everyone[i] == mine[i % 9]);
      EXPECT(mine[0] != 1);
    }
  });
}

// --- failures: nobody waits for what will not come ---

namespace {

struct fails_on_rank_2 {
  void operator()(auto& inside, ddpp::gradient_bucket& bucket) {
    if (inside.rank() == 2) throw std::runtime_error("no hook today");
    ddpp::hooks::all_reduce{}(inside, bucket);
  }
};

/// What rank 1 gets when rank 0's backward pass throws, the group being caught in `step`.
template <class T>
void backward_throws(bool views, bool unused) {
  const std::string text = text_of<std::exception>([&] {
    on_ranks<T>(2, [&](auto& comm) {
      bool throws = false;
      auto module = make_custom({"a", "b"}, [&](const named& p, const torch::Tensor& x) {
        return (throws_in_backward::apply(p["a"] * x, throws && comm.rank() == 0) * p["b"]).sum();
      });
      ddpp::torch_ddp ddp(
          comm, module,
          {.bucket_cap_mb = 1e-6, .find_unused_parameters = unused, .gradient_as_bucket_view = views});
      ddp.forward(input(comm)).backward();
      throws = true;
      bool failed = false;
      try {
        ddp.forward(input(comm)).backward();
      } catch (const ddpp::revoked_error& revoked) {
        EXPECT(comm.rank() == 1);
        EXPECT(contains(revoked.what(), "an exception ended a backward pass"));
        failed = true;
      } catch (const std::runtime_error& own) {
        EXPECT(comm.rank() == 0 && contains(own.what(), "no gradient today"));
        failed = true;
      }
      EXPECT(failed);
      for (const auto& each : module->parameters()) {
        if (each.grad().defined()) each.grad().zero_();
      }
      // It says so again, and is destroyed.
      EXPECT(contains(text_of<ddpp::revoked_error>([&] { ddp.forward(input(comm)).backward(); }), "rank 0"));
      throw std::logic_error("reached the end");
    });
  });
  CHECK_MESSAGE(contains(text, "reached the end"), text);
}

}  // namespace

TEST_CASE("an exception in the backward pass of one rank") {
  for (const bool views : {false, true}) {
    for (const bool unused : {false, true}) {
      backward_throws<ddpp::threads>(views, unused);
      backward_throws<ddpp::shm>(views, unused);
    }
  }
}

TEST_CASE("an exception between forward and backward, and one in a communication hook") {
  const auto outcome = [](auto step) {
    return text_of<std::exception>([&] {
      on_ranks<ddpp::threads>(3, [&](auto& comm) {
        auto module = std::make_shared<products_impl>();
        step(comm, module);
      });
    });
  };
  const auto text = outcome([](auto& comm, auto& module) {
    ddpp::torch_ddp ddp(comm, module);
    const auto loss = ddp.forward(input(comm));
    if (comm.rank() == 1) throw std::runtime_error("out of data");
    loss.backward();
  });
  CHECK_MESSAGE(contains(text, "out of data"), text);
  const auto in_hook = outcome([](auto& comm, auto& module) {
    ddpp::torch_ddp ddp(comm, module, {}, fails_on_rank_2{});
    ddp.forward(input(comm)).backward();
  });
  CHECK_MESSAGE(contains(in_hook, "no hook today"), in_hook);
}

TEST_CASE("one rank forgets a parameter: it says which, and the others are not left waiting") {
  std::vector<std::string> texts(2);
  try {
    on_ranks<ddpp::threads>(2, [&](auto& comm) {
      auto module = make_custom({"a", "b"}, [&](const named& p, const torch::Tensor& x) {
        return (comm.rank() == 0 ? p["a"] * x : p["a"] * x + p["b"]).sum();
      });
      ddpp::torch_ddp ddp(comm, module, {.bucket_cap_mb = 1e-6});
      texts[std::size_t(comm.rank())] = text_of<std::exception>([&] { ddp.forward(input(comm)).backward(); });
    });
  } catch (const std::exception&) {
  }
  CHECK_MESSAGE(contains(texts[0], "\"b\""), texts[0]);
  CHECK_MESSAGE(!texts[1].empty(), "rank 1 took an average that was none");
}

// --- collectives ---

namespace {

template <class C>
void every_collective(C& comm, at::ScalarType type) {
  const int n = comm.size(), rank = comm.rank();
  const auto whole = [&](double value, std::int64_t count) { return torch::full({count}, value, type); };
  auto x = whole(rank + 1, 5);
  ddpp::all_reduce(comm, x);
  EXPECT(holds(x, n * (n + 1) / 2));
  auto out = whole(0, 5);
  ddpp::all_reduce(comm, whole(rank + 1, 5), out, ddpp::max);
  EXPECT(holds(out, n));
  auto pending = ddpp::all_reduce_async(comm, x, ddpp::min);
  pending.wait();
  auto everyone = torch::zeros({n, 5}, type);
  ddpp::all_gather(comm, whole(rank, 5), everyone);
  EXPECT(holds(everyone[n - 1], n - 1) && holds(everyone[0], 0));
  x.fill_(rank);
  ddpp::broadcast(comm, x, n - 1);
  EXPECT(holds(x, n - 1));
  x.fill_(1);
  ddpp::reduce(comm, x, ddpp::sum, 0);
  EXPECT(rank != 0 || holds(x, n));
  auto piece = whole(0, 5);
  ddpp::reduce_scatter(comm, everyone, piece);
  EXPECT(holds(piece, n * rank));
  ddpp::scatter(comm, everyone, piece, 0);
  EXPECT(holds(piece, rank));
  auto gathered = torch::zeros({n, 5}, type);
  ddpp::gather(comm, piece, gathered, 0);
  EXPECT(rank != 0 || torch::equal(gathered, everyone));
  auto exchanged = torch::zeros({n, 5}, type);
  ddpp::all_to_all(comm, torch::full({n, 5}, rank, type), exchanged);
  EXPECT(torch::equal(exchanged, everyone));
  const std::vector<std::size_t> counts(std::size_t(n), 5);
  exchanged.zero_();
  ddpp::all_gather_v(comm, whole(rank, 5), exchanged, counts);
  EXPECT(torch::equal(exchanged, everyone));
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  ddpp::send_recv(comm, whole(rank, 5), next, piece, previous);
  EXPECT(holds(piece, previous));
  auto sent = whole(rank, 5);
  auto sending = ddpp::isend(comm, sent, next);
  ddpp::recv(comm, piece, previous);
  sending.wait();
  EXPECT(holds(piece, previous));
}

}  // namespace

TEST_CASE("collectives of tensors of every type") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    for (const auto type : {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong,
                            torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble})
      every_collective(comm, type);
    auto bits = torch::full({2}, 1 << comm.rank(), torch::kInt);
    ddpp::all_reduce(comm, bits, ddpp::bor);
    EXPECT(holds(bits, 3));
    auto mean = torch::full({4}, 65000.0, torch::kHalf);
    ddpp::all_reduce(comm, mean, ddpp::avg);  // the sum would be infinite
    EXPECT(holds(mean, 64992));
    // Tensors and other memory are one operation.
    auto values = torch::full({3}, 2.0);
    if (comm.rank() == 0) {
      ddpp::all_reduce(comm, values);
    } else {
      std::vector<float> other(3, 5);
      ddpp::all_reduce(comm, other);
    }
    EXPECT(comm.rank() == 1 || holds(values, 7));
  });
}

TEST_CASE("tensors that no transport can move are refused before anything is sent") {
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    const auto refusal = [&](const torch::Tensor& tensor) {
      return text_of<usage_error>([&] { ddpp::all_reduce(comm, tensor); });
    };
    EXPECT(contains(refusal(torch::zeros({2, 3}).t()), "not contiguous"));
    EXPECT(contains(refusal(torch::zeros({4, 4}).slice(1, 0, 2)), "gaps"));
    EXPECT(contains(refusal(torch::zeros({1}).expand({4})), "gaps"));
    EXPECT(contains(refusal(torch::empty({2}, torch::device(torch::kMeta))), "is on meta"));
    EXPECT(contains(refusal(torch::zeros({2, 2}).to_sparse()), "not dense"));
    EXPECT(contains(refusal(torch::zeros({2}, torch::kComplexFloat)), "ComplexFloat"));
    EXPECT(contains(refusal(torch::zeros({2}, torch::kBool)), "Bool"));
    EXPECT(contains(refusal(torch::imag(torch::zeros({2}, torch::kComplexFloat).conj())), "view"));
    EXPECT(contains(refusal(torch::Tensor()), "undefined"));
    const auto floats = torch::zeros({2});
    EXPECT(contains(text_of<usage_error>([&] { ddpp::all_reduce(comm, floats, ddpp::band); }), "float"));
    EXPECT(contains(
        text_of<usage_error>([&] { ddpp::all_gather(comm, floats, torch::zeros({4}, torch::kDouble)); }),
        "Double"));
    EXPECT(contains(text_of<usage_error>([&] { ddpp::tensor_span<double>(floats); }), "Float"));
    ddpp::barrier(comm);
  });
}

#ifdef DDPP_TEST_ON_DOUBLE

namespace {

/// A tensor that libtorch takes for one of a CUDA device, though it may know nothing of CUDA.
torch::Tensor on_device(const std::vector<float>& values) {
  void* memory = nullptr;
  const std::size_t bytes = values.size() * sizeof(float);
  EXPECT(cudaMalloc(&memory, bytes) == cudaSuccess);
  cudaMemcpy(memory, values.data(), bytes, cudaMemcpyHostToDevice);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(
                           memory, memory, [](void* freed) { cudaFree(freed); }, c10::Device(c10::kCUDA, 0)));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({std::int64_t(values.size())});
  return tensor;
}

std::vector<float> values_of(const torch::Tensor& tensor) {
  std::vector<float> values(std::size_t(tensor.numel()));
  cudaMemcpy(values.data(), tensor.data_ptr(), values.size() * sizeof(float), cudaMemcpyDeviceToHost);
  return values;
}

}  // namespace

TEST_CASE("a device's tensors on a device's transport, and only those") {
  on_ranks<ddpp::nccl>(2, [](auto& comm) {
    const auto tensor = on_device({1, 2, float(comm.rank())});
    ddpp::all_reduce(comm, tensor);
    EXPECT(values_of(tensor) == std::vector<float>({2, 4, 1}));
    const auto whole = on_device({0, 0, 0, 0, 0, 0});
    ddpp::all_gather_async(comm, tensor, whole).wait();
    EXPECT(values_of(whole) == std::vector<float>({2, 4, 1, 2, 4, 1}));
    ddpp::broadcast(comm, ddpp::tensor_span<float>(tensor, ddpp::memory_space::device), 1);

    const auto refused = [&](auto call) { return text_of<usage_error>(call); };
    EXPECT(contains(refused([&] { ddpp::all_reduce(comm, torch::zeros({2})); }), "to(torch::kCUDA)"));
    EXPECT(contains(refused([&] { ddpp::all_reduce(comm, torch::zeros({2}, torch::kShort)); }), "int16"));
    EXPECT(contains(refused([&] { ddpp::tensor_span<float>(tensor); }), "cpu()"));
    products module;
    EXPECT(contains(refused([&] { ddpp::torch_ddp ddp(comm, module); }), "parameter \"a\" is on cpu"));
  });
  on_ranks<ddpp::threads>(2, [](auto& comm) {
    EXPECT(contains(text_of<usage_error>([&] { ddpp::all_reduce(comm, on_device({1})); }), "is on cuda:0"));
  });
}

#endif
