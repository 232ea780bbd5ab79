// SPDX-License-Identifier: BSL-1.0
// Averages gradients in buckets while the backward pass goes on. `distributed_data_parallel` is its public
// face.
//
// A step is armed, its gradients are marked ready, and it is finished. When all gradients of a bucket are
// ready its reduction is started as a script on the communicator's progress thread, strictly in bucket order,
// so that all ranks start the same scripts in the same order whatever the order of marks. A script runs the
// hook and, where gradients do not live in the bucket, writes the averages back.
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
#include <ddpp/detail/model.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/step_trace.hpp>
#include <ddpp/error.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/gradient_bucket.hpp>
#include <ddpp/symmetric.hpp>
#include <ddpp/work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp {

/// What a reducer has measured. Times are sums over all steps.
struct reducer_statistics {
  std::size_t buckets_finished_this_step = 0;
  std::uint64_t steps = 0;                    ///< finished, those under no_sync not counted
  std::chrono::nanoseconds waiting{0};        ///< inside wait()
  std::chrono::nanoseconds communicating{0};  ///< in hooks, and in writing averages back
  std::vector<std::size_t> bucket_bytes = {};

  /// The share of communication that was hidden behind computation, 0 to 1.
  double overlap() const noexcept {
    if (communicating.count() <= 0) return 0;
    return std::max(0.0,
                    1 - static_cast<double>(waiting.count()) / static_cast<double>(communicating.count()));
  }
};

namespace detail {

struct reducer_options {
  std::vector<std::size_t> bucket_limits = {};  ///< in bytes, see assign_buckets_by_size
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
};

struct step_plan {
  bool synchronised = true;           ///< or accumulate only
  double divisor = 1;                 ///< of an average that is not weighted
  std::optional<double> weight = {};  ///< of this rank, in a weighted average
};

template <class C, class Hook>
class reducer {
 public:
  reducer(C& comm, const model& of, reducer_options options, Hook hook)
      : comm_(comm.share()), model_(of), options_(std::move(options)), hook_(std::move(hook)) {
    for (std::size_t slot = 0; slot < model_.slots(); ++slot) {
      sizes_.push_back({model_[slot].dtype(), model_[slot].count() * model_[slot].element_size()});
    }
    slots_.resize(model_.slots());
    adopt(assign_buckets_last_first(sizes_, options_.bucket_limits));
    order_.reserve(model_.slots());
    usage_counts_.resize(model_.slots());
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
    for (bucket& b : buckets_) b.reduction = {};
    weight_reduction_ = {};
    usage_reduction_ = {};
  }

  /// Throws unless the previous step is over: `reducer_error` if it was never finished. Collective if that
  /// step was given up on this rank without having met the others.
  void settle() {
    {
      const std::lock_guard lock(mutex_);
      if (phase_ == phase::armed) {
        const std::vector<std::size_t> missing = unmarked();
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
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (std::find(first_order_.begin(), first_order_.end(), slot) == first_order_.end())
        order.push_back(slot);
    }
    ddpp::broadcast(comm_, order, root);
    const std::vector<std::size_t> walk(order.begin(), order.end());
    adopt(assign_buckets_by_size(sizes_, options_.bucket_limits, walk));
    rebuilt_ = true;
  }

  void arm(const step_plan& plan) {
    const std::lock_guard lock(mutex_);
    begin_step(plan);
    trace_.begin_step();
    if (!plan.synchronised) return;
    start_or_drop([&] {
      if (plan.weight) start_weight_reduction();
      if (graph_is_recorded_) {  // what it does not use need not be waited for
        complete_if([&](std::size_t slot) { return !in_graph_[slot]; });
      }
    });
  }

  void mark_ready(std::size_t listed) {
    const std::size_t slot = model_.slot_of(listed);
    bool synchronised = false;
    {
      const std::lock_guard lock(mutex_);
      check_mark(slot);
      marked_[slot] = used_[slot] = 1;
      order_.push_back(slot);
      synchronised = plan_.synchronised;
    }
    if (!synchronised) return;
    contribute(slot);  // outside the lock: each slot has a part of its bucket to itself
    const std::lock_guard lock(mutex_);
    --buckets_[slots_[slot].bucket].missing;
    if (phase_ == phase::armed) start_or_drop([&] { start_complete_buckets(); });
  }

  void wait() {
    const stopwatch measured(waiting_);
    trace_.end_computation();
    const step_trace::span traced(trace_, step_trace::lane::program, "wait");
    std::unique_lock lock(mutex_);
    if (phase_ == phase::idle) throw reducer_error("wait() was called without prepare()");
    if (phase_ == phase::armed) check_unmarked();
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
      record_graph();
      phase_ = phase::idle;
      return;
    }
    if (needs_usage()) {
      start_or_drop([&] {
        if (!graph_is_recorded_) complete_if([&](std::size_t slot) { return !marked_[slot]; });
        start_usage_reduction();
      });
    }
    record_graph();
    lock.unlock();
    finish_step();
  }

  /// Takes part in a step with gradients of zero. Collective; blocks.
  void shadow(const step_plan& plan) {
    std::unique_lock lock(mutex_);
    begin_step(plan);
    shadowing_ = true;
    start_or_drop([&] {
      if (plan.weight) start_weight_reduction();
      complete_if([](std::size_t) { return true; });
      if (needs_usage()) start_usage_reduction();
    });
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
    return {
        reinterpret_cast<T*>(options_.gradient_as_bucket_view ? place_of(slot) : p.gradient().bytes().data()),
        p.count()};
  }

  bucket_layout assignment() const {
    bucket_layout layout;
    for (const bucket& b : buckets_) layout.push_back(b.parameters);
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
    for (const bucket& b : buckets_) s.bucket_bytes.push_back(b.bytes);
    return s;
  }

  Hook& hook() noexcept { return hook_; }

 private:
  enum class phase : std::uint8_t {
    idle,
    armed,
    given_up  ///< on this rank; the others are still to be met
  };
  static constexpr bool hook_takes_scaled = requires { requires Hook::takes_scaled_gradients; };

  struct bucket {
    ddpp::dtype dtype{};
    std::size_t begin = 0, bytes = 0, count = 0;  // `begin`: bytes into the slab
    std::vector<std::size_t> slots = {}, parameters = {}, offsets = {}, rows = {};
    std::size_t missing = 0;  // gradients not ready yet
    work reduction = {};
  };
  struct slot_place {
    std::size_t bucket = 0, begin = 0;  // `begin`: bytes into the slab
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

  static constexpr const char* moved_text = " has moved to other memory since construction";
  static constexpr const char* broken_promise = ", but the graph was promised to be static";
  std::string label(std::size_t slot) const { return model_.label(model_.listed(slot)); }

  // --- layout ---

  /// Buckets one after the other in one allocation, each on a cache line of its own. Gradients keep their
  /// contents.
  void adopt(const bucket_layout& layout) {
    if (!buckets_.empty() && std::ranges::equal(layout, buckets_, {}, {}, &bucket::slots)) return;
    std::vector<bucket> buckets;
    std::vector<slot_place> places(slots_.size());
    std::size_t total = 0;
    for (const auto& members : layout) {
      bucket b{.dtype = sizes_[members.front()].dtype, .begin = total, .slots = members};
      const std::size_t element = model_[members.front()].element_size();
      for (const std::size_t slot : members) {
        places[slot] = {buckets.size(), total + b.bytes};
        b.parameters.push_back(model_.listed(slot));
        b.offsets.push_back(b.bytes / element);
        b.rows.push_back(model_[slot].rows());
        b.bytes += sizes_[slot].bytes;
      }
      b.count = b.bytes / element;
      b.offsets.push_back(b.count);
      total += (b.bytes + cache_line - 1) / cache_line * cache_line;
      buckets.push_back(std::move(b));
    }
    symmetric_buffer<std::byte> slab = allocate_symmetric<std::byte>(comm_, total);
    for (std::size_t slot = 0; slot < slots_.size() && !buckets_.empty(); ++slot) {
      copy_bytes(slab.data() + places[slot].begin, place_of(slot), sizes_[slot].bytes);
    }
    buckets_ = std::move(buckets);
    slots_ = std::move(places);
    slab_ = std::move(slab);
  }

  std::byte* place_of(std::size_t slot) noexcept { return slab_.data() + slots_[slot].begin; }

  // --- the course of a step; all but contribute() with the lock held ---

  void begin_step(const step_plan& plan) {
    phase_ = phase::armed;
    plan_ = plan;
    shadowing_ = false;
    failure_ = nullptr;
    marked_.assign(slots_.size(), 0);
    if (!accumulating_) used_.assign(slots_.size(), 0);
    accumulating_ = !plan.synchronised;
    order_.clear();
    next_ = 0;
    finished_.store(0, std::memory_order_relaxed);
    for (bucket& b : buckets_) b.missing = b.slots.size();
  }

  void check_mark(std::size_t slot) {
    if (phase_ == phase::idle) {
      throw reducer_error(label(slot) + " was marked ready with no step under way: call prepare() first");
    }
    if (phase_ == phase::armed) {
      if (marked_[slot]) {
        give_up_locked(label(slot) + " was marked ready twice in one step");
      } else if (has_moved(slot)) {
        give_up_locked("the gradient of " + label(slot) + moved_text);
      } else if (graph_is_recorded_ && !in_graph_[slot]) {
        give_up_locked(label(slot) + " is used now and was not in the first step" + broken_promise);
      } else if (graph_is_recorded_ && recorded_order_[order_.size()] != slot) {
        give_up_locked(label(slot) + " became ready where " + label(recorded_order_[order_.size()]) +
                       " did in the first step" + broken_promise);
      }
    }
    if (phase_ == phase::given_up) std::rethrow_exception(failure_);
  }

  void check_unmarked() {
    std::vector<std::size_t> missing = unmarked();
    const auto moved = std::ranges::find_if(missing, [&](std::size_t slot) { return has_moved(slot); });
    if (moved != missing.end()) return give_up_locked("the gradient of " + label(*moved) + moved_text);
    if (may_be_unused()) return;
    if (graph_is_recorded_) std::erase_if(missing, [&](std::size_t slot) { return !in_graph_[slot]; });
    if (missing.empty()) return;
    give_up_locked("wait() was called but no gradient came for " + model_.labels(missing) +
                   (graph_is_recorded_
                        ? ", which the first step used" + std::string(broken_promise)
                        : ". If not every step uses every parameter, set find_unused_parameters"));
  }

  /// The gradient's container has got itself other memory. What is given and not used may do so.
  bool has_moved(std::size_t slot) const {
    return !options_.gradient_as_bucket_view && model_[slot].gradient().replaced();
  }

  void give_up_locked(const std::string& why) {
    phase_ = phase::given_up;
    failure_ = std::make_exception_ptr(reducer_error("rank " + std::to_string(comm_.rank()) + ": " + why));
  }

  /// With the group failed there is no one to meet: the step is dropped, on all ranks.
  void drop_step() noexcept {
    phase_ = phase::idle;
    accumulating_ = false;
    for (bucket& b : buckets_) b.reduction = {};
    weight_reduction_ = {};
  }

  std::vector<std::size_t> unmarked() const {
    std::vector<std::size_t> missing;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!marked_[slot]) missing.push_back(slot);
    }
    return missing;
  }

  bool may_be_unused() const noexcept {
    return options_.static_graph ? !graph_is_recorded_ : options_.find_unused_parameters;
  }
  /// The same on all ranks.
  bool needs_usage() const noexcept {
    return options_.static_graph ? !usage_is_recorded_ : options_.find_unused_parameters;
  }

  void record_graph() {
    if (!options_.static_graph || graph_is_recorded_) return;
    in_graph_ = marked_;
    recorded_order_ = order_;
    graph_is_recorded_ = true;
  }

  /// Gradients that nobody will mark: what was never used since the last synchronised step counts as zero,
  /// what an earlier, accumulating step used counts with what it has.
  template <class Condition>
  void complete_if(Condition condition) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!condition(slot)) continue;
      if (used_[slot] && !shadowing_)
        contribute(slot);
      else
        std::memset(place_of(slot), 0, sizes_[slot].bytes);
      --buckets_[slots_[slot].bucket].missing;
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

  void contribute(std::size_t slot) {
    const double factor = hook_takes_scaled && !plan_.weight ? 1 / plan_.divisor : 1;
    visit_gradient_type(sizes_[slot].dtype, [&]<class T>(std::type_identity<T>) {
      T* const place = reinterpret_cast<T*>(place_of(slot));
      const std::size_t count = model_[slot].count();
      if (options_.gradient_as_bucket_view)
        scale(std::span(place, count), factor);
      else
        copy_scaled(place, reinterpret_cast<const T*>(model_[slot].gradient().bytes().data()), count, factor);
    });
  }

  // --- what runs on the progress thread ---

  void start_complete_buckets() {
    for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) start_bucket(next_, !shadowing_);
  }

  void start_bucket(std::size_t index, bool keep) {
    bucket& b = buckets_[index];
    trace_.bucket_is_ready(index);
    const fingerprint print{
        .count = b.count,
        .element_size = static_cast<std::uint16_t>(model_[b.slots.front()].element_size()),
        .type = static_cast<std::uint8_t>(b.dtype),
        .op = collective::hook};
    b.reduction = comm_.start(print, [this, index, keep](C& inside) { reduce(inside, index, keep); });
  }

  void start_weight_reduction() {
    weights_ = *plan_.weight;
    weight_reduction_ = ddpp::all_reduce_async(comm_, std::span(&weights_, 1));
  }

  void start_usage_reduction() {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot)
      usage_counts_[slot] = shadowing_ ? 0 : used_[slot];
    usage_reduction_ = ddpp::all_reduce_async(comm_, std::span(usage_counts_));
  }

  void reduce(C& inside, std::size_t index, bool keep) {
    {
      const stopwatch measured(communicating_);
      const step_trace::span traced(trace_, step_trace::lane::communication, "reduction of bucket",
                                    static_cast<int>(index));
      bucket& b = buckets_[index];
      gradient_bucket view(b.dtype, slab_.data() + b.begin, b.count, remaining_scale(), index,
                           index + 1 == buckets_.size(), b.parameters, b.offsets, b.rows);
      hook_(inside, view);
      if (keep && !options_.gradient_as_bucket_view) {
        for (const std::size_t slot : b.slots) {
          if (used_[slot]) write_back(slot);
        }
      }
    }
    finished_.fetch_add(1, std::memory_order_release);
  }

  double remaining_scale() const noexcept {
    if (plan_.weight) return weights_ > 0 ? *plan_.weight / weights_ : 0;
    return hook_takes_scaled ? 1 : 1 / plan_.divisor;
  }

  void write_back(std::size_t slot) {
    copy_bytes(model_[slot].gradient().bytes().data(), place_of(slot), sizes_[slot].bytes);
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
    for (bucket& b : buckets_) await(b.reduction);
    if (!error) resolve_unused(await);
    const std::lock_guard lock(mutex_);
    phase_ = phase::idle;
    accumulating_ = false;
    if (error) std::rethrow_exception(error);
    usage_is_recorded_ = true;
    if (!has_synchronised()) first_order_ = order_;
    synchronised_steps_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Parameters that this rank did not use get the average if another rank did, and are left alone otherwise.
  template <class Await>
  void resolve_unused(Await&& await) {
    globally_unused_.clear();
    if (shadowing_) return;
    const auto unused = static_cast<std::size_t>(std::count(used_.begin(), used_.end(), 0));
    if (unused == 0) return;
    await(usage_reduction_);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (used_[slot]) continue;
      if (usage_counts_[slot] == 0)
        globally_unused_.push_back(model_.listed(slot));
      else if (!options_.gradient_as_bucket_view)
        write_back(slot);
    }
  }

  void meet_those_who_gave_up() {
    const bool synchronised = plan_.synchronised;
    {
      const std::lock_guard lock(mutex_);
      phase_ = phase::idle;
      accumulating_ = false;
    }
    if (!synchronised) return;  // nobody else knows of the step
    for (; next_ + 1 < buckets_.size(); ++next_) start_bucket(next_, false);
    for (bucket& b : buckets_) b.reduction = {};
    weight_reduction_ = {};
    comm_.run({.count = next_, .op = collective::step_given_up}, [](C& inside) { ddpp::barrier(inside); });
  }

  static constexpr std::size_t cache_line = 64;

  C comm_;
  const model& model_;
  const reducer_options options_;
  Hook hook_;
  std::vector<gradient_size> sizes_;  // by slot, as all below that is not by bucket

  std::mutex mutex_;
  phase phase_ = phase::idle;
  step_plan plan_;
  std::exception_ptr failure_;        // why the step was given up
  std::size_t next_ = 0;              // bucket to be started
  std::vector<std::size_t> order_;    // slots, as they became ready in this step
  std::vector<std::uint8_t> marked_;  // in this step
  std::vector<std::uint8_t> used_;    // since the last synchronised step
  bool accumulating_ = false;         // the last step did not synchronise
  bool shadowing_ = false;
  bool graph_is_recorded_ = false, usage_is_recorded_ = false;  // static_graph: by its first step
  std::vector<std::uint8_t> in_graph_;
  std::vector<std::size_t> recorded_order_;
  std::vector<std::size_t> first_order_;  // order_ of the first synchronised step
  bool rebuilt_ = false;

  symmetric_buffer<std::byte> slab_;
  std::vector<bucket> buckets_;
  std::vector<slot_place> slots_;
  double weights_ = 0;  // of all ranks together, once weight_reduction_ is done
  work weight_reduction_;
  std::vector<std::int32_t> usage_counts_;  // how many ranks used it, once usage_reduction_ is done
  work usage_reduction_;
  std::vector<std::size_t> globally_unused_;

  step_trace trace_{comm_.rank()};

  std::atomic<std::size_t> finished_{0};
  std::atomic<std::uint64_t> synchronised_steps_{0};
  std::atomic<std::int64_t> waiting_{0}, communicating_{0};
  const int exceptions_at_birth_ = std::uncaught_exceptions();
};

}  // namespace detail
}  // namespace ddpp
