// SPDX-License-Identifier: BSL-1.0
// Averages gradients in buckets while the backward pass goes on. `distributed_data_parallel` is its public
// face.
//
// A step is armed, its gradients are marked ready, and it is finished. When all gradients of a bucket are
// ready its reduction is started as a script on the communicator's progress thread, strictly in bucket order,
// so that all ranks start the same scripts in the same order whatever the order of marks. A script runs the
// hook and, where gradients do not live in the bucket, writes the averages back.
//
// On a device's transport a script only issues, where it is started, and streams do what threads do
// elsewhere: gradients come to their buckets on the program's stream, scripts put theirs on the internal one,
// and finishing orders the program's stream after that.
//
// A step that breaks the protocol on this rank is given up: the rank takes part in the buckets that are left,
// but in the place of the last one it enters a barrier of its own kind. Where all ranks give up they meet
// there, however far each had come, and can go on; a rank that did not give up has started the last bucket
// instead, and the two are a mismatch, which fails the group on all ranks before anyone can use a wrong
// average. On success this costs nothing.
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/bucket_assignment.hpp>
#include <ddpp/detail/bucket_slab.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/device_memory.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/model.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/shared_core.hpp>
#include <ddpp/detail/step_record.hpp>
#include <ddpp/detail/step_trace.hpp>
#include <ddpp/error.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/reducer_statistics.hpp>
#include <ddpp/work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

struct reducer_options {
  std::vector<std::size_t> bucket_limits = {};  ///< in bytes, see assign_buckets_by_size
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
};

struct step_plan {
  bool synchronised = true;           ///< or accumulate only
  bool all_work = true;               ///< no rank only shadows it
  double divisor = 1;                 ///< of an average that is not weighted
  std::optional<double> weight = {};  ///< of this rank, in a weighted average
};

template <class C, class Hook>
class reducer {
 public:
  reducer(C& comm, const model& of, reducer_options options, Hook hook)
      : comm_(comm.share()),
        model_(of),
        options_(std::move(options)),
        hook_(std::move(hook)),
        record_(of, graph_of(options_), !options_.gradient_as_bucket_view),
        slab_(of),
        usage_counts_(of.slots()) {
    lay_out(assign_buckets_last_first(slab_.sizes(), options_.bucket_limits));
    comm_.run({.op = collective::hook}, [&](C& inside) { birth_ = inside.print().sequence; });
  }
  reducer(const reducer&) = delete;
  reducer& operator=(const reducer&) = delete;

  /// An unfinished step would leave the other ranks waiting for buckets that never come. Where an exception
  /// of the program's has cut it short they are told so; otherwise it is given up here, which blocks until
  /// they have come.
  ~reducer() {
    try {
      if (phase_ == phase::armed && plan_.synchronised && std::uncaught_exceptions() > exceptions_at_birth_) {
        comm_.revoke("an exception ended a training step");
      } else if (phase_ != phase::idle) {
        meet_those_who_gave_up();
      }
    } catch (...) {  // the group has failed: nobody waits
    }
    for (bucket_progress& b : progress_) b.reduction = {};
    weight_reduction_ = {};
    usage_reduction_ = {};
  }

  /// Throws unless the previous step is over: `reducer_error` if it was never finished. Collective if that
  /// step was given up on this rank without having met the others.
  void settle() {
    {
      std::unique_lock lock(mutex_);
      await_marks(lock);
      if (phase_ == phase::armed) {
        const std::vector<std::size_t> missing = record_.unmarked();
        give_up_locked("prepare() was called with a step unfinished: " +
                       (missing.empty() ? std::string("wait() was not called")
                                        : model_.labels(missing) + " not ready, wait() not called"));
        std::rethrow_exception(failure_);
      }
    }
    if (phase_ == phase::given_up) meet_those_who_gave_up();
    usage_reduction_.wait();
    usage_reduction_ = {};
  }

  bool has_synchronised() const noexcept { return synchronised_steps_.load(std::memory_order_relaxed) > 0; }
  bool rebuild_is_due() const noexcept {
    return !rebuilt_ && has_synchronised() && (!options_.find_unused_parameters || options_.static_graph);
  }

  /// Collective: lays out the buckets anew in the order in which root's gradients became ready in the first
  /// synchronised step, those that did not come last.
  void rebuild(int root) {
    std::vector<std::uint64_t> order(first_order_.begin(), first_order_.end());
    std::vector<bool> came(model_.slots());
    for (const std::size_t slot : first_order_) came[slot] = true;
    for (std::size_t slot = 0; slot < came.size(); ++slot) {
      if (!came[slot]) order.push_back(slot);
    }
    ddpp::broadcast(comm_, order, root, in_host_memory<C>);
    const std::vector<std::size_t> walk(order.begin(), order.end());
    lay_out(assign_buckets_by_size(slab_.sizes(), options_.bucket_limits, walk));
    rebuilt_ = true;
  }

  void arm(const step_plan& plan) {
    const std::lock_guard lock(mutex_);
    begin_step(plan, false);
    trace_.begin_step();
    if (!plan.synchronised) return;
    start_or_drop([&] {
      if (plan.weight) start_weight_reduction();
      if (record_.is_fixed()) {  // what it does not use need not be waited for
        complete_if([&](std::size_t slot) { return !record_.is_in_graph(slot); });
      }
    });
  }

  bool is_under_way() {
    const std::lock_guard lock(mutex_);
    return phase_ != phase::idle;
  }

  /// Drops a step of which the others cannot know.
  void cancel() {
    const std::lock_guard lock(mutex_);
    if (phase_ != phase::armed || !record_.order().empty() || next_ > 0) return;
    if (plan_.weight || !plan_.all_work) return;
    record_.take_back();
    phase_ = phase::idle;
  }

  void mark_ready(std::size_t listed) {
    const std::size_t slot = model_.slot_of(listed);
    {
      const std::lock_guard lock(mutex_);
      check_mark(slot);
      record_.mark(slot);
      if (!plan_.synchronised) return;
      ++marks_under_way_;
    }
    try {
      contribute(slot);  // outside the lock: each slot has a part of its bucket to itself
    } catch (...) {      // a device is broken
      const std::lock_guard lock(mutex_);
      end_mark();
      if (phase_ == phase::armed)
        give_up_locked(record_.label(slot) + " did not come to its bucket: " + current_exception_text());
      throw;
    }
    const std::lock_guard lock(mutex_);
    end_mark();
    --progress_[slab_.bucket_of(slot)].missing;
    if (phase_ == phase::armed) start_or_drop([&] { start_complete_buckets(); });
  }

  void wait() {
    const stopwatch measured(waiting_);
    trace_.end_computation();
    const step_trace::span traced(trace_, step_trace::lane::program, "wait");
    std::unique_lock lock(mutex_);
    await_marks(lock);
    if (phase_ == phase::idle) throw reducer_error("wait() was called without prepare()");
    if (phase_ == phase::armed) check_end();
    if (phase_ == phase::given_up) {
      const std::exception_ptr reason = failure_;
      lock.unlock();
      // Where others did not give up, that fails the group and tells them; what happened here this rank knows
      // better.
      try {
        meet_those_who_gave_up();
      } catch (const group_error&) {
      } catch (const timeout_error&) {
      }
      std::rethrow_exception(reason);
    }
    if (!plan_.synchronised) {
      record_.fix_graph();
      phase_ = phase::idle;
      return;
    }
    start_or_drop([&] {
      if (!record_.is_fixed()) complete_if([&](std::size_t slot) { return !record_.is_marked(slot); });
      if (needs_usage()) start_usage_reduction();
    });
    record_.fix_graph();
    phase_ = phase::finishing;
    lock.unlock();
    finish_step();
  }

  /// Takes part in a step with gradients of zero. Collective; blocks.
  void shadow(const step_plan& plan) {
    std::unique_lock lock(mutex_);
    begin_step(plan, true);
    start_or_drop([&] {
      if (plan.weight) start_weight_reduction();
      complete_if([](std::size_t) { return true; });
      if (needs_usage()) start_usage_reduction();
    });
    phase_ = phase::finishing;
    lock.unlock();
    finish_step();
  }

  template <class T>
  std::span<T> gradient(std::size_t listed) {
    const std::size_t slot = model_.slot_of(listed);
    const parameter& p = model_[slot];
    if (dtype_of<T> != p.dtype()) {
      throw usage_error(model_.label(listed) + " is of " + name_of(p.dtype()) +
                        ", its gradient was asked for as " + name_of(dtype_of<T>));
    }
    std::byte* const where =
        options_.gradient_as_bucket_view ? slab_.place_of(slot) : p.gradient().bytes().data();
    return {reinterpret_cast<T*>(where), p.count()};
  }

  bucket_layout assignment() const {
    bucket_layout layout;
    for (const auto& b : slab_.buckets()) layout.push_back(b.parameters);
    return layout;
  }

  /// Numbers of the parameters that no rank used in the last finished step.
  std::vector<std::size_t> globally_unused() const { return globally_unused_; }

  reducer_statistics statistics() const {
    reducer_statistics s{
        .buckets_finished_this_step = finished_.load(std::memory_order_acquire),
        .steps = synchronised_steps_.load(std::memory_order_relaxed),
        .waiting = std::chrono::nanoseconds(waiting_.load(std::memory_order_relaxed)),
        .communicating = std::chrono::nanoseconds(communicating_.load(std::memory_order_relaxed))};
    for (const auto& b : slab_.buckets()) s.bucket_bytes.push_back(b.bytes);
    return s;
  }

  Hook& hook() noexcept { return hook_; }

 private:
  enum class phase : std::uint8_t {
    idle,
    armed,
    finishing,  ///< inside wait(), which has seen all marks
    given_up    ///< on this rank; the others are still to be met
  };
  /// What a device copies it does not scale; what it reduces it does.
  static constexpr bool hook_takes_scaled = !is_on_device<C> && requires {
    requires Hook::takes_scaled_gradients;
  };

  struct bucket_progress {
    std::size_t missing = 0;  // gradients not ready yet
    work reduction = {};
  };

  class stopwatch {
   public:
    explicit stopwatch(std::atomic<std::int64_t>& total) : total_(total) {}
    stopwatch(const stopwatch&) = delete;
    ~stopwatch() {
      const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin_;
      total_.fetch_add(time.count(), std::memory_order_relaxed);
    }

   private:
    std::atomic<std::int64_t>& total_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  static graph_kind graph_of(const reducer_options& options) {
    if (options.static_graph) return graph_kind::fixed;
    return options.find_unused_parameters ? graph_kind::changing : graph_kind::complete;
  }

  void lay_out(const bucket_layout& layout) {
    slab_.lay_out(comm_, layout);
    progress_.resize(slab_.size());
  }

  // --- the course of a step; all but contribute() with the lock held ---

  void begin_step(const step_plan& plan, bool shadowing) {
    phase_ = phase::armed;
    plan_ = plan;
    shadowing_ = shadowing;
    failure_ = nullptr;
    record_.begin(plan.synchronised);
    next_ = 0;
    finished_.store(0, std::memory_order_relaxed);
    for (std::size_t b = 0; b < progress_.size(); ++b) progress_[b].missing = slab_[b].slots.size();
  }

  void check_mark(std::size_t slot) {
    if (phase_ == phase::idle || phase_ == phase::finishing) {
      throw reducer_error(record_.label(slot) +
                          " was marked ready with no step under way: call prepare() first, and wait() last");
    }
    if (phase_ == phase::armed) give_up_if(record_.objection_to_mark(slot));
    if (phase_ == phase::given_up) std::rethrow_exception(failure_);
  }

  void check_end() { give_up_if(record_.objection_to_end()); }

  void give_up_if(const std::string& why) {
    if (!why.empty()) give_up_locked(why);
  }
  void give_up_locked(const std::string& why) {
    phase_ = phase::given_up;
    failure_ = std::make_exception_ptr(reducer_error("rank " + std::to_string(comm_.rank()) + ": " + why));
  }

  void end_mark() {
    if (--marks_under_way_ == 0) marks_arrived_.notify_all();
  }
  /// Other threads may be on their way out of mark_ready().
  void await_marks(std::unique_lock<std::mutex>& lock) {
    marks_arrived_.wait(lock, [&] { return marks_under_way_ == 0; });
  }

  /// With the group failed there is no one to meet: the step is dropped, on all ranks.
  void drop_step() noexcept {
    phase_ = phase::idle;
    record_.forget();
    for (bucket_progress& b : progress_) b.reduction = {};
    weight_reduction_ = {};
  }

  /// The same on all ranks.
  bool needs_usage() const noexcept {
    return options_.static_graph ? !usage_is_fixed_ : options_.find_unused_parameters;
  }

  /// Gradients that nobody will mark: what was never used since the last synchronised step counts as zero,
  /// what an earlier, accumulating step used counts with what it has.
  template <class Condition>
  void complete_if(Condition condition) {
    for (std::size_t slot = 0; slot < model_.slots(); ++slot) {
      if (!condition(slot)) continue;
      if (record_.is_used(slot) && !shadowing_)
        contribute(slot);
      else
        slab_.clear(comm_, slot);
      --progress_[slab_.bucket_of(slot)].missing;
    }
    start_complete_buckets();
  }

  /// Nothing can be started once the group has failed; then the step is dropped.
  template <class Start>
  void start_or_drop(Start start) {
    try {
      start();
    } catch (...) {
      drop_step();
      throw;
    }
  }

  /// Brings a gradient into its bucket, scaled where that costs no pass over memory of its own. What weighs
  /// nothing may be anything, as the mean over no samples is.
  void contribute(std::size_t slot) {
    if (plan_.weight && *plan_.weight == 0) return slab_.clear(comm_, slot);
    if (options_.gradient_as_bucket_view) return;
    if (!is_scaled_on_the_way()) return slab_.bring(comm_, slot);
    visit_gradient_type(slab_.sizes()[slot].dtype, [&]<class T>(std::type_identity<T>) {
      copy_scaled(reinterpret_cast<T*>(slab_.place_of(slot)),
                  reinterpret_cast<const T*>(model_[slot].gradient().bytes().data()), model_[slot].count(),
                  1 / plan_.divisor);
    });
  }
  bool is_scaled_on_the_way() const noexcept {
    return hook_takes_scaled && !plan_.weight && !options_.gradient_as_bucket_view;
  }

  // --- what runs on the progress thread ---

  void start_complete_buckets() {
    for (; next_ < progress_.size() && progress_[next_].missing == 0; ++next_)
      start_bucket(next_, !shadowing_);
  }

  void start_bucket(std::size_t index, bool keep) {
    const auto& b = slab_[index];
    trace_.bucket_is_ready(index);
    const fingerprint print{.count = b.count(),
                            .element_size = static_cast<std::uint16_t>(b.element_size),
                            .type = static_cast<std::uint8_t>(b.dtype),
                            .op = collective::hook,
                            .counts = name_of_bucket(index)};
    progress_[index].reduction =
        comm_.start(print, [this, index, keep](C& inside) { reduce(inside, index, keep); });
  }

  /// Tells buckets apart, those of several models on one communicator too.
  std::uint32_t name_of_bucket(std::size_t index) const noexcept {
    return static_cast<std::uint32_t>(birth_ * 4099 + index + 1);
  }

  void start_weight_reduction() {
    weights_ = *plan_.weight;
    weight_reduction_ = ddpp::all_reduce_async(comm_, std::span(&weights_, 1), sum, in_host_memory<C>);
  }

  void start_usage_reduction() {
    for (std::size_t slot = 0; slot < usage_counts_.size(); ++slot)
      usage_counts_[slot] = record_.is_used(slot) && !shadowing_;
    usage_reduction_ = ddpp::all_reduce_async(comm_, std::span(usage_counts_), sum, in_host_memory<C>);
  }

  void reduce(C& inside, std::size_t index, bool keep) {
    {
      const beside_computation here;
      const stopwatch measured(communicating_);
      const step_trace::span traced(trace_, step_trace::lane::communication, "reduction of bucket",
                                    static_cast<int>(index));
      const bool is_mean = !plan_.weight && !is_scaled_on_the_way() && plan_.divisor == inside.size();
      gradient_bucket bucket(slab_.contents(index), slab_.data(index), remaining_scale(), is_mean);
      hook_(inside, bucket);
      if (keep && !options_.gradient_as_bucket_view) {
        for (const std::size_t slot : slab_[index].slots) {
          if (record_.is_used(slot)) slab_.write_back(inside, slot);
        }
      }
    }
    finished_.fetch_add(1, std::memory_order_release);
  }

  double remaining_scale() const noexcept {
    if (plan_.weight) return weights_ > 0 ? *plan_.weight / weights_ : 0;
    return is_scaled_on_the_way() ? 1 : 1 / plan_.divisor;
  }

  // --- the end of a step ---

  /// Waits for all that was started; of several errors the first one counts.
  void finish_step() {
    std::exception_ptr error;
    const auto await = [&](work& pending) {
      try {
        pending.wait();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
      pending = {};
    };
    await(weight_reduction_);
    for (bucket_progress& b : progress_) await(b.reduction);
    if (!error) resolve_unused(await);
    const std::lock_guard lock(mutex_);
    phase_ = phase::idle;
    if (error) std::rethrow_exception(error);
    usage_is_fixed_ = usage_is_fixed_ || plan_.all_work;
    if (!has_synchronised()) first_order_ = record_.order();
    synchronised_steps_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Parameters that this rank did not use get the average if another rank did, and are left alone otherwise.
  template <class Await>
  void resolve_unused(Await&& await) {
    globally_unused_.clear();
    if (shadowing_ || record_.are_all_used()) return;
    await(usage_reduction_);
    for (std::size_t slot = 0; slot < usage_counts_.size(); ++slot) {
      if (record_.is_used(slot)) continue;
      if (usage_counts_[slot] == 0)
        globally_unused_.push_back(model_.listed(slot));
      else if (!options_.gradient_as_bucket_view)
        slab_.write_back(comm_, slot);
    }
    await_memory(comm_);
  }

  void meet_those_who_gave_up() {
    const bool synchronised = plan_.synchronised;
    {
      const std::lock_guard lock(mutex_);
      phase_ = phase::idle;
      record_.forget();
    }
    if (!synchronised) return;  // nobody else knows of the step
    for (; next_ + 1 < progress_.size(); ++next_) start_bucket(next_, false);
    for (bucket_progress& b : progress_) b.reduction = {};
    weight_reduction_ = {};
    comm_.run({.op = collective::step_given_up, .counts = name_of_bucket(next_)},
              [](C& inside) { ddpp::barrier(inside); });
  }

  C comm_;
  const model& model_;
  const reducer_options options_;
  Hook hook_;

  std::mutex mutex_;
  phase phase_ = phase::idle;
  step_plan plan_;
  std::exception_ptr failure_;  // why the step was given up
  step_record record_;
  std::size_t next_ = 0;  // bucket to be started
  std::size_t marks_under_way_ = 0;
  std::condition_variable marks_arrived_;
  bool shadowing_ = false;
  std::vector<std::size_t> first_order_;  // of marks in the first synchronised step
  bool rebuilt_ = false;

  bucket_slab slab_;
  std::vector<bucket_progress> progress_;  // by bucket
  double weights_ = 0;                     // of all ranks together, once weight_reduction_ is done
  work weight_reduction_;
  std::vector<std::int32_t> usage_counts_;  // by slot: how many ranks used it, once usage_reduction_ is done
  work usage_reduction_;
  bool usage_is_fixed_ = false;  // static_graph: known from a step in which all ranks worked
  std::vector<std::size_t> globally_unused_;

  step_trace trace_{comm_.rank()};

  std::atomic<std::size_t> finished_{0};
  std::atomic<std::uint64_t> synchronised_steps_{0};
  std::atomic<std::int64_t> waiting_{0}, communicating_{0};
  std::uint64_t birth_ = 0;  // the number of the collective that this was: the same on all ranks
  const int exceptions_at_birth_ = std::uncaught_exceptions();
};

}  // namespace ddpp::detail
