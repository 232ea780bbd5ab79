// SPDX-License-Identifier: BSL-1.0
// The control plane over TCP: how the ranks of a group come together, find each other's data ports, learn of
// deaths, goodbyes and failures, decide together, and ask where everyone stands.
//
// One thread per rank, asleep in poll(2) until something happens, with a connection to the hub (tcp_star).
// The hub rules: the first cause that reaches it is the group's, and it tells all. Per connection messages
// keep their order, so a cause reaches every rank before the goodbye of who proposed it. On success nothing
// travels.
//
// The thread also accepts and makes the data connections, so that no stranger comes near the data path: it
// hands over a connection once both ends have proven themselves.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_agreement.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/detail/tcp_data_calls.hpp>
#include <ddpp/detail/tcp_first_cause.hpp>
#include <ddpp/detail/tcp_listener.hpp>
#include <ddpp/detail/tcp_meeting.hpp>
#include <ddpp/detail/tcp_presence.hpp>
#include <ddpp/detail/tcp_star.hpp>
#include <ddpp/detail/tcp_surveys.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// What the control thread tells its transport. Called on that thread, holding no lock.
class control_events {
 public:
  virtual ~control_events() = default;
  virtual void connected(int peer, descriptor socket) = 0;
  virtual void failed(const failure& cause) = 0;
  /// Someone left.
  virtual void presence_changed() = 0;
  virtual rank_state own_state() = 0;
};

class tcp_control final : private tcp_star::owner {
 public:
  tcp_control(const bootstrap& boot, const credentials& known)
      : rank_(boot.rank),
        timeout_(boot.timeout),
        known_(known),
        presence_(boot.size),
        meeting_(boot.rank, boot.size),
        cause_(wake_),
        surveys_(boot.rank, presence_, wake_),
        agreement_(boot.rank, boot.size),
        star_(boot.rank, known_, meeting_, presence_, agreement_, *this),
        data_calls_(boot.rank, boot.size, known_) {}
  tcp_control(const tcp_control&) = delete;
  tcp_control& operator=(const tcp_control&) = delete;
  ~tcp_control() { stop(); }

  /// Collective. Listens, finds everyone, starts the thread. Blocks until all are there or boot.deadline:
  /// timeout_error that names who is missing; init_error when one gives up or publishes loopback to others.
  void come_together(const bootstrap& boot, control_events& events) {
    events_ = &events;
    listener_.emplace(meeting_.listen(boot), known_);
    if (descriptor to_rank_0 = meeting_.meet_rank_0(boot, known_)) {
      star_.begin(std::move(to_rank_0));
      star_.tell_hub({kind::endpoint, rank_, 0, meeting_.own_endpoint().text()});
    } else {
      star_.begin();
    }
    thread_ = std::make_unique<joining_thread>([this] { run(); });
    try {
      meeting_.await_everyone(boot);
    } catch (const timeout_error& e) {
      if (rank_ == 0) spread({failure_kind::timeout, rank_, e.what()});  // the others know less
      throw;
    } catch (const std::exception& e) {
      spread({failure_kind::revoked, rank_, e.what()});
      throw;
    }
  }

  /// Says goodbye to all and ends the thread; bounded by about two seconds.
  void stop() {
    if (guard_.in_child()) return;
    order([&] { is_stopping_ = true; });
    thread_.reset();
  }

  // May be called under the engine's mutex, from any thread; none of these blocks but `spread`.

  bool has_left(int peer) const noexcept { return presence_.of(peer) == tcp_presence::state::left; }
  /// The collective that a peer was in when it left, if it has and was in one.
  std::optional<fingerprint> last_words(int peer) const { return presence_.last_words(peer); }
  void want_connection(int peer) {
    order([&] { wanted_.push_back(peer); });
  }
  /// The data connection to a peer has ended without a goodbye: it is lost, unless its goodbye or the hub's
  /// ruling comes shortly.
  void suspect(int peer, const char* how) { suspect({peer, goodbye_due(), true, how}); }
  void stalled() {
    order([&] { is_stalled_ = true; });
  }
  /// Sooner or later rules with the table of who called what.
  void investigate(int peer, const fingerprint& mine, const fingerprint& theirs) {
    surveys_.investigate(peer, mine, theirs);
  }
  /// Proposes a cause to the hub and returns its ruling: this cause or an earlier one. Waits two seconds at
  /// most; the control thread never waits for the caller.
  failure spread(const failure& cause) { return cause_.spread(cause); }

  // Not under the engine's mutex.

  /// Blocks until all who are there have answered, or `until`.
  std::vector<rank_state> ask_everyone(deadline until) { return surveys_.ask(until); }

  /// See has_agreement. Not from two threads at once.
  verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
    std::unique_lock lock(mutex_);
    vote_ = {number, mine, until};
    verdict_.reset();
    wake_.set();
    decided_.wait(lock, [&] { return verdict_.has_value(); });
    return std::move(*verdict_);
  }

 private:
  using kind = control_wire::kind;
  using message = control_wire::message;

  static constexpr std::chrono::milliseconds goodbye_delay{500};

  /// Someone who will turn out to be lost, unless its goodbye or the hub's ruling comes before.
  struct suspicion_of_death {
    int peer = -1;
    deadline due = {};
    bool is_missed = false;  // somebody needs it: the group fails
    const char* how = "";
  };

  template <class F>
  void order(const F& f) {
    {
      const std::lock_guard lock(mutex_);
      f();
    }
    wake_.set();
  }
  void suspect(const suspicion_of_death& of) {
    order([&] { suspects_.push_back(of); });
  }
  static deadline goodbye_due() { return std::chrono::steady_clock::now() + goodbye_delay; }

  // The thread. Everything is read before anything is concluded: see tcp_agreement.

  void run();
  void wait_for_something();
  void take_orders();
  void serve_callers();
  void serve_data_calls();
  void serve_suspects(deadline now);
  void serve_surveys(deadline now);
  void serve_agreement(deadline now);
  void connect_to(int peer);

  // What others say.

  bool take_from_hub(const message& m) override;
  bool take_from_member(int member, const message& m) override;
  bool take_from_anyone(int from, const message& m);
  bool take_endpoint(int member, const std::string& text);
  void relay_question(int asker, std::uint64_t survey);
  bool take_answer(const message& m);
  bool take_lost(const message& m);
  void leaves(int peer, const std::optional<fingerprint>& last_words);

  // What the star finds out.

  void member_is_lost(int member, const std::string& how) override { lost(member, how); }
  void hub_is_lost(int hub,
                   const char* how) override {  // all see this, and say the same without asking each other
    cause_.withdraw();
    lost(hub, how);
  }
  void may_have_left(int peer) override {
    suspect({peer, goodbye_due(), false, "nobody listens at its address any more"});
  }
  void has_new_hub() override {
    if (const auto& proposal = cause_.proposal()) {
      star_.leads() ? rule(*proposal) : star_.tell_hub(control_wire::of_failure(*proposal));
    }
    surveys_.ask_again();
    wake_.set();  // for a goodbye that waits for this
  }
  std::optional<failure> ruling() const override { return cause_.ruling(); }
  fingerprint last_collective() const override { return events_->own_state().last; }

  // Deaths and failures.

  void lost(int peer, const std::string& how) {
    note_lost(peer, how);
    if (star_.hub() != peer) star_.tell_hub({kind::lost, peer, 0, how});
    propose({failure_kind::peer_lost, peer, "rank " + std::to_string(peer) + " was lost: " + how});
  }
  void note_lost(int peer, const std::string& how) {
    if (!presence_.lose(peer)) return;
    agreement_.gone(peer);
    if (star_.leads()) star_.tell_members({kind::lost, peer, 0, how});
  }
  void propose(const failure& cause) {
    if (star_.leads() || star_.hub() == -1) return rule(cause);
    if (cause_.propose(cause, std::chrono::steady_clock::now())) {
      star_.tell_hub(control_wire::of_failure(*cause_.proposal()));
    }
  }
  void rule(const failure& cause);

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const credentials known_;
  const fork_guard guard_;
  wake_event wake_;
  control_events* events_ = nullptr;
  tcp_presence presence_;
  tcp_meeting meeting_;
  tcp_first_cause cause_;
  tcp_surveys surveys_;

  // The thread's own once it runs.
  tcp_agreement agreement_;
  tcp_star star_;
  tcp_data_calls data_calls_;
  std::optional<tcp_listener> listener_;
  std::vector<int> wanted_later_;  // until everyone's address is known
  std::vector<pollfd> entries_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable decided_;
  bool is_stopping_ = false;
  bool is_stalled_ = false;
  std::vector<int> wanted_;
  std::vector<suspicion_of_death> suspects_;
  std::optional<cast_vote> vote_;
  std::optional<verdict> verdict_;

  std::unique_ptr<joining_thread> thread_;
};

// The thread.

inline void tcp_control::run() {
  for (;;) {
    wait_for_something();
    take_orders();
    star_.read();
    serve_callers();
    const auto now = std::chrono::steady_clock::now();
    star_.advance(now);
    serve_data_calls();
    serve_suspects(now);
    serve_surveys(now);
    serve_agreement(now);
    if (star_.has_left(now)) return;
  }
}

inline void tcp_control::wait_for_something() {
  entries_.assign({{wake_.get(), POLLIN, 0}});
  listener_->add_to(entries_);
  data_calls_.add_to(entries_);
  star_.add_to(entries_);
  deadline due = std::min({listener_->next_due(), data_calls_.next_due(), star_.next_due(),
                           surveys_.next_due(), agreement_.next_due(), cause_.overdue_at()});
  {
    const std::lock_guard lock(mutex_);
    for (const suspicion_of_death& each : suspects_) due = std::min(due, each.due);
  }
  const bool is_polled = ::poll(entries_.data(), entries_.size(), poll_timeout(due)) >= 0;
  star_.note(entries_, is_polled);
}

inline void tcp_control::take_orders() {
  wake_.clear();
  const auto now = std::chrono::steady_clock::now();
  std::vector<int> wanted = std::exchange(wanted_later_, {});
  std::optional<cast_vote> vote;
  bool is_stalled = false, is_stopping = false;
  {
    const std::lock_guard lock(mutex_);
    wanted.insert(wanted.end(), wanted_.begin(), wanted_.end());
    wanted_.clear();
    vote = std::exchange(vote_, std::nullopt);
    is_stalled = std::exchange(is_stalled_, false);
    is_stopping = is_stopping_;
  }
  if (const auto cause = cause_.take_wanted()) propose(*cause);
  if (vote) agreement_.vote(vote->number, std::move(vote->ballot), vote->until, now);
  for (const int peer : wanted) connect_to(peer);
  if (is_stalled) star_.tell_hub({kind::stalled, rank_});
  if (is_stalled && star_.leads() && !cause_.is_ruled()) surveys_.look_for_mismatch(now);
  if (is_stopping) star_.leave(now);
}

inline void tcp_control::connect_to(int peer) {
  if (data_calls_.has_connection(peer) || data_calls_.is_calling(peer) || star_.is_leaving()) return;
  if (presence_.of(peer) == tcp_presence::state::lost) {
    return lost(peer, "nobody listens at its address any more");
  }
  if (!presence_.is_here(peer)) return;
  if (meeting_.endpoint(peer).port == 0) return wanted_later_.push_back(peer);
  data_calls_.begin(peer, meeting_, deadline_after(timeout_));
}

inline void tcp_control::serve_callers() {
  const auto judge = [&](const introduction& who) {
    const bool is_member = who.group == meeting_.group() && who.to == rank_ && who.from >= 0 &&
                           who.from < presence_.size() && who.from != rank_;
    if (is_member && who.what == purpose::control) return star_.judge(who.from);
    if (is_member && who.what == purpose::data && presence_.is_here(who.from)) {
      return data_calls_.judge(who.from);
    }
    return admission::not_expected;
  };
  listener_->serve(judge, [&](descriptor socket, const introduction& who) {
    if (who.what == purpose::control) return star_.welcome(who.from, std::move(socket));
    data_calls_.note_connection(who.from);
    events_->connected(who.from, std::move(socket));
  });
}

inline void tcp_control::serve_data_calls() {
  for (tcp_data_calls::finished& each : data_calls_.serve()) {
    if (each.socket) {
      events_->connected(each.peer, std::move(each.socket));
    } else if (each.is_refused && presence_.is_here(each.peer)) {
      lost(each.peer, each.problem);
    } else if (presence_.is_here(each.peer)) {
      // Who does not answer is there but stopped, as one that does not come.
      const bool is_absent = each.is_out_of_time;
      propose({is_absent ? failure_kind::timeout : failure_kind::revoked, is_absent ? each.peer : rank_,
               "rank " + std::to_string(rank_) + " could not connect to rank " + std::to_string(each.peer) +
                   ": " + each.problem});
    }
  }
}

inline void tcp_control::serve_suspects(deadline now) {
  std::vector<suspicion_of_death> due;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(suspects_, [&](const suspicion_of_death& each) {
      if (now < each.due) return false;
      due.push_back(each);
      return true;
    });
  }
  for (const suspicion_of_death& each : due) {
    if (!presence_.is_here(each.peer)) continue;
    if (each.is_missed)
      lost(each.peer, each.how);
    else
      note_lost(each.peer, each.how);
  }
  if (now >= cause_.overdue_at()) rule(*cause_.proposal());
}

inline void tcp_control::serve_surveys(deadline now) {
  if (surveys_.is_idle()) return;
  const tcp_surveys::outcome found = surveys_.serve(events_->own_state(), star_.has_hub(), now);
  for (const std::uint64_t id : found.to_ask) {
    const message question{kind::ask, rank_, id};
    star_.tell_hub(question);
    if (star_.leads()) star_.tell_members(question);
  }
  for (const failure& each : found.causes) propose(each);
}

inline void tcp_control::serve_agreement(deadline now) {
  agreement_.advance(now);
  if (agreement_.has_lost_patience() && star_.hub() != -1) star_.depose(star_.hub());
  for (const tcp_agreement::letter& each : agreement_.take_letters()) star_.tell(each.to, each.what);
  if (auto decided = agreement_.take_verdict()) {
    const std::lock_guard lock(mutex_);
    verdict_ = std::move(decided);
    decided_.notify_all();
  }
}

// What others say.

inline bool tcp_control::take_from_member(int member, const message& m) {
  switch (m.kind) {
    case kind::endpoint:
      return take_endpoint(member, m.body);
    case kind::ask:
      relay_question(member, m.number);
      return true;
    case kind::state:
      return take_answer(m);
    case kind::stalled:
      if (!cause_.is_ruled()) surveys_.look_for_mismatch(std::chrono::steady_clock::now());
      return true;
    case kind::leads:
      star_.note_leader(member);
      return true;
    case kind::endpoints:
      return false;
    default:
      return take_from_anyone(member, m);
  }
}

inline bool tcp_control::take_from_hub(const message& m) {
  switch (m.kind) {
    case kind::endpoints:
      meeting_.take_list(m.body);
      return true;
    case kind::ask:
      star_.tell_hub(control_wire::of_state(rank_, events_->own_state(), m.rank, m.number));
      return true;
    case kind::state:
      return surveys_.take(m);
    case kind::leads:
      return true;
    case kind::endpoint:
    case kind::stalled:
      return false;
    default:
      return take_from_anyone(star_.hub(), m);
  }
}

inline bool tcp_control::take_from_anyone(int from, const message& m) {
  if (m.kind == kind::failed) {
    rule(control_wire::failure_of(m));
    return true;
  }
  if (m.rank < 0 || m.rank >= presence_.size()) return false;
  switch (m.kind) {
    case kind::left:
      m.rank == rank_ ? star_.note_goodbye() : leaves(m.rank, control_wire::last_words_of(m));
      return true;
    case kind::lost:
      return take_lost(m);
    case kind::deposed:
      star_.depose(m.rank);
      return true;
    default:
      return agreement_.take(from, m, std::chrono::steady_clock::now());
  }
}

inline bool tcp_control::take_endpoint(int member, const std::string& text) {
  if (!meeting_.take_endpoint(member, text)) return false;
  if (!meeting_.is_complete()) return true;
  const std::string list = meeting_.list();
  star_.tell_members({kind::endpoints, rank_, 0, list});
  meeting_.take_list(list);
  return true;
}

/// The answers of the members come back through this rank.
inline void tcp_control::relay_question(int asker, std::uint64_t survey) {
  for (int r = 0; r < presence_.size(); ++r) {
    if (r != asker && r != star_.hub()) star_.tell(r, {kind::ask, asker, survey});
  }
  star_.tell(asker, control_wire::of_state(rank_, events_->own_state(), asker, survey));
}

inline bool tcp_control::take_answer(const message& m) {
  const auto standing = control_wire::standing_of(m);
  if (!standing) return false;
  if (standing->asker == rank_) return surveys_.take(m);
  star_.tell(standing->asker, m);
  return true;
}

inline bool tcp_control::take_lost(const message& m) {
  if (m.rank == rank_)
    star_.cast_out();
  else if (star_.leads())
    lost(m.rank, m.body);
  else
    note_lost(m.rank, m.body);
  return true;
}

inline void tcp_control::leaves(int peer, const std::optional<fingerprint>& last_words) {
  if (!presence_.leave(peer, last_words)) return;
  meeting_.fail({failure_kind::peer_lost, peer,
                 "rank " + std::to_string(peer) + " gave up while the group came together"});
  agreement_.gone(peer);
  // Itself included: so it knows that it has been heard.
  if (star_.leads()) {
    star_.tell_members(control_wire::of_goodbye(peer, last_words ? *last_words : fingerprint()));
  }
  events_->presence_changed();
}

inline void tcp_control::rule(const failure& cause) {
  const auto ruling = cause_.rule(cause);
  if (!ruling) return;
  const bool is_of_a_rank = ruling->rank >= 0 && ruling->rank < presence_.size() && ruling->rank != rank_;
  if (ruling->kind == failure_kind::peer_lost && is_of_a_rank) note_lost(ruling->rank, "");
  meeting_.fail(*ruling);
  star_.tell_members(control_wire::of_failure(*ruling));
  events_->failed(*ruling);
}

}  // namespace ddpp::detail
