// SPDX-License-Identifier: BSL-1.0
// The state behind a communicator and all its handles: the transport, the order of collectives, the progress
// thread, and the translation of failures into public exceptions.
//
// Order: every collective takes a ticket when it is issued and runs when its ticket is served, on the
// caller's thread if it blocks, on the progress thread if it is asynchronous. So a blocking collective with
// nothing pending runs at once where it is called, and one behind pending work waits for it.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/function_ref.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>
#include <ddpp/work.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace ddpp::detail {

/// What the collectives of a running script (an algorithm, a hook) share.
struct script_scope {
  deadline until = {};
  fingerprint print = {};   ///< of the collective that the script makes up
  std::uint32_t steps = 0;  ///< collectives begun inside it
};

/// Throws the public exception for `cause`, as met by `rank` in the operation described.
[[noreturn]] inline void throw_failure(const failure& cause, int rank, const std::string& description,
                                       const char* operation, std::uint64_t sequence) {
  const std::string text = detail::text("rank ", rank, ", ", description, ": ", cause.text);
  switch (cause.kind) {
    case failure_kind::peer_lost:
      throw peer_lost(text, cause.rank, operation, sequence);
    case failure_kind::mismatch:
      throw mismatch_error(text, cause.rank, operation, sequence);
    case failure_kind::timeout:
      throw timeout_error(text);
    case failure_kind::revoked:
    case failure_kind::none:
      break;
  }
  throw revoked_error(text, cause.rank, operation, sequence);
}

template <transport T>
class group {
 public:
  group(const bootstrap& boot, const typename T::options& options)
      : boot_(boot), options_(options), timeout_(boot.timeout), transport_(boot, options) {
    boot_.check_peers = {};  // they have come
    if (!boot_.flight_recorder.empty()) {
      recorder_ = std::make_unique<flight_recorder>(boot_.flight_recorder, T::name.data(), boot_.host, rank(),
                                                    size());
    }
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;

  /// In a forked child the threads are gone and the peers are not the child's to leave: there, nothing is
  /// touched.
  static std::shared_ptr<group> make(const bootstrap& boot, const typename T::options& options) {
    return std::shared_ptr<group>(new group(boot, options), [](group* self) {
      if (!self->guard_.in_child()) delete self;
    });
  }

  T& transport() noexcept { return transport_; }
  int rank() const noexcept { return boot_.rank; }
  int size() const noexcept { return boot_.size; }
  const bootstrap& origin() const noexcept { return boot_; }
  /// With what the transport chose where the options leave a choice that later groups must keep to.
  const typename T::options& options() const noexcept {
    if constexpr (requires { transport_.options_in_use(); })
      return transport_.options_in_use();
    else
      return options_;
  }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  deadline deadline_from_now() const noexcept { return deadline_soon_after(timeout_); }

  /// Runs `script(script_scope&)` as the next collective and returns when it is done.
  void run(fingerprint print, function_ref<void(script_scope&)> script) {
    check_usable(print);
    if constexpr (has_stream_order<T>) {
      try {
        translate_failures(print, [&] {
          const auto end = issue(print, script);
          if (transport_.waits_on_host() && !transport_.await(end, deadline_from_now()))
            throw deadline_passed();
          transport_.order_caller(end);
        });
      } catch (...) {
        if (has_failed()) transport_.await_end_of_work();
        throw;
      }
    } else {
      print.sequence = issued_.fetch_add(1) + 1;
      await_turn(print.sequence);
      const turn_passer pass_on(*this);
      execute(print, script);
    }
  }

  /// Runs it on the progress thread, after what was issued before; on a device's stream, at once.
  template <class Script>
  static work start(const std::shared_ptr<group>& self, fingerprint print, Script script) {
    self->check_usable(print);
    if constexpr (has_stream_order<T>) return work(std::make_shared<stream_task>(self, print, script));
    auto job = std::make_shared<script_task<Script>>(self, print, std::move(script));
    self->enqueue(job);
    return work(std::move(job));
  }

  /// Runs it inside a script that is running, with the script's deadline.
  void run_nested(script_scope& outer, fingerprint print, function_ref<void(script_scope&)> script) {
    print.sequence = outer.print.sequence;
    print.step = ++outer.steps;
    print.counts ^= outer.print.counts;
    script_scope scope{outer.until, print, outer.steps};
    translate_failures(print, [&] {
      announce(print);
      script(scope);
    });
    outer.steps = scope.steps;
    announce(outer.print);
  }

  /// Runs a point-to-point wait; its failures get the description's name. A deadline passed leaves the group
  /// usable.
  template <class Describe, class F>
  void run_point_to_point(Describe&& description, const char* operation, std::uint64_t sequence, F&& f) {
    try {
      f();
    } catch (const group_failed& failed) {
      remember(failed.cause());
      dump_record(failed.cause().text);
      throw_failure(failed.cause(), rank(), description(), operation, sequence);
    } catch (const deadline_passed&) {
      const std::string text =
          detail::text("rank ", rank(), ", ", description(), " did not finish within ", text_of(timeout_));
      dump_record(text);
      throw timeout_error(text);
    }
  }
  /// For the flight recorder, if there is one.
  template <class What>
  void note(const What& what, recorded_state state) {
    if (recorder_) recorder_->note(what, state);
  }

  std::uint64_t next_point_to_point() noexcept {
    return point_to_point_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  bool in_child() const noexcept { return guard_.in_child(); }
  void refuse_in_child() const {
    if (in_child()) {
      throw usage_error(
          "this communicator was made before fork(): only the parent can use it. Call ddpp::init in "
          "the child for one of its own");
    }
  }

  /// Throws what keeps a collective from being issued, if anything does.
  void check_usable(const fingerprint& next) {
    if (executing == this && !in_child()) {
      throw usage_error(
          "a hook or an algorithm called a collective on the communicator it was started from, which "
          "would wait for itself: use the communicator that it is given");
    }
    check_usable(
        [&] {
          return next.op == collective::hook ? std::string("a reduction") : std::string(name_of(next.op));
        },
        name_of(next.op));
  }
  /// Throws what makes the group unusable, if anything does.
  template <class Describe>
  void check_usable(Describe&& describe_operation, const char* operation) {
    refuse_in_child();
    if (has_swallowed_.load(std::memory_order_acquire)) rethrow_swallowed();
    if (has_failed()) {
      dump_record(cause().text);
      throw_failure(cause(), rank(), describe_operation(), operation, issued_.load());
    }
  }

  bool has_failed() const noexcept {
    if constexpr (has_control_plane<T>)
      return transport_.failed();
    else
      return failed_.load(std::memory_order_acquire);
  }

  /// Fails the group for all ranks, unless it has failed already.
  void fail(const failure& cause) {
    remember(cause);
    transport_.abort(cause);
  }

  /// Collective among whoever is left, also after the group has failed; waits for no pending operation.
  /// Throws `timeout_error` where this rank came too late.
  verdict decide(decision what, bool yes, const std::string& note) requires has_agreement<T> {
    refuse_in_child();
    const std::lock_guard lock(deciding_);
    const std::string whose = detail::text("rank ", rank(), ", ", name_of(what), ": ");
    if (left_behind_) throw timeout_error(whose + "the others have gone on without this rank");
    verdict result = transport_.agree(decisions_ + 1, {what, yes, note}, deadline_from_now());
    ++decisions_;
    if (result.ranks[static_cast<std::size_t>(rank())] != attendance::voted) {
      const bool known =
          std::find(result.ranks.begin(), result.ranks.end(), attendance::voted) != result.ranks.end();
      left_behind_ = !known || result.decision != decision::agree;
      throw timeout_error(whose + "this rank came too late: the others did not wait longer than " +
                          text_of(timeout_));
    }
    return result;
  }
  /// The same number on all ranks after each.
  std::uint64_t decisions_made() const noexcept { return decisions_; }

  /// How many subgroups of exactly these members have been made here.
  std::uint64_t next_subgroup(const std::string& members) {
    const std::lock_guard lock(mutex_);
    return ++subgroups_[members];
  }

  std::uint64_t subgroups_of(const std::string& members) const {
    const std::lock_guard lock(mutex_);
    const auto found = subgroups_.find(members);
    return found == subgroups_.end() ? 0 : found->second;
  }

  /// Keeps an error that nobody waited for.
  void swallow(std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!swallowed_) swallowed_ = std::move(error);
    has_swallowed_.store(true, std::memory_order_release);
  }

 private:
  /// A collective on the progress thread; its `work` keeps the group alive through it.
  class task : public completion {
   public:
    task(std::shared_ptr<group> owner, const fingerprint& print) : owner_(std::move(owner)), print_(print) {}

    bool done() override { return finished_.load(std::memory_order_acquire); }
    bool wait_until(deadline until) override {
      check_can_wait();
      std::unique_lock lock(owner_->mutex_);
      return owner_->task_finished_.wait_until(lock, until, [&] { return done(); });
    }
    void wait() override {
      check_can_wait();
      block();
    }
    void rethrow() override {
      if (error_) std::rethrow_exception(error_);
    }
    void abandon() noexcept override {
      if (owner_->in_child()) return;
      block();
      if (error_) owner_->swallow(error_);
    }

    virtual void run() = 0;

   protected:
    friend group;
    std::shared_ptr<group> owner_;
    fingerprint print_;
    std::exception_ptr error_;
    std::atomic<bool> finished_{false};

   private:
    void check_can_wait() const {
      owner_->refuse_in_child();
      if (executing == owner_.get() && !finished_.load(std::memory_order_acquire)) {
        throw usage_error("a hook or an algorithm waits for work that cannot begin before it has ended");
      }
    }
    void block() {
      std::unique_lock lock(owner_->mutex_);
      owner_->task_finished_.wait(lock, [&] { return done(); });
    }
  };

  template <class Script>
  class script_task final : public task {
   public:
    script_task(std::shared_ptr<group> owner, const fingerprint& print, Script script)
        : task(std::move(owner), print), script_(std::move(script)) {}
    void run() override { this->owner_->execute(this->print_, script_); }

   private:
    Script script_;
  };

  /// A collective on a device's stream.
  class stream_task final : public completion {
   public:
    template <class Script>
    stream_task(std::shared_ptr<group> owner, const fingerprint& print, Script& script)
        : owner_(std::move(owner)), print_(print) {
      guarded([&] { end_ = owner_->issue(print_, script); });
    }

    bool done() override {
      bool reached = true;
      guarded([&] { reached = owner_->transport_.is_reached(end_); });
      return reached || owner_->has_failed();
    }
    bool wait_until(deadline until) override {
      bool reached = true;
      guarded([&] {
        reached = owner_->transport_.await(end_, until);
        if (reached) owner_->transport_.order_caller(end_);
      });
      return reached;
    }
    void wait() override {
      if (owner_->transport_.waits_on_host()) return host_wait();
      guarded([&] {
        if (owner_->has_failed()) throw group_failed(owner_->cause());
        owner_->transport_.order_caller(end_);
      });
    }
    void host_wait() override {
      if (!wait_until(owner_->deadline_from_now())) guarded([] { throw deadline_passed(); });
    }
    void rethrow() override {
      if (error_) std::rethrow_exception(error_);
    }
    void abandon() noexcept override {
      if (owner_->in_child()) return;
      wait();
      if (error_) owner_->swallow(error_);
    }

   private:
    template <class F>
    void guarded(F&& f) noexcept {
      if (error_) return;
      try {
        owner_->translate_failures(print_, f);
      } catch (...) {
        error_ = std::current_exception();
        if (owner_->has_failed()) owner_->transport_.await_end_of_work();
      }
    }

    std::shared_ptr<group> owner_;
    fingerprint print_;
    typename T::mark end_;
    std::exception_ptr error_;
  };

  struct turn_passer {
    explicit turn_passer(group& owner_) : owner(owner_) {}
    ~turn_passer() { owner.pass_turn(); }
    group& owner;
  };

  // A waiter raises turn_waiters_ before it looks at served_; who passes the turn stores served_ before it
  // looks at turn_waiters_. Both orders are sequentially consistent, so one of the two sees the other.
  void await_turn(std::uint64_t ticket) {
    if (served_.load(std::memory_order_acquire) + 1 == ticket) return;
    std::unique_lock lock(mutex_);
    turn_waiters_.fetch_add(1);
    turn_passed_.wait(lock, [&] { return served_.load() + 1 == ticket; });
    turn_waiters_.fetch_sub(1);
  }
  void pass_turn() {
    served_.fetch_add(1);
    if (turn_waiters_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }
    turn_passed_.notify_all();
  }

  void enqueue(const std::shared_ptr<task>& job) {
    {
      const std::lock_guard lock(mutex_);
      if (!progress_) progress_ = std::make_unique<joining_thread>([this] { make_progress(); });
      queue_.push_back(job);  // before a number is taken: it may throw
      job->print_.sequence = issued_.fetch_add(1) + 1;
      note(job->print_, recorded_state::queued);
    }
    task_queued_.notify_one();
  }

  void make_progress() {
    std::unique_lock lock(mutex_);
    for (;;) {
      task_queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::shared_ptr<task> job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      await_turn(job->print_.sequence);
      try {
        job->run();
      } catch (...) {
        job->error_ = std::current_exception();
      }
      lock.lock();
      // Whoever holds the work looks at it under the lock before letting go of it: the last reference, and
      // with it perhaps the group's, is never dropped here.
      job->finished_.store(true, std::memory_order_release);
      job.reset();
      lock.unlock();
      task_finished_.notify_all();
      pass_turn();
      lock.lock();
    }
  }

  /// Puts the script's work on the stream, in its turn, and returns where it ends.
  auto issue(fingerprint& print, function_ref<void(script_scope&)> script) {
    print.sequence = issued_.fetch_add(1) + 1;
    await_turn(print.sequence);
    const turn_passer pass_on(*this);
    const auto operation = transport_.begin_operation();
    execute(print, script);
    return transport_.end_operation(print, deadline_from_now());
  }

  void execute(const fingerprint& print, function_ref<void(script_scope&)> script) {
    script_scope scope{deadline_from_now(), print, 0};
    struct mark_executing {
      const void* before = std::exchange(executing, nullptr);
      explicit mark_executing(const void* now) { executing = now; }
      ~mark_executing() { executing = before; }
    } const marked(this);
    note(print, recorded_state::running);
    translate_failures(print, [&] {
      announce(print);
      script(scope);
    });
    if constexpr (has_control_plane<T>) transport_.leave();
    note(print, recorded_state::done);
  }

  void dump_record(const std::string& why) {
    if (recorder_) recorder_->dump_failure(why);
  }

  /// A transport without a control plane does not say what failed it: the first cause met is kept here.
  void remember(const failure& cause) {
    if constexpr (!has_control_plane<T>) {
      const std::lock_guard lock(mutex_);
      if (failed_.load(std::memory_order_relaxed)) return;
      cause_ = cause;
      failed_.store(true, std::memory_order_release);
    }
  }

  void announce(const fingerprint& print) {
    if constexpr (has_control_plane<T>) transport_.enter(print);
  }

  template <class F>
  void translate_failures(const fingerprint& print, F&& f) {
    try {
      f();
    } catch (const group_failed& failed) {
      remember(failed.cause());
      throw_failure(failed.cause(), print);
    } catch (const deadline_passed&) {
      fail(timeout_failure(print));
      throw_failure(cause(), print);
    } catch (...) {
      if (!has_failed()) {
        fail({failure_kind::revoked, rank(),
              detail::text("rank ", rank(), " threw in ", describe(print), ": ", current_exception_text())});
      }
      if (print.step == 0) note(print, recorded_state::failed);
      dump_record(cause().text);
      throw;
    }
  }

  [[noreturn]] void throw_failure(const failure& why, const fingerprint& print) {
    if (print.step == 0) note(print, recorded_state::failed);
    dump_record(why.text);
    detail::throw_failure(why, rank(), describe(print), name_of(print.op), print.sequence);
  }
  [[noreturn]] static void throw_failure(const failure& why, int rank, const std::string& description,
                                         const char* operation, std::uint64_t sequence) {
    detail::throw_failure(why, rank, description, operation, sequence);
  }

  failure cause() const {
    if constexpr (has_control_plane<T>) {
      return transport_.cause();
    } else {
      const std::lock_guard lock(mutex_);
      return cause_;
    }
  }

  failure timeout_failure(const fingerprint& print) {
    if constexpr (has_control_plane<T>) {
      return describe_timeout(print, transport_.survey(std::chrono::steady_clock::now() + survey_time),
                              timeout_);
    } else {
      return {failure_kind::timeout, -1,
              detail::text(describe(print), " did not finish within ", text_of(timeout_),
                           " (this transport cannot tell who is missing)")};
    }
  }

  void rethrow_swallowed() {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = std::exchange(swallowed_, nullptr);
      has_swallowed_.store(false, std::memory_order_release);
    }
    if (error) std::rethrow_exception(error);
  }

 public:
  ~group() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    task_queued_.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds survey_time{1000};
  /// The group whose script this thread is running.
  static inline thread_local const void* executing = nullptr;

  const fork_guard guard_;
  bootstrap boot_;
  const typename T::options options_;
  const std::chrono::milliseconds timeout_;
  T transport_;
  std::unique_ptr<flight_recorder> recorder_;

  std::mutex deciding_;  // guards the next two
  std::uint64_t decisions_ = 0;
  bool left_behind_ = false;

  std::atomic<std::uint64_t> issued_{0}, served_{0}, point_to_point_{0};
  std::atomic<int> turn_waiters_{0};
  std::atomic<bool> has_swallowed_{false}, failed_{false};
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable turn_passed_, task_queued_, task_finished_;
  std::deque<std::shared_ptr<task>> queue_;
  std::map<std::string, std::uint64_t> subgroups_;
  std::exception_ptr swallowed_;
  failure cause_;
  bool stopping_ = false;
  std::unique_ptr<joining_thread> progress_;  // last: joined before anything that it uses goes
};

}  // namespace ddpp::detail
