// SPDX-License-Identifier: BSL-1.0
// A function that autograd calls each time it has accumulated a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <utility>

namespace ddpp::detail {

/// Keeps the node that accumulates alive, as a leaf holds it weakly and would get another one, without the
/// hook.
class torch_hook {
 public:
  torch_hook(const at::Tensor& leaf, std::function<void()> came)
      : accumulator_(torch::autograd::impl::grad_accumulator(leaf)),
        key_(accumulator_->add_post_hook(std::make_unique<post_hook>(std::move(came)))) {}
  torch_hook(torch_hook&& other) noexcept : accumulator_(std::move(other.accumulator_)), key_(other.key_) {
    other.accumulator_ = {};
  }
  torch_hook& operator=(torch_hook&&) = delete;
  ~torch_hook() {
    if (accumulator_) accumulator_->del_post_hook(key_);
  }

 private:
  using node = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  struct post_hook final : torch::autograd::FunctionPostHook {
    explicit post_hook(std::function<void()> f) : came(std::move(f)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      came();
      return outputs;
    }
    std::function<void()> came;
  };

  node accumulator_;
  std::uintptr_t key_;
};

}  // namespace ddpp::detail
