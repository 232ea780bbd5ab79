// SPDX-License-Identifier: BSL-1.0
// Data-parallel training, as torch's DistributedDataParallel: ranks that hold the same model, each with its
// own part of the batch, end every step with the same averaged gradients.
#pragma once

#include <ddpp/all_gather.hpp>
#include <ddpp/detail/coalesced_broadcast.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/model.hpp>
#include <ddpp/detail/verify_model.hpp>
#include <ddpp/error.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/parameter.hpp>
#include <ddpp/reducer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp {

struct ddp_options {
  bool broadcast_buffers = true;  ///< rank 0's, at prepare(), but for the step after one under no_sync
  bool init_sync = true;          ///< verify that all ranks have the same model, then take rank 0's values
  std::optional<double> bucket_cap_mb =
      {};                               ///< in MiB; default: 1 for the first bucket built and 25 for the rest
  bool find_unused_parameters = false;  ///< parameters may go unmarked in a step
  bool gradient_as_bucket_view =
      false;                  ///< gradients live in the buckets: write to grad(i), the given memory is unused
  bool static_graph = false;  ///< every step marks the same parameters in the same order as the first
  std::vector<model_buffer> buffers = {};
};

struct prepare_options {
  /// This rank's weight in the average, its number of samples say: sum(weight * gradient) / sum(weight).
  /// Either all ranks give one in a step or none; not negative. The gradients of a rank whose weight is 0 may
  /// be anything, NaN too; if all weights are 0 the average is 0.
  std::optional<double> weight = {};
};

struct join_options {
  bool divide_by_live = false;      ///< average over the ranks still working instead of all
  bool throw_on_early_end = false;  ///< all ranks throw `reducer_error` once one has run out of batches
};

/// One step is prepare(), forward and backward with mark_ready(i) as soon as gradient i is final, and wait().
/// Buckets are reduced on the communicator's progress thread while the backward pass goes on.
///
/// On a transport of a device's memory, parameters, gradients and buffers are that. Gradient i is final when
/// what comm.stream() has at mark_ready(i) is done, buckets are reduced on another stream, and wait() orders
/// comm.stream() after the averages; it blocks only where the transport's options say so. prepare() with a
/// weight, find_unused_parameters and join() wait on the host for the other ranks.
///
/// - It keeps the communicator's group alive. Parameters and buffers must outlive it and stay where they are.
/// - Between prepare() and wait() the program calls no collectives of its own on this communicator.
/// - `reducer_error` leaves the communicator usable if all ranks made the same mistake in the same step; the
/// next
///   prepare() then starts afresh, after the gradients of the failed step have been written anew. Where only
///   some ranks did, the group fails on all of them.
/// - Collective errors (`group_error`, `timeout_error`) may leave prepare(), mark_ready() and wait().
template <class C, class Hook = hooks::all_reduce>
class distributed_data_parallel {
 public:
  /// Collective; blocks. Throws `usage_error` if there is nothing to reduce, an option makes no sense, or two
  /// parameters share memory; and `reducer_error` on all ranks, with the first difference, if the ranks do
  /// not have the same model. A parameter that is listed twice (the same values and the same gradient) counts
  /// once: its gradient is marked ready once, under either number.
  distributed_data_parallel(C& comm, std::vector<parameter> parameters, ddp_options options = {},
                            Hook hook = {})
      : comm_(comm.share()),
        model_(std::move(parameters), std::move(options.buffers)),
        broadcast_buffers_(options.broadcast_buffers && !model_.buffers().empty()),
        reducer_(comm_, model_, check(options), std::move(hook)) {
    if (options.init_sync) broadcast_(comm_, model_.shared_memory(), 0);
  }
  distributed_data_parallel(const distributed_data_parallel&) = delete;
  distributed_data_parallel& operator=(const distributed_data_parallel&) = delete;

  /// Begins a step. Collective where buffers are broadcast, after the first step, and under join; blocks
  /// then. Throws `reducer_error` if the previous step is unfinished.
  void prepare(prepare_options options = {}) {
    if (options.weight && !(*options.weight >= 0 && std::isfinite(*options.weight))) {
      throw usage_error("prepare: a weight is a number from 0 on, not " + std::to_string(*options.weight));
    }
    reducer_.settle();
    const bool synchronised = accumulating_guards_ == 0;
    begin(joining_
              ? call_roll(
                    {.working = true, .synchronised = synchronised, .weighted = options.weight.has_value()})
              : whole_group(synchronised),
          options.weight);
  }

  /// Takes back a prepare() that no gradient has followed: no step is under way then. Only on this rank, as
  /// nobody has been told; where somebody has, because a weight travels or ranks under join() shadow the
  /// step, nothing is done.
  void cancel() { reducer_.cancel(); }

  /// For a forward pass without gradients: takes rank 0's buffers where prepare() would, so that the next
  /// prepare() need not. Collective, and blocks, where buffers are due; not under join(), of which the others
  /// would not hear.
  void refresh_buffers() {
    if (!broadcast_buffers_ || joining_ || reducer_.is_under_way()) return;
    if (std::exchange(buffers_are_due_, false)) broadcast_(comm_, model_.buffer_memory(), 0);
  }

  /// Gradient i, by its place in the list, is final. From any thread. Throws `reducer_error` if it was ready
  /// before, or without prepare(); `usage_error` if there is none.
  void mark_ready(std::size_t i) { reducer_.mark_ready(i); }

  /// Blocks until the averages are in the gradients; on a device orders comm.stream() after them. Throws
  /// `reducer_error` naming the gradients that never came.
  void wait() { reducer_.wait(); }

  /// Gradient i, in the bucket with gradient_as_bucket_view. Valid until the next prepare(). Throws
  /// `usage_error` when T is not its type.
  template <class T>
  std::span<T> grad(std::size_t i) {
    return reducer_.template gradient<T>(i);
  }

  class [[nodiscard("gradients are accumulated while the guard lives")]] no_sync_guard {
   public:
    explicit no_sync_guard(int& guards) : guards_(&guards) { ++guards; }
    no_sync_guard(no_sync_guard && other) noexcept : guards_(std::exchange(other.guards_, nullptr)) {}
    no_sync_guard& operator=(no_sync_guard&&) = delete;
    ~no_sync_guard() {
      if (guards_ != nullptr) --*guards_;
    }

   private:
    int* guards_;
  };
  /// Steps prepared while the guard lives reduce nothing: gradients accumulate, and the next step reduces the
  /// sum.
  no_sync_guard no_sync() { return no_sync_guard(accumulating_guards_); }
  /// Whether such a guard lives.
  bool accumulates() const noexcept { return accumulating_guards_ > 0; }

  /// Runs `loop()`, in which ranks may take different numbers of steps, and then takes part, with gradients
  /// of zero, in the steps of those that are still at work. At the end everyone has the parameters and
  /// buffers of the highest rank among the last to finish. Collective; blocks. Throws `reducer_error` on all
  /// ranks where those at work differ in no_sync or in the use of weights. An exception that leaves the loop
  /// on one rank fails the group.
  template <class F>
  void join(F&& loop, join_options options = {}) {
    if (joining_) throw usage_error("join() was called inside join()");
    const joining_scope scope(joining_, options);
    all_throw_ = false;
    highest_of_last_ = comm_.size() - 1;
    try {
      loop();
      reducer_.settle();
    } catch (...) {
      if (!all_throw_) comm_.revoke("an exception left join(): " + detail::current_exception_text());
      throw;
    }
    for (roll now = call_roll({}); now.working > 0; now = call_roll({})) begin(now, {});
    broadcast_(comm_, model_.shared_memory(), highest_of_last_);
  }

  /// Which parameters travel together, in the order of reduction.
  bucket_layout bucket_assignment() const { return reducer_.assignment(); }
  /// From any thread, but not during prepare().
  reducer_statistics statistics() const { return reducer_.statistics(); }
  /// After wait(), with find_unused_parameters or static_graph: those that no rank used; empty where this
  /// rank used all.
  std::vector<std::size_t> globally_unused() const { return reducer_.globally_unused(); }
  Hook& hook() noexcept { return reducer_.hook(); }

 private:
  /// What one rank says at the beginning of a step under join.
  struct attendance {
    bool working = false, synchronised = false, weighted = false;
  };
  /// What all say together.
  struct roll {
    int working = 0, lowest = 0, highest = 0;  // of those at work
    bool synchronised = true, weighted = false, here = true;
  };
  struct joining_scope {
    joining_scope(std::optional<join_options>& where, join_options options) : joining(where) {
      joining = options;
    }
    joining_scope(const joining_scope&) = delete;
    ~joining_scope() { joining.reset(); }
    std::optional<join_options>& joining;
  };

  /// Verifies the model and turns the options into the reducer's. What is wrong on all ranks is a
  /// `usage_error`, what is on some only is a difference; so ranks agree on what to throw.
  detail::reducer_options check(const ddp_options& options) {
    constexpr double mebibyte = 1 << 20;
    if (options.bucket_cap_mb && !(*options.bucket_cap_mb > 0 && *options.bucket_cap_mb <= 1e12)) {
      throw usage_error("bucket_cap_mb is a number of MiB above 0, not " +
                        std::to_string(*options.bucket_cap_mb));
    }
    std::vector<std::size_t> limits = {std::size_t{1} << 20, std::size_t{25} << 20};
    if (options.bucket_cap_mb)
      limits = {static_cast<std::size_t>(std::ceil(*options.bucket_cap_mb * mebibyte))};
    const bool gradients_in_use = !options.gradient_as_bucket_view;
    std::string trouble = unreachable_memory(gradients_in_use);
    if (trouble.empty()) trouble = model_.wrongly_shared_memory(gradients_in_use);
    if (options.init_sync) {
      std::vector<std::string> lines = model_.description();
      lines.push_back(trouble.empty() ? "parameters apart" : trouble);
      std::string flags = "options: limits";
      for (const std::size_t limit : limits) flags += " " + std::to_string(limit);
      if (options.find_unused_parameters) flags += ", find_unused_parameters";
      if (options.gradient_as_bucket_view) flags += ", gradient_as_bucket_view";
      if (options.static_graph) flags += ", static_graph";
      if (broadcast_buffers_) flags += ", broadcast_buffers";
      lines.push_back(std::move(flags));
      detail::verify_alike(comm_, lines);
    }
    if (!trouble.empty()) throw usage_error(trouble);
    if (model_.slots() == 0)
      throw usage_error("the model has no parameter with a gradient: there is nothing to reduce");
    return {std::move(limits), options.find_unused_parameters, options.gradient_as_bucket_view,
            options.static_graph};
  }

  /// A sentence about the first memory found that the transport does not move, else empty.
  std::string unreachable_memory(bool gradients_in_use) const {
    std::string text;
    const auto look = [&](const detail::user_memory& memory, const std::string& whose) {
      if (text.empty()) text = objection_to(memory, whose);
    };
    const auto& parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      look(parameters[i].value(), "the values of " + model_.label(i));
      if (parameters[i].has_gradient() && gradients_in_use)
        look(parameters[i].gradient(), "the gradient of " + model_.label(i));
    }
    for (std::size_t i = 0; i < model_.buffers().size(); ++i)
      look(model_.buffers()[i].memory(), "buffer " + std::to_string(i));
    return text;
  }
  std::string objection_to(const detail::user_memory& memory, const std::string& whose) const {
    if constexpr (detail::is_on_device<C>) {
      try {
        detail::check_memory(comm_, memory.bytes(), whose.c_str());
      } catch (const usage_error&) {  // its text names the device, which differs
        return whose +
               ": the device cannot reach this memory; pass a ddpp::device_span or allocate_symmetric's";
      }
    } else if (memory.is_on_device()) {
      return whose + ": this is a device's memory, and the communicator's transport moves the host's";
    }
    return {};
  }

  roll whole_group(bool synchronised) const {
    return {.working = comm_.size(), .highest = comm_.size() - 1, .synchronised = synchronised};
  }

  /// Collective: who is still at work, and on what.
  roll call_roll(attendance mine) {
    const std::uint32_t word =
        (mine.working ? 1u : 0u) | (mine.synchronised ? 2u : 0u) | (mine.weighted ? 4u : 0u);
    std::vector<std::uint32_t> words(static_cast<std::size_t>(comm_.size()));
    ddpp::all_gather(comm_, std::span(&word, 1), words, detail::in_host_memory<C>);
    roll all{.synchronised = false, .here = mine.working};
    std::uint32_t agreed = 0;
    for (int r = 0; r < comm_.size(); ++r) {
      const std::uint32_t theirs = words[static_cast<std::size_t>(r)];
      if (!(theirs & 1u)) continue;
      if (all.working++ == 0) {
        all.lowest = r;
        agreed = theirs;
      } else if (theirs != agreed) {
        all_throw_ = true;
        throw reducer_error("join: rank " + std::to_string(all.lowest) + " and rank " + std::to_string(r) +
                            " differ in no_sync or in the use of weights for the same step");
      }
      all.highest = r;
    }
    all.synchronised = (agreed & 2u) != 0;
    all.weighted = (agreed & 4u) != 0;
    if (all.working > 0) highest_of_last_ = all.highest;
    if (joining_->throw_on_early_end && all.working > 0 && all.working < comm_.size()) {
      all_throw_ = true;
      throw reducer_error("join: " + std::to_string(comm_.size() - all.working) + " of " +
                          std::to_string(comm_.size()) + " ranks have run out of batches before the others");
    }
    return all;
  }

  /// A step of those at work, of which this rank is one or which it shadows.
  void begin(const roll& now, std::optional<double> weight) {
    if (now.synchronised) {
      if (reducer_.rebuild_is_due())
        reducer_.rebuild(rebuild_root_);
      else if (!reducer_.has_synchronised())
        rebuild_root_ = now.lowest;
    }
    if (broadcast_buffers_ && std::exchange(buffers_are_due_, now.synchronised)) {
      broadcast_(comm_, model_.buffer_memory(), joining_ ? now.highest : 0);
    }
    const int ranks = joining_ && joining_->divide_by_live ? now.working : comm_.size();
    detail::step_plan plan{.synchronised = now.synchronised,
                           .all_work = now.working == comm_.size(),
                           .divisor = static_cast<double>(ranks),
                           .weight = weight};
    if (now.here) return reducer_.arm(plan);
    if (!now.synchronised) return;
    if (now.weighted) plan.weight = 0;
    reducer_.settle();
    reducer_.shadow(plan);
  }

  C comm_;
  const detail::model model_;
  const bool broadcast_buffers_;
  detail::coalesced_broadcast broadcast_;
  bool buffers_are_due_ = true;
  int accumulating_guards_ = 0;
  int rebuild_root_ = 0;
  std::optional<join_options> joining_;
  int highest_of_last_ = 0;
  bool all_throw_ = false;  // what leaves the loop under join: nobody needs to be told
  detail::reducer<C, Hook> reducer_;
};

}  // namespace ddpp
