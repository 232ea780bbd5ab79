// SPDX-License-Identifier: BSL-1.0
// The transport behind basic_tcp, whatever its security policy: the message engine over sockets, and the
// control plane beside it.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/detail/tcp_control.hpp>
#include <ddpp/detail/tcp_link.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// See `transport` and its capabilities in concepts.hpp for what the functions do.
class tcp_transport {
 public:
  tcp_transport(const tcp_transport&) = delete;
  tcp_transport& operator=(const tcp_transport&) = delete;

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

  void enter(const fingerprint& print) { core_->engine.enter(print); }
  void leave() { core_->engine.leave(); }
  bool failed() const noexcept { return core_->engine.failed(); }
  failure cause() const { return core_->engine.cause(); }
  /// Asks all ranks over the control plane.
  std::vector<rank_state> survey(deadline until) { return core_->survey(until); }

  verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
    return core_->agree(number, mine, until);
  }

  void progress_in_background() { core_->engine.progress_in_background(); }

 protected:
  tcp_transport(const bootstrap& boot, bool open) : core_(std::make_unique<core>(boot, open)) {}

  // A forked child has none of the threads that its copies of the mutexes and condition variables know of.
  ~tcp_transport() {
    if (guard_.in_child()) core::keep(*core_.release());
  }

 private:
  struct core final : control_events {
    core(const bootstrap& boot, bool open)
        : control(boot, credentials{boot.secret, open}),
          link(boot.size, control),
          engine(boot.rank, boot.size, link, spin),
          timeout(boot.timeout) {
      link.serve(engine);
      if (boot.size == 1) return;
      try {
        control.come_together(boot, *this);
      } catch (...) {
        control.stop();
        throw;
      }
    }
    core(const core&) = delete;
    core& operator=(const core&) = delete;

    // What was sent is in the kernel, which delivers it after us; only sends dropped half-way need time.
    ~core() override {
      engine.close(deadline_after(timeout));
      const fingerprint last = engine.state().last;
      engine.locked([&] { link.say_goodbye(engine, last); });
      control.stop();
    }

    std::vector<rank_state> survey(deadline until) {
      if (engine.size() == 1) return {engine.state()};
      return control.ask_everyone(until);
    }

    verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
      if (engine.in_child()) {
        throw usage_error("this transport was made before fork(): only the parent can use it");
      }
      if (engine.size() == 1) {
        return {{attendance::voted}, mine.yes, mine.decision, true, mine.note.substr(0, longest_note)};
      }
      return control.agree(number, mine, until);
    }

    void connected(int peer, descriptor socket) override { link.connected(peer, std::move(socket)); }
    void failed(const failure& cause) override {
      engine.locked([&] { engine.accept_failure(cause); });
    }
    void presence_changed() override { link.presence_changed(); }
    rank_state own_state() override { return link.own_state(); }

    static void keep(core& forgotten) noexcept {
      static std::atomic<core*> kept{nullptr};  // reachable, so not a leak
      forgotten.kept_before = kept.exchange(&forgotten);
    }

    tcp_control control;
    tcp_link link;
    message_engine engine;
    std::chrono::milliseconds timeout;
    core* kept_before = nullptr;
  };

  /// A try is a system call per peer: about a hundred before sleeping. Between them the core is given away,
  /// as the kernel likes to put both ends of a connection on one.
  static constexpr spin_policy spin{.tries = 100, .yield = true};

  fork_guard guard_;
  std::unique_ptr<core> core_;
};

}  // namespace ddpp::detail
