// SPDX-License-Identifier: BSL-1.0
// Matches messages to receives, and waits: what every transport that moves bytes itself has in common. A
// transport adds a `message_link`, which knows how bytes get to a peer and how to sleep until some come.
//
// One engine per rank and group. One mutex guards all its state and the link's; it is never held while
// blocking. User memory is only touched under it, so a request that has been destroyed is never written to.
//
// Matching: first-in first-out per (peer, tag). A message that matches no posted receive stays in the link
// (so the sender feels it) until another receive from that peer is posted; then it is taken out into a buffer
// of ours.
//
// Waiting: a waiter polls a bounded number of times; then one waiter at a time (the leader) parks in the
// link, the others sleep on a condition variable. Whoever polls completes everyone's operations and wakes who
// sleeps on them.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/operation.hpp>
#include <ddpp/detail/peer_set.hpp>
#include <ddpp/detail/shared_core.hpp>
#include <ddpp/detail/staging.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

class message_engine;

/// Tells the processor that this is a loop that waits.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// What a message says before its bytes.
struct arrival {
  int tag = 0;
  std::size_t bytes = 0;
  fingerprint print = {};  ///< meaningful for tags below 0
};

/// A message met a receive of another collective.
struct suspicion {
  int peer = -1;
  fingerprint mine = {};
  fingerprint theirs = {};
};

/// How long a waiter polls before it sleeps.
struct spin_policy {
  int tries = 2000;
  /// Give the core away between tries from the first: right where ranks outnumber cores. (From some hundred
  /// tries on it is always given away, as someone else may need it for what is waited for.)
  bool yield = false;
};

/// What a transport supplies. Unless it says otherwise, a function is called under the engine's mutex, must
/// not block, and may call the engine's functions "for links". Peers are never the rank itself.
class message_link {
 public:
  virtual ~message_link() = default;

  /// Moves what can move: sends of the peers in `engine.senders()`, messages from those in
  /// `engine.receivers()`.
  virtual void poll(message_engine& engine) = 0;
  /// A send to `peer` has been queued, or a receive from it posted: moves what can move for that peer, and
  /// sees to it that a leader who is parked learns what it now has to watch, if that makes a difference to
  /// it.
  virtual void push(message_engine& engine, int peer) = 0;
  virtual void pull(message_engine& engine, int peer) = 0;
  /// Called before a send to `peer` is queued; may throw what keeps the transport from reaching it.
  virtual void prepare_send(int peer) = 0;

  /// The leader is about to park. A ring() from here on ends that park, as does anything that comes in: the
  /// engine polls once more between the two.
  virtual std::uint32_t announce_park(const message_engine& engine) = 0;
  /// The poll has found something to do: park will not follow.
  virtual void cancel_park() = 0;
  /// Called WITHOUT the mutex, by the leader: sleeps until something may have changed, a ring, or `until`;
  /// never longer than some milliseconds if only so that the dead can be found. May call engine.abort().
  virtual void park(message_engine& engine, std::uint32_t ticket, deadline until) = 0;
  /// Wakes the leader if it is parked. (Any thread may call this while it holds the mutex.)
  virtual void ring() noexcept = 0;

  /// Tells the peers why the group fails. Returns the cause that counts: an earlier one, if the link knows of
  /// it.
  virtual failure spread(const failure& cause) = 0;
  /// Called WITHOUT the mutex: sooner or later calls engine.abort() with the table of who called what.
  virtual void investigate(message_engine& engine, const suspicion& found) = 0;

  /// Has the peer left in good order? Once true, a poll sees all that it sent before.
  virtual bool has_left(int peer) = 0;
  /// Only asked once it has left: has all that it sent been taken?
  virtual bool is_dry(int peer) = 0;
  /// The collective that the peer was in last, where the link can know.
  virtual std::optional<fingerprint> last_known(int /*peer*/) { return std::nullopt; }
  /// What the next message from a peer says of its collective, where that can be seen without taking the
  /// message, and is a collective's. For one that nobody waits for: a moment's work, and rarely asked.
  virtual std::optional<fingerprint> peek(int peer) = 0;
  /// The loan is over: the memory lent with engine.lend() may be used again.
  virtual void take_back(int peer, int loan) noexcept = 0;

  /// The collective that this rank is in, for others to read.
  virtual void publish(const fingerprint& print, bool inside) noexcept = 0;
};

/// A send or receive under way. Move-only; destroying it withdraws what is unfinished, after which the
/// caller's memory is not touched. Must not outlive its transport.
class engine_request {
 public:
  engine_request() = default;
  engine_request(message_engine& engine, operation& op) noexcept : engine_(&engine), op_(&op) {}
  engine_request(engine_request&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), op_(std::exchange(other.op_, nullptr)) {}
  engine_request& operator=(engine_request&& other) noexcept {
    engine_request dropped(std::move(*this));
    engine_ = std::exchange(other.engine_, nullptr);
    op_ = std::exchange(other.op_, nullptr);
    return *this;
  }
  ~engine_request();

  /// Whether it is done; moves data, does not block. Throws `group_failed` if it never will be.
  bool test();
  /// Blocks until it is done. Throws `group_failed` or `deadline_passed`.
  void wait(deadline until);

 private:
  message_engine* engine_ = nullptr;
  operation* op_ = nullptr;
};

class message_engine {
 public:
  message_engine(int rank, int size, message_link& link, spin_policy spin)
      : rank_(rank),
        link_(link),
        spin_(spin),
        peers_(static_cast<std::size_t>(size)),
        senders_(size),
        receivers_(size) {}
  message_engine(const message_engine&) = delete;
  message_engine& operator=(const message_engine&) = delete;
  ~message_engine() { stop_background(); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(peers_.size()); }

  // For users: see `transport` and its capabilities in concepts.hpp. From any thread.

  engine_request isend(std::span<const std::byte> data, int peer, int tag) {
    check(peer);
    engine_request request;
    const std::lock_guard lock(mutex_);
    if (peer != rank_) link_.prepare_send(peer);
    operation& op = new_operation(operation::kind::send, peer, tag, data.size());
    op.from = data.data();
    request = engine_request(*this, op);
    if (peer == rank_) {
      send_to_self(op);
    } else {
      queue_send(op);
    }
    if (tag >= 0) note_pending(op);
    return request;
  }

  engine_request irecv(std::span<std::byte> data, int peer, int tag) {
    check(peer);
    engine_request request;
    const std::lock_guard lock(mutex_);
    operation& op = new_operation(operation::kind::receive, peer, tag, data.size());
    op.into = data.data();
    request = engine_request(*this, op);
    post(op);
    if (tag >= 0) note_pending(op);
    return request;
  }

  template <class F>
  void consume(int peer, int tag, std::size_t bytes, deadline until, F&& f) {
    check(peer);
    operation* op = nullptr;
    engine_request request = post_view(peer, tag, bytes, op);
    request.wait(until);
    f(op->lent);  // `request` ends the loan
  }

  void abort(const failure& cause) {
    if (guard_.in_child()) return;
    const std::lock_guard lock(mutex_);
    fail(cause);
  }

  /// f is called under the mutex.
  void on_failure(std::function<void(const failure&)> f) {
    if (guard_.in_child()) return;
    const std::lock_guard lock(mutex_);
    failure_listener_ = std::move(f);
    if (failed() && failure_listener_) failure_listener_(cause_);
  }

  void enter(const fingerprint& print) {
    const std::lock_guard lock(mutex_);
    current_ = print;
    inside_ = true;
    link_.publish(current_, true);
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    inside_ = false;
    link_.publish(current_, false);
  }

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  failure cause() const { return failed() ? cause_ : failure{}; }

  /// Where this rank stands itself.
  rank_state state() const {
    const std::lock_guard lock(mutex_);
    return {rank_state::presence::here, inside_, current_};
  }

  void progress_in_background();

  /// Ends the background thread and finishes sends whose requests were dropped half-way, so that no peer is
  /// left with half a message: by `until` at the latest, and at once if the group has failed.
  void close(deadline until);

  /// Blocks until arrived(), which `peer` brings about in memory of the link's that both see, after which it
  /// ends the park of whoever is parked. Throws as a request's wait does.
  template <class Arrived>
  void wait_for(int peer, Arrived arrived, deadline until) {
    if (arrived() || spin_for(arrived)) return;
    const waiting here(*this);
    std::unique_lock lock(mutex_);
    const watching counted(*this);
    deadline next_look = std::chrono::steady_clock::now() + patience;
    for (;;) {
      poll();
      if (arrived()) return;
      if (suspicion_) settle_suspicion(lock);
      if (failed()) throw group_failed(cause_);
      if (peer_has_left(peer, arrived)) continue;
      const deadline now = std::chrono::steady_clock::now();
      if (now >= until) throw deadline_passed();
      if (now >= next_look) {
        look_for_contradictions();
        next_look = now + patience;
      }
      sleep(lock, until, arrived);
    }
  }

  /// A peer is in another collective: fails the group, and throws what failed it.
  [[noreturn, gnu::cold]] void fail_for(const suspicion& found) {
    link_.investigate(*this, found);
    throw group_failed(cause());
  }

  bool in_child() const noexcept { return guard_.in_child(); }

  // For links, under the mutex.

  /// Peers with queued sends; peers from which messages are wanted, or half-received.
  const peer_set& senders() const noexcept { return senders_; }
  const peer_set& receivers() const noexcept { return receivers_; }

  /// The send to `peer` whose turn it is, or null: bytes [moved, bytes) of `from` are still to go.
  operation* next_send(int peer) noexcept { return at(peer).sends.front(); }
  /// Part of it (at least of its header) has left: it can no longer be taken back.
  void begin_send(operation& op) noexcept { op.begun = true; }
  /// So many more bytes of it have been taken. It is done, and the next one's turn, when that makes all.
  void sent(operation& op, std::size_t bytes) noexcept {
    op.begun = true;
    op.moved += bytes;
    ++progress_;
    if (op.moved < op.bytes) return;
    peer_state& peer = at(op.peer);
    peer.sends.remove(op);
    senders_.set(op.peer, !peer.sends.empty());
    complete(op);
  }

  /// The peer's next message begins. False: leave it where it is. After true, its bytes must follow through
  /// `deliver`, `destination` with `delivered`, or `lend`; a message of no bytes is finished at once.
  bool begin_message(int peer, const arrival& message);
  /// Whether a message from the peer is half-received, and how much of it is to come.
  bool mid_message(int peer) const noexcept { return at(peer).receiving; }
  std::size_t missing_bytes(int peer) const noexcept {
    const peer_state& from = at(peer);
    return from.receiving ? from.message_bytes - from.received : 0;
  }
  /// Copies the next bytes of the message to where they belong.
  void deliver(int peer, std::span<const std::byte> bytes) {
    const std::span<std::byte> to = destination(peer);
    if (!to.empty()) copy_bytes(to.data(), bytes.data(), bytes.size());
    delivered(peer, bytes.size());
  }
  /// Where the rest of the message belongs, for links that can put it there themselves. Empty: nowhere, as
  /// nobody wants it any more. Valid until the mutex is released.
  std::span<std::byte> destination(int peer);
  void delivered(int peer, std::size_t bytes) noexcept;
  /// Whether the message that has begun can be lent as a whole instead of delivered.
  bool wants_view(int peer) const noexcept {
    const peer_state& from = at(peer);
    return from.receiving && from.target != nullptr && from.target->what == operation::kind::view;
  }
  /// Lends the whole message, at an address aligned to 64 bytes, until take_back(peer, loan), which may come
  /// from within this call. `loan` is 0 or more.
  void lend(int peer, std::span<const std::byte> message, int loan) noexcept {
    operation& view = *std::exchange(at(peer).target, nullptr);
    view.lent = message;
    view.loan = loan;
    end_message(peer);
    complete(view);
  }

  /// The group has failed for a cause that the peers know already.
  void accept_failure(const failure& cause) {
    if (!failed()) set_failure(cause);
  }
  /// The group fails for a cause found here.
  void fail(const failure& cause) {
    if (!failed()) set_failure(link_.spread(cause));
  }

  /// For threads of a link's own: run f() under the mutex.
  template <class F>
  decltype(auto) locked(F&& f) {
    const std::lock_guard lock(mutex_);
    return f();
  }

 private:
  friend engine_request;

  struct peer_state {
    operation_list sends;         // first-in first-out
    operation_list posted;        // receives and views that no message is bound to yet
    operation_list unexpected;    // messages, whole or half, that were taken out before they were asked for
    bool receiving = false;       // a message is half-received:
    operation* target = nullptr;  // for whom; null if nobody wants it any more
    std::size_t message_bytes = 0;
    std::size_t received = 0;
    bool stopped = false;  // it sent what does not fit; nothing is taken from it any more
  };

  // Waiting threads keep the background thread from competing with them.
  class waiting {
   public:
    explicit waiting(message_engine& engine) noexcept : engine_(engine) { engine_.waiting_.fetch_add(1); }
    ~waiting() {
      if (engine_.waiting_.fetch_sub(1) == 1 && engine_.has_background_.load()) engine_.wake_background();
    }
    waiting(const waiting&) = delete;
    waiting& operator=(const waiting&) = delete;

   private:
    message_engine& engine_;
  };

  /// Threads in wait_for. Under the mutex.
  class watching {
   public:
    explicit watching(message_engine& engine) noexcept : engine_(engine) { ++engine_.watchers_; }
    ~watching() { --engine_.watchers_; }
    watching(const watching&) = delete;
    watching& operator=(const watching&) = delete;

   private:
    message_engine& engine_;
  };

  /// Lets go of a lock for a while, also when an exception ends it.
  class unlocked_scope {
   public:
    explicit unlocked_scope(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
    ~unlocked_scope() { lock_.lock(); }
    unlocked_scope(const unlocked_scope&) = delete;
    unlocked_scope& operator=(const unlocked_scope&) = delete;

   private:
    std::unique_lock<std::mutex>& lock_;
  };

  /// The one who parks in the link. Under the mutex.
  class leading {
   public:
    explicit leading(message_engine& engine) noexcept : engine_(engine) { engine_.leader_ = true; }
    ~leading() {
      engine_.leader_ = false;
      if (engine_.followers_ == 0) return;
      if (engine_.watchers_ > 0)  // what they wait for completes no operation, so nobody else wakes them
        engine_.followers_wake_.notify_all();
      else
        engine_.followers_wake_.notify_one();
    }
    leading(const leading&) = delete;
    leading& operator=(const leading&) = delete;

   private:
    message_engine& engine_;
  };

  static constexpr int quick_tries = 300;
  static constexpr std::chrono::microseconds longest_spin{200};
  static constexpr std::chrono::milliseconds longest_stretch{10};
  static constexpr std::chrono::milliseconds patience{
      50};  // until a wait makes one look at what else there is
  static constexpr std::chrono::milliseconds follower_nap{
      20};  // to look at what only concerns one's own operation

  peer_state& at(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  const peer_state& at(int peer) const noexcept { return peers_[static_cast<std::size_t>(peer)]; }

  void check(int peer) const {
    if (peer < 0 || peer >= size()) {
      throw usage_error(text("rank ", rank_, ": there is no rank ", peer, " in a group of ", size()));
    }
    if (guard_.in_child()) {
      throw usage_error("this transport was made before fork(): only the parent can use it");
    }
  }

  // Operations.

  operation& new_operation(operation::kind what, int peer, int tag, std::size_t bytes) {
    operation& op = pool_.take();
    op.what = what;
    op.peer = peer;
    op.tag = tag;
    op.print = tag < 0 ? current_ : fingerprint{};
    op.bytes = bytes;
    op.from = nullptr;
    op.into = nullptr;
    op.moved = 0;
    op.begun = op.abandoned = op.slept_on = op.pending = false;
    op.claim = nullptr;
    op.lent = {};
    op.loan = -1;
    op.done.store(false, std::memory_order_relaxed);
    return op;
  }

  void recycle(operation& op) noexcept {
    if (op.pending) forget_pending(op);
    buffers_.give_back(std::move(op.buffer));
    op.buffer = {};
    pool_.give_back(op);
  }

  void complete(operation& op) noexcept {
    if (op.pending) forget_pending(op);
    if (op.abandoned) {
      recycle(op);
      return;
    }
    const bool slept_on = op.slept_on;
    op.done.store(true, std::memory_order_release);
    if (slept_on) wake_waiters();
  }

  // An unfinished operation of the user's: the background thread's business, if there is one. So is a send
  // that was dropped half-way.
  void note_pending(operation& op) noexcept {
    if (op.pending || op.done.load(std::memory_order_relaxed)) return;
    op.pending = true;
    if (++pending_ == 1 && has_background_.load(std::memory_order_relaxed)) background_.notify_one();
  }
  void forget_pending(operation& op) noexcept {
    op.pending = false;
    --pending_;
  }

  void queue_send(operation& op) {
    peer_state& peer = at(op.peer);
    const bool first = peer.sends.empty();
    peer.sends.push_back(op);
    senders_.set(op.peer, true);
    if (first && !failed()) link_.push(*this, op.peer);
  }

  void send_to_self(operation& op) {
    if (failed()) return;
    const std::span<const std::byte> data(op.from, op.bytes);
    const arrival message{op.tag, op.bytes, op.print};
    if (operation* const receive = find_posted(rank_, op.tag); receive != nullptr) {
      if (!fits(rank_, *receive, message)) return;
      begin_message(rank_, message);
    } else {
      keep_unexpected(rank_, message);
    }
    if (!data.empty()) deliver(rank_, data);
    complete(op);
  }

  operation* find_posted(int peer, int tag) const {
    return at(peer).posted.find([tag](const operation& op) { return op.tag == tag; });
  }

  engine_request post_view(int peer, int tag, std::size_t bytes, operation*& view) {
    engine_request request;
    const std::lock_guard lock(mutex_);
    operation& op = new_operation(operation::kind::view, peer, tag, bytes);
    view = &op;
    request = engine_request(*this, op);
    post(op);
    return request;
  }

  void post(operation& op) {
    if (failed()) return;
    peer_state& peer = at(op.peer);
    operation* const waiting_for_us = peer.unexpected.find(
        [&](const operation& message) { return message.tag == op.tag && message.claim == nullptr; });
    if (waiting_for_us != nullptr) {
      if (!fits(op.peer, op, {waiting_for_us->tag, waiting_for_us->bytes, waiting_for_us->print})) return;
      op.begun = true;
      op.claim = waiting_for_us;
      waiting_for_us->claim = &op;
      if (waiting_for_us->moved == waiting_for_us->bytes) hand_over(*waiting_for_us);
      return;
    }
    peer.posted.push_back(op);
    update_receivers(op.peer);
    if (op.peer != rank_) link_.pull(*this, op.peer);
  }

  void update_receivers(int peer) noexcept {
    if (peer != rank_) receivers_.set(peer, closing_ || !at(peer).posted.empty() || at(peer).receiving);
  }

  // Takes back an operation whose request is destroyed.
  void withdraw(operation& op) noexcept {
    const std::lock_guard lock(mutex_);
    if (op.done.load(std::memory_order_relaxed)) {
      if (op.loan >= 0) link_.take_back(op.peer, op.loan);
    } else if (op.what == operation::kind::send) {
      if (!withdraw_send(op)) return;
    } else {
      withdraw_receive(op);
    }
    recycle(op);
  }

  // False: its rest must still travel, from a copy, and the engine recycles it then.
  bool withdraw_send(operation& op) noexcept {
    peer_state& peer = at(op.peer);
    if (!op.listed) return true;
    if (op.begun && !failed()) {
      op.buffer = buffers_.take(op.bytes);
      copy_bytes(op.buffer.data() + op.moved, op.from + op.moved, op.bytes - op.moved);
      op.from = op.buffer.data();
      op.abandoned = true;
      note_pending(op);
      return false;
    }
    peer.sends.remove(op);
    senders_.set(op.peer, !peer.sends.empty());
    return true;
  }

  void withdraw_receive(operation& op) noexcept {
    peer_state& peer = at(op.peer);
    if (op.claim != nullptr) {  // bound to a message that is half here
      operation& message = *op.claim;
      if (peer.target == &message) peer.target = nullptr;
      peer.unexpected.remove(message);
      recycle(message);
    } else if (peer.target == &op) {
      peer.target = nullptr;
    } else if (op.listed) {
      peer.posted.remove(op);
      update_receivers(op.peer);
    }
  }

  // Messages.

  bool fits(int peer, const operation& receive, const arrival& message) {
    if (receive.tag < 0 && receive.print != message.print) {
      suspect(peer, receive.print, message.print);
      return false;
    }
    if (receive.bytes == message.bytes) return true;
    at(peer).stopped = true;
    fail(size_mismatch(peer, receive, message));
    return false;
  }

  [[gnu::cold]] failure size_mismatch(int peer, const operation& receive, const arrival& message) const {
    const std::string what = receive.tag >= 0 ? text("tag ", receive.tag) : describe(receive.print);
    return {failure_kind::mismatch, peer,
            text("rank ", peer, " sent ", message.bytes, " bytes, but rank ", rank_, " receives ",
                 receive.bytes, " bytes there (", what, ")")};
  }

  void suspect(int peer, const fingerprint& mine, const fingerprint& theirs) {
    at(peer).stopped = true;
    if (!suspicion_) suspicion_ = suspicion{peer, mine, theirs};
  }

  // Of the collective that this rank is in, but of another kind: nobody will ever ask for it.
  bool contradicts(const fingerprint& print) const noexcept {
    return inside_ && print.sequence == current_.sequence && print.step == current_.step && print != current_;
  }

  // Who waits for the wrong rank gets nothing from it to compare; but what others sent it tells.
  void look_for_contradictions() {
    for (int peer = 0; peer < size() && inside_ && !suspicion_; ++peer) {
      const operation* const kept = at(peer).unexpected.find([&](const operation& message) {
        return message.tag < 0 && message.claim == nullptr && contradicts(message.print);
      });
      if (kept != nullptr) return suspect(peer, current_, kept->print);
      if (peer == rank_ || at(peer).receiving) continue;
      const auto next = link_.peek(peer);
      if (next && contradicts(*next)) suspect(peer, current_, *next);
    }
  }

  operation& keep_unexpected(int peer, const arrival& message) {
    staging buffer = buffers_.take(message.bytes);
    operation& kept = new_operation(operation::kind::unexpected, peer, message.tag, message.bytes);
    kept.print = message.print;
    kept.buffer = std::move(buffer);
    kept.into = kept.buffer.data();
    at(peer).unexpected.push_back(kept);
    start_message(peer, &kept, message.bytes);
    return kept;
  }

  void start_message(int peer, operation* target, std::size_t bytes) noexcept {
    peer_state& from = at(peer);
    from.receiving = true;
    from.target = target;
    from.message_bytes = bytes;
    from.received = 0;
    update_receivers(peer);
    if (bytes == 0) delivered(peer, 0);
  }

  void end_message(int peer) noexcept {
    at(peer).receiving = false;
    update_receivers(peer);
  }

  // A message that was unexpected is whole, and claimed.
  void hand_over(operation& message) noexcept {
    operation& receive = *message.claim;
    at(message.peer).unexpected.remove(message);
    receive.claim = nullptr;
    if (receive.what == operation::kind::receive) {
      copy_bytes(receive.into, message.into, message.bytes);
    } else {
      receive.buffer = std::move(message.buffer);
      receive.lent = {receive.buffer.data(), message.bytes};
    }
    recycle(message);
    complete(receive);
  }

  // Failure.

  void set_failure(failure cause) {
    cause_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
    wake_waiters();
    background_.notify_all();
    if (failure_listener_) failure_listener_(cause_);
  }

  void wake_waiters() noexcept {
    if (followers_ > 0) followers_wake_.notify_all();
    if (leader_) link_.ring();
  }

  void wake_background() {
    const std::lock_guard lock(mutex_);
    background_.notify_one();
  }

  // Waiting.

  void wait(operation& op, deadline until) {
    if (op.done.load(std::memory_order_acquire)) return;
    const waiting here(*this);
    while (!spin(op, until)) {
      std::unique_lock lock(mutex_);
      op.slept_on = true;
      const std::uint64_t before = progress_;
      deadline next_look = std::chrono::steady_clock::now() + patience;
      do {
        if (try_finish(lock, op)) return;
        check_not_in_vain(op);
        const deadline now = std::chrono::steady_clock::now();
        if (now >= until) {
          op.slept_on = false;
          throw deadline_passed();
        }
        if (now >= next_look) {
          look_for_contradictions();
          next_look = now + patience;
        }
        sleep(lock, until, [&] { return op.done.load(std::memory_order_relaxed); });
      } while (progress_ == before);  // where something moves, more is likely to come soon
    }
  }

  template <class Arrived>
  bool spin_for(Arrived& arrived) {
    const int quick = spin_.yield ? 0 : quick_tries;
    for (int i = 0; i < quick; ++i) {
      if (arrived()) return true;
      pause();
    }
    deadline now = std::chrono::steady_clock::now();
    const deadline end = now + longest_spin;
    do {
      if (!core_.yield(now)) return false;
      if (arrived()) return true;
    } while (now < end);
    return false;
  }

  // True: look again. Who has left will not bring it about.
  template <class Arrived>
  bool peer_has_left(int peer, Arrived& arrived) {
    if (!link_.has_left(peer)) return false;
    if (arrived()) return true;
    const auto theirs = link_.last_known(peer);
    if (theirs && (contradicts(*theirs) || theirs->sequence > current_.sequence)) {
      suspect(peer, current_, *theirs);
    } else {
      fail({failure_kind::peer_lost, peer,
            text("rank ", peer, " left the group while rank ", rank_, " was waiting for it")});
    }
    return true;
  }

  bool test(operation& op) {
    if (op.done.load(std::memory_order_acquire)) return true;
    std::unique_lock lock(mutex_);
    if (try_finish(lock, op)) return true;
    check_not_in_vain(op);
    return false;
  }

  // Polls while something moves and a little longer; not for so long that the dead would go unnoticed.
  bool spin(operation& op, deadline until) {
    using clock = std::chrono::steady_clock;
    deadline end = deadline::max();  // of trying in vain; set by the first look at the clock
    deadline latest = until;         // of it all
    std::uint64_t seen = 0;
    int bursts = 0;
    deadline now = {};  // the last look at the clock since something moved
    for (int i = 1; i <= spin_.tries; ++i) {
      std::uint64_t moved = 0;
      {
        std::unique_lock lock(mutex_);
        if (try_finish(lock, op)) return true;
        moved = progress_;
      }
      if (moved != seen) {
        seen = moved;
        end = deadline::max();
        now = {};
        i = 0;
        if (++bursts % 64 == 0) {
          now = clock::now();
          if (bursts == 64) latest = std::min(until, now + longest_stretch);
          if (now >= latest) break;
        }
      }
      if (!spin_.yield && i <= quick_tries) {
        pause();
        continue;
      }
      if (now == deadline{}) now = clock::now();
      if (!core_.yield(now)) break;
      if (end == deadline::max()) end = now + longest_spin;
      if (now >= end) break;
    }
    return false;
  }

  // One poll. True: `op` is done. Throws if it never will be.
  bool try_finish(std::unique_lock<std::mutex>& lock, operation& op) {
    poll();
    if (op.done.load(std::memory_order_relaxed)) return true;
    if (suspicion_) settle_suspicion(lock);
    if (op.done.load(std::memory_order_relaxed)) return true;
    if (failed()) throw group_failed(cause_);
    return false;
  }

  void poll() {
    if (!failed()) link_.poll(*this);
  }

  void settle_suspicion(std::unique_lock<std::mutex>& lock) {
    const suspicion found = *std::exchange(suspicion_, std::nullopt);
    const unlocked_scope open(lock);
    link_.investigate(*this, found);
  }

  // Fails the group if `op` waits for one who has left.
  void check_not_in_vain(operation& op) {
    if (op.peer == rank_ || !link_.has_left(op.peer)) return;
    const bool sending = op.what == operation::kind::send;
    poll();  // all that it sent before is to be seen now
    if (op.done.load(std::memory_order_relaxed) || failed()) return;
    if (sending || (!at(op.peer).stopped && link_.is_dry(op.peer))) {
      const auto theirs = link_.last_known(op.peer);
      const auto went_on = [&] { return inside_ && theirs->sequence > current_.sequence; };
      if (op.tag < 0 && theirs && (contradicts(*theirs) || went_on()))
        return suspect(op.peer, current_, *theirs);
      fail({failure_kind::peer_lost, op.peer,
            text("rank ", op.peer, " left the group while rank ", rank_,
                 sending ? " was sending to it" : " was waiting for a message from it")});
    }
  }

  // Sleeps until something may have changed: as the leader if there is none. `done` is looked at under the
  // mutex.
  template <class Done>
  void sleep(std::unique_lock<std::mutex>& lock, deadline until, Done done) {
    if (leader_) {
      ++followers_;
      followers_wake_.wait_until(lock, std::min(until, std::chrono::steady_clock::now() + follower_nap));
      --followers_;
      return;
    }
    const std::uint32_t ticket = link_.announce_park(*this);
    poll();
    if (done() || failed() || suspicion_) {
      link_.cancel_park();
      return;
    }
    const leading here(*this);
    const unlocked_scope open(lock);
    link_.park(*this, ticket, until);
  }

  void run_background();
  void stop_background();

  const int rank_;
  message_link& link_;
  const spin_policy spin_;
  shared_core core_;
  const fork_guard guard_;

  mutable std::mutex mutex_;  // guards all below that is not atomic
  std::vector<peer_state> peers_;
  peer_set senders_, receivers_;
  operation_pool pool_;
  staging_pool buffers_;
  fingerprint current_ = {};
  bool inside_ = false;
  bool closing_ = false;        // what comes is dropped
  std::uint64_t progress_ = 0;  // grows with every piece that has moved
  std::optional<suspicion> suspicion_;
  failure cause_;  // written before `failed_`, never after
  std::atomic<bool> failed_{false};
  std::function<void(const failure&)> failure_listener_;

  bool leader_ = false;  // someone is parked in the link
  int followers_ = 0, watchers_ = 0;
  std::condition_variable followers_wake_;
  std::atomic<int> waiting_{0};

  int pending_ = 0;  // unfinished operations that the background thread is for
  std::atomic<bool> has_background_{false};
  bool stopping_ = false;
  std::condition_variable background_;
  std::unique_ptr<joining_thread> background_thread_;
};

inline bool message_engine::begin_message(int peer, const arrival& message) {
  peer_state& from = at(peer);
  if (from.stopped) return false;
  if (closing_) {
    start_message(peer, nullptr, message.bytes);
    return true;
  }
  if (operation* const receive = find_posted(peer, message.tag); receive != nullptr) {
    if (!fits(peer, *receive, message)) return false;
    from.posted.remove(*receive);
    receive->begun = true;
    start_message(peer, receive, message.bytes);
    return true;
  }
  if (from.posted.empty()) return false;
  if (message.tag < 0 && contradicts(message.print)) {
    suspect(peer, current_, message.print);
    return false;
  }
  keep_unexpected(peer, message);
  return true;
}

inline std::span<std::byte> message_engine::destination(int peer) {
  peer_state& from = at(peer);
  if (!from.receiving || from.target == nullptr) return {};
  operation& target = *from.target;
  if (target.into == nullptr && target.what == operation::kind::view) {
    target.buffer = buffers_.take(target.bytes);
    target.into = target.buffer.data();
  }
  return {target.into + from.received, from.message_bytes - from.received};
}

inline void message_engine::delivered(int peer, std::size_t bytes) noexcept {
  peer_state& from = at(peer);
  from.received += bytes;
  ++progress_;
  if (!from.receiving || from.received < from.message_bytes) return;
  operation* const target = std::exchange(from.target, nullptr);
  end_message(peer);
  if (target == nullptr) return;
  target->moved = target->bytes;
  if (target->what == operation::kind::unexpected) {
    if (target->claim != nullptr) hand_over(*target);
    return;
  }
  if (target->what == operation::kind::view) target->lent = {target->into, target->bytes};
  complete(*target);
}

inline void message_engine::progress_in_background() {
  const std::lock_guard lock(mutex_);
  if (has_background_.load(std::memory_order_relaxed) || stopping_ || size() == 1) return;
  background_thread_ = std::make_unique<joining_thread>([this] { run_background(); });
  has_background_.store(true);
}

inline void message_engine::run_background() {
  std::unique_lock lock(mutex_);
  for (;;) {
    background_.wait(lock, [&] { return stopping_ || (pending_ > 0 && waiting_.load() == 0 && !failed()); });
    if (stopping_) return;
    try {
      poll();
      if (suspicion_) settle_suspicion(lock);
      if (stopping_ || failed() || pending_ == 0) continue;
      sleep(lock, deadline::max(), [&] { return stopping_ || pending_ == 0; });
    } catch (const std::exception& error) {  // out of memory, say
      fail({failure_kind::revoked, rank_,
            text("rank ", rank_, " could not go on in the background: ", error.what())});
    }
  }
}

inline void message_engine::stop_background() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    background_.notify_all();
    wake_waiters();
  }
  background_thread_.reset();
}

inline void message_engine::close(deadline until) {
  stop_background();
  std::unique_lock lock(mutex_);
  // What comes now is for nobody; but a peer that closes as well may have to get rid of it before it can go.
  closing_ = true;
  for (int peer = 0; peer < size(); ++peer) update_receivers(peer);
  const auto finished = [&] { return senders_.empty() || failed(); };
  for (;;) {
    poll();
    senders_.for_each([&](int peer) {
      if (!link_.has_left(peer)) return;
      while (operation* const op = at(peer).sends.front()) sent(*op, op->bytes - op->moved);
    });
    if (finished() || std::chrono::steady_clock::now() >= until) return;
    sleep(lock, until, finished);
  }
}

inline engine_request::~engine_request() {
  if (op_ != nullptr && !engine_->in_child()) engine_->withdraw(*op_);
}

inline bool engine_request::test() { return op_ == nullptr || engine_->test(*op_); }

inline void engine_request::wait(deadline until) {
  if (op_ != nullptr) engine_->wait(*op_, until);
}

}  // namespace ddpp::detail
