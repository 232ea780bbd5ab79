// SPDX-License-Identifier: BSL-1.0
// What the backends `threads` and `shm` have in common: everything but where the memory comes from.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/available_cores.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fabric_agreement.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/fabric_slots.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/memory_fabric.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/detail/slot_writer.hpp>
#include <ddpp/detail/symmetric_window.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// See `transport` and its capabilities in concepts.hpp for what the functions do.
class memory_transport {
 public:
  memory_transport(const memory_transport&) = delete;
  memory_transport& operator=(const memory_transport&) = delete;

  int rank() const noexcept { return core_->engine.rank(); }
  int size() const noexcept { return core_->engine.size(); }

  engine_request isend(std::span<const std::byte> data, int peer, int tag) {
    return core_->engine.isend(data, peer, tag);
  }
  engine_request irecv(std::span<std::byte> data, int peer, int tag) {
    return core_->engine.irecv(data, peer, tag);
  }
  template <class F>
  void consume(int peer, int tag, std::size_t bytes, deadline until, F&& f) {
    core_->engine.consume(peer, tag, bytes, until, std::forward<F>(f));
  }
  void abort(const failure& cause) { core_->engine.abort(cause); }
  void on_failure(std::function<void(const failure&)> f) { core_->engine.on_failure(std::move(f)); }

  void enter(const fingerprint& print) {
    core_->slots.check();  // others may be reading what this rank was in when the group failed
    // A broadcast is over before all have come to it. What one of them did instead is seen here at the
    // latest; until then this rank is, to the others, still in it.
    if (const fingerprint* const unsettled = core_->slots.unsettled()) {
      core_->engine.enter(*unsettled);
      core_->slots.settle(deadline_after(core_->timeout));
    }
    core_->slots.enter(print);
    core_->engine.enter(print);
  }
  void leave() { core_->engine.leave(); }
  // The block tells of a failure before the engine has polled.
  bool failed() const noexcept { return core_->engine.failed() || core_->memory->has_failed(); }
  failure cause() const {
    if (!core_->engine.failed() && core_->memory->has_failed()) return core_->memory->first_failure();
    return core_->engine.cause();
  }
  /// Reads shared memory: answers at once.
  std::vector<rank_state> survey(deadline) { return core_->link.survey(); }

  verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
    return fabric_agreement(*core_->memory, rank()).decide(number, mine, until);
  }

  fabric_slots& shared_slots() noexcept { return core_->slots; }

  window_offer offer_window(std::size_t bytes) { return core_->memory->offer_window(bytes); }
  std::shared_ptr<symmetric_window> accept_window(const std::string& address, std::size_t bytes) {
    return core_->memory->accept_window(address, rank(), bytes);
  }
  std::shared_ptr<std::byte> add_window(const std::shared_ptr<symmetric_window>& window) {
    return symmetric_windows::add(core_->slots.windows(), window);
  }

  void progress_in_background() { core_->engine.progress_in_background(); }

 protected:
  /// `memory` is a block at which all ranks have arrived. `timeout` bounds the destructor.
  memory_transport(std::unique_ptr<fabric_memory> memory, int rank, std::chrono::milliseconds timeout)
      : core_(std::make_unique<core>(std::move(memory), rank, timeout)) {}

  // A forked child has none of the threads that its copies of the mutexes and condition variables know of.
  ~memory_transport() {
    if (guard_.in_child()) core::keep(*core_.release());
  }

 private:
  struct core {
    core(std::unique_ptr<fabric_memory> memory_, int rank, std::chrono::milliseconds timeout_)
        : memory(std::move(memory_)),
          is_crowded(memory->ranks() > available_cores()),
          link(*memory, rank),
          engine(rank, memory->ranks(), link, {.tries = 2000, .yield = is_crowded}),
          slots(*memory, link, engine, rank, slot_writer(!is_crowded)),
          timeout(timeout_) {}
    core(const core&) = delete;
    core& operator=(const core&) = delete;
    ~core() {
      engine.close(deadline_after(timeout));
      link.leave();
    }

    static void keep(core& forgotten) noexcept {
      static std::atomic<core*> kept{nullptr};  // reachable, so not a leak
      forgotten.kept_before = kept.exchange(&forgotten);
    }

    std::unique_ptr<fabric_memory> memory;
    const bool is_crowded;  // not every rank can have a core
    memory_link link;
    message_engine engine;
    fabric_slots slots;
    std::chrono::milliseconds timeout;
    core* kept_before = nullptr;
  };

  fork_guard guard_;
  std::unique_ptr<core> core_;
};

}  // namespace ddpp::detail
