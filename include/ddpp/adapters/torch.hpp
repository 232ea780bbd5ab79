// SPDX-License-Identifier: BSL-1.0
// libtorch: data-parallel training of a torch::nn::Module, as PyTorch's DistributedDataParallel for Python,
// and the collectives for torch::Tensor. For libtorch 1.13 and 2.x. See docs/torch.md.
#pragma once

#include <ddpp/detail/torch_collectives.hpp>
#include <ddpp/detail/torch_gradient.hpp>
#include <ddpp/detail/torch_hook.hpp>
#include <ddpp/detail/torch_model.hpp>
#include <ddpp/detail/torch_tensor.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/error.hpp>
#include <ddpp/hooks.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <atomic>
#include <c10/core/GradMode.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddpp {

/// A module whose gradients are averaged over ranks while backward() computes them: forward() begins a step,
/// the first gradient that autograd accumulates has the engine finish it at the end of that backward pass,
/// and when backward() returns the averages are in the parameters' gradients, for any optimizer.
///
/// - Several forward passes may lead to one backward pass; the step is that of the first. What goes through
/// the
///   module itself instead is local, and so are the gradients of a backward pass that no forward() announced.
/// - A backward pass that an exception ends on one rank fails the group: the others' backward() throws
///   `revoked_error`. What the reduction throws (`reducer_error`, `group_error`, `timeout_error`) leaves
///   backward().
/// - Parameters are those that the module has at construction; replacing, moving, adding or unfreezing one
/// later is
///   a `reducer_error` in forward() that names it. All are dense and in the memory that the communicator's
///   transport moves, the host's or a CUDA device's, and so are buffers, else `usage_error`.
/// - On a device gradients are brought to their buckets on torch's current stream, which must be
/// comm.stream().
///   When backward() returns that stream follows the averages; the host need not have waited for them.
/// - One thread uses it; backward() may be called by that thread only.
template <class C, class M, class Hook = hooks::all_reduce>
class torch_ddp {
  using engine_type = distributed_data_parallel<C, Hook>;

 public:
  using no_sync_guard = typename engine_type::no_sync_guard;

  /// Collective; blocks. Verifies that all ranks have the same module, and gives them rank 0's parameters and
  /// buffers. Options as for `distributed_data_parallel`; `buffers` adds to the module's own. Throws what
  /// that does.
  torch_ddp(C& comm, std::shared_ptr<M> module, ddp_options options = {}, Hook hook = {})
      : comm_(comm.share()),
        module_(std::move(module)),
        model_(*module_, C::transport_type::memory),
        has_bucket_views_(options.gradient_as_bucket_view),
        engine_(comm_, model_.list_parameters(), complete(std::move(options)), std::move(hook)) {
    for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
      const auto& each = model_.parameters()[i];
      gradients_.emplace_back(each.name, each.tensor, has_bucket_views_);
      if (each.is_trained) hooks_.emplace_back(each.tensor, [this, i] { gradient_came(i); });
    }
    place_gradients();
  }
  torch_ddp(C& comm, const torch::nn::ModuleHolder<M>& module, ddp_options options = {}, Hook hook = {})
      : torch_ddp(comm, module.ptr(), std::move(options), std::move(hook)) {}
  torch_ddp(const torch_ddp&) = delete;
  torch_ddp& operator=(const torch_ddp&) = delete;

  /// Gradients stay with the module, in memory of their own. As with `distributed_data_parallel`, a step that
  /// an exception cut short fails the group.
  ~torch_ddp() {
    hooks_.clear();
    if (phase_ == phase::forward) engine_.cancel();
    for (detail::torch_gradient& each : gradients_) each.leave_bucket();
  }

  /// The module's forward(). Begins a step, unless one has begun that no gradient has come for, or gradients
  /// are off (NoGradGuard). Collective, and blocks, where buffers are due from rank 0, in the second
  /// synchronised step, and under join().
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    if (!c10::GradMode::is_enabled())
      engine_.refresh_buffers();
    else if (phase_ != phase::forward)
      prepare();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// Begins a step before forward() would, to give it a weight.
  void prepare(prepare_options options = {}) {
    if (phase_ == phase::forward) engine_.cancel();
    phase_ = phase::idle;
    model_.require_unchanged(*module_);
    synchronised_ = !engine_.accumulates();
    engine_.prepare(options);
    place_gradients();
    phase_ = phase::forward;
  }

  /// Ends a step whose backward pass reached none of the parameters, with find_unused_parameters; for all
  /// others the engine does it.
  void wait() {
    phase_ = phase::idle;
    engine_.wait();
    if (!synchronised_) return;
    const std::vector<std::size_t> unused = engine_.globally_unused();
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      if (model_.parameters()[i].is_trained && std::ranges::find(unused, i) == unused.end())
        gradients_[i].fetch();
    }
  }

  /// Gradients of steps that begin while the guard lives accumulate on this rank; the next step reduces the
  /// sum.
  no_sync_guard no_sync() { return engine_.no_sync(); }

  /// Runs `loop()`, in which ranks may take different numbers of steps: see `distributed_data_parallel`.
  template <class F>
  void join(F&& loop, join_options options = {}) {
    const auto run = [&] {
      loop();
      if (phase_ == phase::forward) engine_.cancel();
      phase_ = phase::idle;
    };
    try {
      engine_.join(run, options);
    } catch (...) {
      place_gradients();  // buckets may have been laid out anew while this rank shadowed others
      throw;
    }
    place_gradients();
  }

  const std::shared_ptr<M>& module() const noexcept { return module_; }

  /// Itself, so that what was written for a pointer to the module, as `model->forward(x)`, goes on as it is.
  torch_ddp* operator->() noexcept { return this; }
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const { return module_->named_parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

  /// Numbers are those of the module's parameters(), shared ones counted once.
  bucket_layout bucket_assignment() const { return engine_.bucket_assignment(); }
  reducer_statistics statistics() const { return engine_.statistics(); }
  std::vector<std::size_t> globally_unused() const { return engine_.globally_unused(); }
  Hook& hook() noexcept { return engine_.hook(); }

 private:
  enum class phase : std::uint8_t {
    idle,
    forward,  ///< a step has begun, and no gradient has come
    backward
  };

  /// One backward pass, for as long as autograd's engine keeps what to call at its end. That it goes without
  /// having been called says that an exception has ended the pass.
  class backward_pass {
   public:
    explicit backward_pass(torch_ddp& of) : of_(of) {}
    backward_pass(const backward_pass&) = delete;
    ~backward_pass() {
      if (!has_ended_) of_.abandon();
    }
    void end() {
      has_ended_ = true;
      of_.wait();
    }

   private:
    torch_ddp& of_;
    bool has_ended_ = false;
  };

  ddp_options complete(ddp_options options) const {
    options.gradient_as_bucket_view = true;  // what is copied to and from buckets is copied here
    for (model_buffer& each : model_.list_buffers()) options.buffers.push_back(std::move(each));
    return options;
  }

  void place_gradients() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      const auto& each = model_.parameters()[i];
      if (!each.is_trained) continue;
      detail::visit_parameter_type(each.tensor, [&]<class T>(std::type_identity<T>) {
        gradients_[i].place_at(engine_.template grad<T>(i).data());
      });
    }
  }

  /// On any of the engine's threads.
  void gradient_came(std::size_t i) {
    phase found = phase::forward;
    if (phase_.compare_exchange_strong(found, phase::backward)) {
      reduction_failed_ = false;
      auto pass = std::make_shared<backward_pass>(*this);
      torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end(); });
    } else if (found == phase::idle) {
      return;
    }
    gradients_[i].bring();
    try {
      engine_.mark_ready(i);
    } catch (...) {
      reduction_failed_ = true;
      throw;
    }
  }

  /// The other ranks wait for gradients that will not come. Where it was the reduction that failed they know.
  void abandon() noexcept {
    phase_ = phase::idle;
    try {
      if (synchronised_ && !reduction_failed_) comm_.revoke("an exception ended a backward pass");
      engine_.wait();  // throws at once, or when those have come who made the same mistake
    } catch (...) {
    }
  }

  C comm_;
  const std::shared_ptr<M> module_;
  const detail::torch_model model_;
  const bool has_bucket_views_;
  engine_type engine_;
  std::vector<detail::torch_gradient> gradients_;  // by parameter
  std::vector<detail::torch_hook> hooks_;
  std::atomic<phase> phase_ = phase::idle;
  bool synchronised_ = true;                    // the step under way
  std::atomic<bool> reduction_failed_ = false;  // in the backward pass under way
};

template <class C, class M>
torch_ddp(C&, torch::nn::ModuleHolder<M>) -> torch_ddp<C, M>;

}  // namespace ddpp
