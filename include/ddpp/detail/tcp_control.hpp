// SPDX-License-Identifier: BSL-1.0
// The control plane over TCP: how the ranks of a group come together, find each other's data ports, learn of
// deaths, goodbyes and failures, and ask where everyone stands.
//
// One thread per rank, asleep in poll(2) until something happens. Every rank has one authenticated connection
// to the hub: rank 0 at first, the lowest rank that is left once the hub has left in good order. The hub
// rules: the first cause that reaches it is the group's, and it tells all. Per connection messages keep their
// order, so a cause reaches every rank before the goodbye of who proposed it.
//
// The thread also accepts and makes the data connections, so that no stranger comes near the data path: it
// hands over a connection once both ends have proven themselves. Two ranks that connect to each other at
// once: the lower rank's connection stays, the other is answered `duplicate`.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_agreement.hpp>
#include <ddpp/detail/tcp_connector.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/detail/tcp_endpoint.hpp>
#include <ddpp/detail/tcp_listener.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
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

class tcp_control {
 public:
  using presence = rank_state::presence;
  using milliseconds = std::chrono::milliseconds;

  tcp_control(const bootstrap& boot, const credentials& known)
      : rank_(boot.rank),
        size_(boot.size),
        timeout_(boot.timeout),
        known_(known),
        presence_(places(boot.size)),
        agreement_(boot.rank, boot.size) {
    for (auto& each : presence_) each.store(presence::here, std::memory_order_relaxed);
  }
  tcp_control(const tcp_control&) = delete;
  tcp_control& operator=(const tcp_control&) = delete;
  ~tcp_control() { stop(); }

  /// Collective. Listens, finds everyone, starts the thread. Blocks until all are there or boot.deadline:
  /// timeout_error that names who is missing; init_error when one gives up or publishes loopback to others.
  void come_together(const bootstrap& boot, control_events& events);

  /// Says goodbye to all and ends the thread; bounded by about two seconds.
  void stop() {
    if (guard_.in_child()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.set();
    thread_.reset();
  }

  /// May be called under the engine's mutex, from any thread; none of these blocks but `spread`.

  bool has_left(int peer) const noexcept {
    return at(peer).load(std::memory_order_acquire) == presence::left;
  }
  /// The collective that a peer was in when it left, if it has and was in one.
  std::optional<fingerprint> last_words(int peer) {
    const std::lock_guard lock(mutex_);
    const auto found = last_words_.find(peer);
    return found == last_words_.end() ? std::nullopt : std::optional(found->second);
  }
  void want_connection(int peer) {
    order([&] { wanted_.push_back(peer); });
  }
  /// The data connection to a peer has ended without a goodbye: it is lost, unless its goodbye or the hub's
  /// ruling comes shortly.
  void suspect(int peer) { suspect(peer, true); }
  void stalled() {
    order([&] { stalled_ = true; });
  }
  /// Sooner or later rules with the table of who called what.
  void investigate(int peer, const fingerprint& mine, const fingerprint& theirs) {
    order([&] { found_mismatches_.push_back({peer, mine, theirs}); });
  }

  /// Proposes a cause to the hub and returns its ruling: this cause or an earlier one. Waits for it for a
  /// moment
  /// (`ruling_delay` at most, when the hub does not answer); the control thread never waits for the caller.
  failure spread(const failure& cause) {
    std::unique_lock lock(mutex_);
    if (!ruling_) {
      if (!proposal_) proposal_ = cause;
      wake_.set();
      changed_.wait_for(lock, ruling_delay, [&] { return ruling_.has_value(); });
      if (!ruling_) ruling_ = cause;
    }
    return *ruling_;
  }

  /// Asks everyone. Blocks until all who are there have answered, or `until`. Not under the engine's mutex.
  std::vector<rank_state> ask_everyone(deadline until) {
    std::unique_lock lock(mutex_);
    const auto mine = surveys_.insert(surveys_.end(), survey());
    mine->id = ++last_survey_;
    mine->until = until;
    mine->table.resize(places(size_));
    wake_.set();
    changed_.wait_until(lock, until, [&] { return mine->complete; });
    std::vector<rank_state> table = std::move(mine->table);
    surveys_.erase(mine);
    lock.unlock();
    fill_in_presence(table);
    return table;
  }

  /// See has_agreement. Not from two threads at once.
  verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
    std::unique_lock lock(mutex_);
    vote_ = {number, mine, until};
    verdict_.reset();
    wake_.set();
    changed_.wait(lock, [&] { return verdict_.has_value(); });
    return std::move(*verdict_);
  }

 private:
  using kind = control_wire::kind;
  using message = control_wire::message;

  static constexpr milliseconds goodbye_delay{500};
  static constexpr milliseconds ruling_delay{2'000};
  static constexpr milliseconds survey_time{1'000};
  static constexpr milliseconds repetition_pause{20};
  static constexpr int most_repetitions = 8;
  static constexpr milliseconds longest_goodbye{1'000};
  static constexpr milliseconds hub_stays{500};     // for those who leave at about the same time
  static constexpr milliseconds time_to_come{500};  // to a new hub
  static constexpr milliseconds refusals_for_gone{1'000};

  struct mismatch {
    int peer = -1;
    fingerprint mine = {}, theirs = {};
  };

  /// Someone who will turn out to be lost, unless its goodbye or the hub's ruling comes before.
  struct suspicion_of_death {
    int peer = -1;
    deadline due = {};
    bool is_missed = false;  // somebody needs it: the group fails
  };

  struct survey {
    std::uint64_t id = 0;
    deadline until = {};
    std::vector<rank_state> table = {};
    bool sent = false;
    bool complete = false;
    bool for_stall = false;  // of the thread's own, not a caller's:
    std::optional<mismatch> about = {};
    deadline begin = {};
    int repeated = 0;
    bool own() const noexcept { return for_stall || about; }
  };

  static std::string encode(const message& m) { return control_wire::encode(m); }
  static std::size_t places(int size) { return static_cast<std::size_t>(size); }
  std::atomic<presence>& at(int peer) noexcept { return presence_[places(peer)]; }
  const std::atomic<presence>& at(int peer) const noexcept { return presence_[places(peer)]; }
  bool is_here(int peer) const noexcept { return at(peer).load(std::memory_order_acquire) == presence::here; }

  void suspect(int peer, bool is_missed) {
    order([&] { suspects_.push_back({peer, std::chrono::steady_clock::now() + goodbye_delay, is_missed}); });
  }

  template <class F>
  void order(const F& f) {
    {
      const std::lock_guard lock(mutex_);
      f();
    }
    wake_.set();
  }

  // Coming together, on the constructing thread.

  void publish_and_listen(const bootstrap& boot);
  void meet_rank_0(const bootstrap& boot);
  void await_everyone(const bootstrap& boot);
  std::string missing_ranks(store& here) const;
  [[noreturn]] void throw_missing(const std::string& missing) const;

  // The thread.

  void run();
  void wait_for_something();
  void take_orders();
  bool goodbye_is_done();

  void serve_members();
  void serve_hub();
  void serve_connectors();
  void serve_suspects();
  void serve_surveys();
  void serve_succession();
  void serve_agreement();

  bool take_from_member(int member, const message& m);
  bool take_from_hub(const message& m);
  bool take_from_anyone(int from, const message& m);
  void take_stalled();
  void take_endpoint(int member, const std::string& text);
  void take_endpoints(const std::string& lines);
  bool take_standing(const message& m);

  admission judge(const introduction& who);
  void welcome(descriptor socket, const introduction& who);

  void leaves(int peer, const std::string& last_words);
  void hub_is_gone();
  void leave_hub();
  void choose_hub();
  struct connection_attempt;
  void finish_data_attempt(tcp_connector::state state, connection_attempt& done);
  void finish_call(connection_attempt& done);
  void add_member(int member, control_channel channel) {
    members_.insert_or_assign(member, std::move(channel));
    leads_[places(member)] = false;
    agreement_.came(member);
  }
  void could_not_call(const connection_attempt& done);
  void follow(control_channel channel);
  void depose(int peer);
  std::string news();
  void rule_hub_is_lost(int gone);
  void call(int peer);
  void look_for_members();

  void propose(const failure& cause);
  void rule(const failure& cause);
  void lost(int peer, const std::string& how) {
    note_lost(peer, how);
    if (hub_ && hub_rank_ != peer) hub_->send(encode({kind::lost, peer, 0, how}));
    propose({failure_kind::peer_lost, peer, "rank " + std::to_string(peer) + " was lost: " + how});
  }
  void note_lost(int peer, const std::string& how) {
    auto expected = presence::here;
    if (!at(peer).compare_exchange_strong(expected, presence::lost)) return;
    agreement_.gone(peer);
    if (hub_rank_ == rank_) tell_members(encode({kind::lost, peer, 0, how}));
  }

  /// Of the thread's own: about a mismatch that was found, or whether there is one that nobody has found.
  void begin_survey(const std::optional<mismatch>& about, int repeated) {
    survey one;
    one.until = std::chrono::steady_clock::now() + survey_time;
    if (repeated > 0) one.begin = std::chrono::steady_clock::now() + repetition_pause;
    one.table.resize(places(size_));
    one.for_stall = !about;
    one.about = about;
    one.repeated = repeated;
    const std::lock_guard lock(mutex_);
    one.id = ++last_survey_;
    surveys_.push_back(std::move(one));
  }
  void finish_own_survey(survey done);
  bool has_ruled() {
    const std::lock_guard lock(mutex_);
    return ruled_;
  }

  std::string goodbye_message() const {
    const fingerprint last = events_->own_state().last;
    std::string body;
    if (last.sequence != 0) body.assign(reinterpret_cast<const char*>(&last), sizeof(last));
    return encode({kind::left, rank_, 0, std::move(body)});
  }

  static std::string failure_message(const failure& cause) {
    return encode({kind::failed, cause.rank, static_cast<std::uint64_t>(cause.kind), cause.text});
  }

  static failure failure_of(const message& m) {
    const bool known = m.number >= 1 && m.number <= static_cast<std::uint64_t>(failure_kind::revoked);
    return {known ? static_cast<failure_kind>(m.number) : failure_kind::revoked, m.rank, m.body};
  }

  std::string state_message(int asker, std::uint64_t number) const {
    const rank_state mine = events_->own_state();
    control_wire::standing standing;
    standing.asker = asker;
    standing.inside = mine.inside ? 1 : 0;
    standing.last = mine.last;
    return encode({kind::state, rank_, number,
                   std::string(reinterpret_cast<const char*>(&standing), sizeof(standing))});
  }

  void fill_in_presence(std::vector<rank_state>& table) const {
    for (int r = 0; r < size_; ++r) {
      const presence now = at(r).load(std::memory_order_acquire);
      if (now != presence::here) table[places(r)].is = now;
    }
  }

  void tell_members(const std::string& encoded) {
    for (auto& [member, channel] : members_) channel.send(encoded);
  }

  bool nobody_else_is_here() const {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && is_here(r)) return false;
    }
    return true;
  }

  const int rank_, size_;
  const milliseconds timeout_;
  const credentials known_;
  const fork_guard guard_;
  wake_event wake_;
  control_events* events_ = nullptr;
  std::vector<std::atomic<presence>> presence_;

  // The thread's own once it runs.
  group_id group_ = {};
  tcp_endpoint own_endpoint_ = {};
  std::optional<tcp_listener> listener_;
  std::vector<tcp_endpoint> endpoints_;  // by rank, empty until known
  int hub_rank_ = 0;                     // or -1: there is none (any more)
  std::optional<control_channel> hub_;   // while this rank is not it
  std::map<int, control_channel> members_;
  std::vector<bool> leads_;                    // who came to `members_` as the hub
  std::list<control_channel> former_members_;  // of a hub that is none any more; they close these
  struct connection_attempt {
    purpose what = purpose::data;
    int peer = -1;
    tcp_connector connector;
  };
  std::list<connection_attempt> attempts_;
  std::vector<bool> has_data_connection_, unreachable_;
  std::vector<int> wanted_later_;  // until endpoints are known
  int missing_endpoints_ = 0;
  tcp_agreement agreement_;
  std::vector<bool> deposed_;  // hubs that did not answer, and are none any more
  bool is_outcast_ = false;    // the others go on without this rank
  std::optional<failure> pending_proposal_;
  deadline rule_alone_at_ = deadline::max();
  deadline look_for_members_at_ = deadline::max();
  deadline next_stall_survey_ = {};
  bool said_goodbye_ = false, goodbye_is_heard_ = false;
  deadline goodbye_until_ = deadline::max();
  std::vector<pollfd> entries_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool together_ = false;
  bool stopping_ = false;
  bool stalled_ = false;
  std::optional<failure> proposal_, ruling_;
  bool ruled_ = false;  // ruling_ is the hub's, or this rank could not hear it in time
  std::vector<int> wanted_;
  std::vector<suspicion_of_death> suspects_;
  std::vector<mismatch> found_mismatches_;
  std::list<survey> surveys_;
  std::uint64_t last_survey_ = 0;
  std::map<int, fingerprint> last_words_;
  std::optional<cast_vote> vote_;
  std::optional<verdict> verdict_;
  std::string gave_up_;  // who did while the group came together

  std::unique_ptr<joining_thread> thread_;
};

// Coming together.

inline void tcp_control::come_together(const bootstrap& boot, control_events& events) {
  events_ = &events;
  publish_and_listen(boot);
  thread_ = std::make_unique<joining_thread>([this] { run(); });
  await_everyone(boot);
}

inline void tcp_control::publish_and_listen(const bootstrap& boot) {
  descriptor socket = listen_on(boot.host.empty() ? "127.0.0.1" : boot.host, 0);
  const address local = address::local_of(socket.get());
  own_endpoint_ = {local.host(), local.port(), host_id()};
  listener_.emplace(std::move(socket), known_);
  endpoints_.resize(places(size_));
  has_data_connection_.resize(places(size_));
  unreachable_.resize(places(size_));
  deposed_.resize(places(size_));
  leads_.resize(places(size_));
  if (rank_ == 0) {
    agreement_.lead_first();
    fill_random(group_);
    endpoints_[0] = own_endpoint_;
    missing_endpoints_ = size_ - 1;
    boot.store->set("tcp/0", hexadecimal(group_) + " " + own_endpoint_.text());
  } else {
    boot.store->set("tcp/" + std::to_string(rank_), "");
    meet_rank_0(boot);
  }
}

inline void tcp_control::meet_rank_0(const bootstrap& boot) {
  if (!await_key(boot, "tcp/0")) throw_missing(missing_ranks(*boot.store));
  const std::string published = boot.store->get("tcp/0");
  const std::size_t space = published.find(' ');
  if (space == std::string::npos) throw init_error("rank 0 published an address that is none");
  group_ = group_id_from(std::string_view(published).substr(0, space));
  const tcp_endpoint rank_0 = tcp_endpoint::from(std::string_view(published).substr(space + 1));
  hub_.emplace(connect_and_prove(rank_0.host, rank_0.port, known_, {purpose::control, group_, rank_, 0},
                                 boot.deadline, when_refused::give_up));
  agreement_.follow_first(0);
  hub_->send(encode({kind::endpoint, rank_, 0, own_endpoint_.text()}));
}

inline void tcp_control::await_everyone(const bootstrap& boot) {
  std::unique_lock lock(mutex_);
  const auto is_known = [&] { return together_ || ruling_ || !gave_up_.empty(); };
  for (auto left = time_left(boot.deadline); left.count() > 0; left = time_left(boot.deadline)) {
    if (changed_.wait_for(lock, std::min(left, peer_check_interval), is_known)) break;
    lock.unlock();
    boot.check_peers();
    lock.lock();
  }
  if (together_) return;  // a failure since then is for the first operation to report
  const bool died = ruling_.has_value();
  const std::string problem = died ? ruling_->text : gave_up_;
  lock.unlock();
  const std::string missing = missing_ranks(*boot.store), who = "rank " + std::to_string(rank_) + ": ";
  if (problem.empty()) throw_missing(missing);
  const std::string text = who + problem + (missing.empty() ? "" : "; " + missing + " did not come");
  if (missing.empty() || died) throw init_error(text);
  throw timeout_error(text);
}

/// Those who have not even begun to come, as far as the store can tell.
inline std::string tcp_control::missing_ranks(store& here) const {
  std::string missing;
  try {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || here.check({"tcp/" + std::to_string(r)})) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
  } catch (const error&) {  // the store has gone
  }
  return missing;
}

inline void tcp_control::throw_missing(const std::string& missing) const {
  throw timeout_error("rank " + std::to_string(rank_) + ": the group of " + std::to_string(size_) +
                      " ranks did not come together in time: " +
                      (missing.empty() ? "not all connected to rank 0" : missing + " did not come"));
}

// The thread.

inline void tcp_control::run() {
  for (;;) {
    wait_for_something();
    take_orders();
    serve_hub();
    serve_members();
    listener_->serve([this](const introduction& who) { return judge(who); },
                     [&](descriptor socket, const introduction& who) { welcome(std::move(socket), who); });
    look_for_members();
    serve_connectors();
    serve_suspects();
    serve_succession();
    serve_surveys();
    serve_agreement();
    if (goodbye_is_done()) return;
  }
}

inline void tcp_control::wait_for_something() {
  entries_.assign({{wake_.get(), POLLIN, 0}});
  listener_->add_to(entries_);
  deadline due = std::min(
      {listener_->next_due(), rule_alone_at_, goodbye_until_, look_for_members_at_, agreement_.next_due()});
  for (const auto& attempt : attempts_) {
    attempt.connector.add_to(entries_);
    due = std::min(due, attempt.connector.next_due());
  }
  {
    const std::lock_guard lock(mutex_);
    for (const suspicion_of_death& each : suspects_) due = std::min(due, each.due);
    for (const survey& each : surveys_) {
      if (each.own()) due = std::min(due, each.sent ? each.until : each.begin);
    }
  }
  const std::size_t channels = entries_.size();
  for (const auto& each : former_members_) entries_.push_back(each.entry());
  if (hub_) entries_.push_back(hub_->entry());
  for (const auto& [member, channel] : members_) entries_.push_back(channel.entry());
  const bool unknown = ::poll(entries_.data(), entries_.size(), poll_timeout(due)) < 0;
  auto entry = entries_.cbegin() + static_cast<std::ptrdiff_t>(channels);
  const auto is_ready = [&] { return unknown | ((entry++)->revents != 0); };
  for (auto& each : former_members_) each.note(is_ready());
  if (hub_) hub_->note(is_ready());
  for (auto& [member, channel] : members_) channel.note(is_ready());
}

inline void tcp_control::take_orders() {
  wake_.clear();
  std::vector<int> wanted;
  std::vector<mismatch> mismatches;
  std::optional<failure> proposal;
  std::optional<cast_vote> vote;
  bool stalled = false, stopping = false;
  {
    const std::lock_guard lock(mutex_);
    wanted.swap(wanted_);
    mismatches.swap(found_mismatches_);
    if (!pending_proposal_ && !ruled_) proposal = proposal_;
    vote = std::exchange(vote_, std::nullopt);
    stalled = std::exchange(stalled_, false);
    stopping = stopping_;
  }
  for (const mismatch& each : mismatches) begin_survey(each, 0);
  if (proposal) propose(*proposal);
  if (vote) {
    agreement_.vote(vote->number, std::move(vote->ballot), vote->until, std::chrono::steady_clock::now());
  }
  wanted.insert(wanted.end(), wanted_later_.begin(), wanted_later_.end());
  wanted_later_.clear();
  for (const int peer : wanted) {
    const tcp_endpoint& to = endpoints_[places(peer)];
    const bool under_way =
        std::any_of(attempts_.begin(), attempts_.end(), [&](const connection_attempt& attempt) {
          return attempt.peer == peer && attempt.what == purpose::data;
        });
    if (has_data_connection_[places(peer)] || under_way || said_goodbye_) continue;
    if (at(peer).load(std::memory_order_acquire) == presence::lost) {
      lost(peer, "nobody listens at its address any more");
    }
    if (!is_here(peer)) continue;
    if (to.port == 0) {
      wanted_later_.push_back(peer);
      continue;
    }
    attempts_.push_back({purpose::data, peer,
                         tcp_connector(to.host, to.port, {purpose::data, group_, rank_, peer},
                                       deadline_after(timeout_), refusals_for_gone)});
  }
  if (stalled && hub_) hub_->send(encode({kind::stalled, rank_}));
  if (stalled && hub_rank_ == rank_) take_stalled();
  if (stopping && goodbye_until_ == deadline::max()) {
    goodbye_until_ = std::chrono::steady_clock::now() + (hub_rank_ == rank_ ? hub_stays : longest_goodbye);
  }
  if (stopping && !said_goodbye_ && (hub_ || hub_rank_ == rank_ || hub_rank_ == -1)) {
    said_goodbye_ = true;
    agreement_.cast_out();
    const std::string goodbye = goodbye_message();
    if (hub_) hub_->send(goodbye);
    tell_members(goodbye);
  }
}

/// A member is done when the hub has repeated its goodbye, the hub when all others have left; both when the
/// time is up.
inline bool tcp_control::goodbye_is_done() {
  if (goodbye_until_ == deadline::max()) return false;
  const bool answered = said_goodbye_ && (hub_rank_ == rank_ ? nobody_else_is_here() : goodbye_is_heard_);
  return answered || std::chrono::steady_clock::now() >= goodbye_until_;
}

inline void tcp_control::serve_members() {
  for (auto each = members_.begin(); each != members_.end();) {
    const int member = each->first;
    if (!each->second.is_ready() && is_here(member)) {
      ++each;
      continue;
    }
    each->second.flush();
    const bool open = each->second.receive([&](const message& m) { return take_from_member(member, m); });
    const bool keep = open && is_here(member);
    const bool has_moved_on = is_outcast_ || deposed_[places(rank_)];  // to the next hub
    if (!open && is_here(member) && !has_moved_on) lost(member, "its connection closed without a goodbye");
    each = keep ? std::next(each) : members_.erase(each);
  }
}

inline void tcp_control::serve_hub() {
  std::erase_if(former_members_, [](control_channel& each) {
    return each.is_ready() && !each.receive([](const message&) { return true; });
  });
  if (!hub_ || !hub_->is_ready()) return;
  hub_->flush();
  const bool open = hub_->receive([&](const message& m) { return take_from_hub(m); });
  if (!open) hub_is_gone();
}

inline void tcp_control::hub_is_gone() {
  hub_.reset();
  const int gone = std::exchange(hub_rank_, -1);
  said_goodbye_ = said_goodbye_ && (goodbye_is_heard_ || is_outcast_);  // otherwise, to the next hub
  if (!said_goodbye_ && !is_outcast_ && is_here(gone) && !deposed_[places(gone)]) rule_hub_is_lost(gone);
}

/// All see this, and say the same without asking each other.
inline void tcp_control::rule_hub_is_lost(int gone) {
  pending_proposal_.reset();
  lost(gone, "its connection closed without a goodbye");
}

/// A hub that others have deposed, or know to be lost, is left; who has none chooses one.
inline void tcp_control::serve_succession() {
  if (said_goodbye_ || is_outcast_) return;
  if (hub_rank_ != -1) {
    const bool is_lost = at(hub_rank_).load(std::memory_order_acquire) == presence::lost;
    if (is_lost || deposed_[places(hub_rank_)]) leave_hub();
  }
  if (hub_rank_ == -1) choose_hub();
}

/// First it is told, then what it has said is read to the end: see tcp_agreement.
inline void tcp_control::leave_hub() {
  const int before = std::exchange(hub_rank_, -1);
  look_for_members_at_ = deadline::max();
  std::erase_if(attempts_, [](const connection_attempt& each) { return each.what == purpose::control; });
  if (hub_) {
    hub_->send(news());
    hub_->receive([&](const message& m) { return take_from_hub(m); });
    hub_.reset();
  }
  if (before == rank_) {
    tell_members(news());
    for (auto each = members_.begin(); each != members_.end();) {
      if (!leads_[places(each->first)]) former_members_.push_back(std::move(each->second));
      each = leads_[places(each->first)] ? std::next(each) : members_.erase(each);
    }
  }
  if (at(before).load(std::memory_order_acquire) == presence::lost) rule_hub_is_lost(before);
}

/// The lowest rank that is left.
inline void tcp_control::choose_hub() {
  for (int r = 0; r < size_; ++r) {
    if (deposed_[places(r)] || (r != rank_ && (!is_here(r) || unreachable_[places(r)]))) continue;
    hub_rank_ = r;
    break;
  }
  const auto now = std::chrono::steady_clock::now();
  if (hub_rank_ == -1) {
    is_outcast_ = true;  // deposed, and nobody is left who could say what was decided
    agreement_.cast_out();
  } else if (hub_rank_ == rank_) {
    agreement_.lead(now);
    look_for_members_at_ = now + time_to_come;
  } else {
    agreement_.turn_to(hub_rank_, now);
    const auto caller = members_.find(hub_rank_);
    if (caller == members_.end() || !leads_[places(hub_rank_)]) return call(hub_rank_);
    control_channel channel = std::move(caller->second);
    members_.erase(caller);
    follow(std::move(channel));
  }
  if (hub_rank_ == rank_ || hub_rank_ == -1) {
    if (pending_proposal_) rule(*pending_proposal_);
  }
}

/// This rank has a connection to its new hub.
inline void tcp_control::follow(control_channel channel) {
  hub_.emplace(std::move(channel));
  hub_->send(news());
  if (pending_proposal_) hub_->send(failure_message(*pending_proposal_));
  agreement_.follow(std::chrono::steady_clock::now());
  {
    const std::lock_guard lock(mutex_);
    for (survey& each : surveys_) each.sent = false;
  }
  wake_.set();  // for a goodbye that waits for this
}

inline void tcp_control::depose(int peer) {
  if (deposed_[places(peer)]) return;
  deposed_[places(peer)] = true;
  agreement_.deposed(peer);
  if (hub_rank_ == rank_) tell_members(encode({kind::deposed, peer}));
}

/// What a hub and its member may not know of each other when they meet.
inline std::string tcp_control::news() {
  std::string all;
  {
    const std::lock_guard lock(mutex_);
    if (ruled_) all += failure_message(*ruling_);
  }
  if (hub_rank_ == rank_) all += encode({kind::leads, rank_});
  for (int r = 0; r < size_; ++r) {
    const presence now = at(r).load(std::memory_order_acquire);
    if (now == presence::lost) all += encode({kind::lost, r, 0, "others had lost it before"});
    if (now == presence::left) all += encode({kind::left, r});
    if (deposed_[places(r)]) all += encode({kind::deposed, r});
  }
  return all;
}

inline void tcp_control::call(int peer) {
  const tcp_endpoint& to = endpoints_[places(peer)];
  attempts_.push_back({purpose::control, peer,
                       tcp_connector(to.host, to.port, {purpose::control, group_, rank_, peer},
                                     deadline_after(longest_silence), milliseconds(0))});
}

/// A new hub calls those it misses. A rank that refuses has ended without a goodbye. One that answers hears
/// who its hub is, or tells this rank that it is none any more.
inline void tcp_control::look_for_members() {
  if (std::chrono::steady_clock::now() < look_for_members_at_) return;
  look_for_members_at_ = deadline::max();
  if (said_goodbye_) return;  // the next hub's business
  for (int r = 0; r < size_; ++r) {
    const auto is_called = [r](const connection_attempt& each) {
      return each.peer == r && each.what == purpose::control;
    };
    if (r == rank_ || !is_here(r) || members_.contains(r)) continue;
    if (std::none_of(attempts_.begin(), attempts_.end(), is_called)) call(r);
  }
}

inline void tcp_control::serve_connectors() {
  for (auto each = attempts_.begin(); each != attempts_.end();) {
    const auto state = each->connector.advance(known_);
    if (state == tcp_connector::state::in_progress) {
      ++each;
      continue;
    }
    connection_attempt done = std::move(*each);
    each = attempts_.erase(each);
    if (done.what == purpose::data) {
      finish_data_attempt(state, done);
    } else if (state == tcp_connector::state::connected) {
      finish_call(done);
    } else {
      could_not_call(done);
    }
  }
}

inline void tcp_control::finish_data_attempt(tcp_connector::state state, connection_attempt& done) {
  if (state == tcp_connector::state::connected) {
    has_data_connection_[places(done.peer)] = true;
    return events_->connected(done.peer, done.connector.take());
  }
  if (state == tcp_connector::state::duplicate || !is_here(done.peer)) return;
  if (done.connector.refused()) return lost(done.peer, done.connector.error_text());
  propose({failure_kind::revoked, rank_,
           "rank " + std::to_string(rank_) + " could not connect to rank " + std::to_string(done.peer) +
               ": " + done.connector.error_text()});
}

inline void tcp_control::finish_call(connection_attempt& done) {
  control_channel channel(done.connector.take());
  if (done.peer == hub_rank_) return follow(std::move(channel));
  channel.send(news());
  add_member(done.peer, std::move(channel));
}

inline void tcp_control::could_not_call(const connection_attempt& done) {
  const int peer = done.peer;
  if (hub_rank_ == rank_) {
    if (said_goodbye_ || !is_here(peer) || members_.contains(peer)) return;
    if (done.connector.refused()) return lost(peer, "nobody listens at its address any more");
    look_for_members_at_ = std::chrono::steady_clock::now() + time_to_come;
  } else if (!done.connector.refused()) {
    depose(peer);
  } else {  // it may have ended with a goodbye, of which others know
    unreachable_[places(peer)] = true;
    hub_rank_ = -1;
    suspect(peer, false);
  }
}

inline void tcp_control::serve_suspects() {
  const auto now = std::chrono::steady_clock::now();
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
    if (!is_here(each.peer)) continue;
    if (each.is_missed)
      lost(each.peer, "its connection closed without a goodbye");
    else
      note_lost(each.peer, "nobody listens at its address any more");
  }
  if (now >= rule_alone_at_ && pending_proposal_) rule(*pending_proposal_);
}

// What others say.

inline admission tcp_control::judge(const introduction& who) {
  if (who.group != group_ || who.to != rank_ || who.from < 0 || who.from >= size_ || who.from == rank_) {
    return admission::not_expected;
  }
  const presence now = at(who.from).load(std::memory_order_acquire);
  const bool is_to_be_told = now == presence::lost && who.what == purpose::control;
  if (now != presence::here && !is_to_be_told) return admission::not_expected;
  if (who.what == purpose::control) {
    // Who has this rank for its hub may know it before this one does; and who is a new hub before those do
    // whom it calls. If both call each other, the member's call counts.
    if (who.from == hub_rank_) return admission::not_expected;
    members_.erase(who.from);  // who comes again has given up the connection before
    return admission::welcome;
  }
  if (who.what != purpose::data) return admission::not_expected;
  if (has_data_connection_[places(who.from)]) return admission::duplicate;
  const auto under_way =
      std::find_if(attempts_.begin(), attempts_.end(), [&](const connection_attempt& attempt) {
        return attempt.peer == who.from && attempt.what == purpose::data;
      });
  if (under_way == attempts_.end()) return admission::welcome;
  if (rank_ < who.from) return admission::duplicate;
  attempts_.erase(under_way);
  return admission::welcome;
}

inline void tcp_control::welcome(descriptor socket, const introduction& who) {
  if (who.what == purpose::data) {
    has_data_connection_[places(who.from)] = true;
    events_->connected(who.from, std::move(socket));
    return;
  }
  control_channel channel(std::move(socket));
  channel.send(news());
  if (said_goodbye_) channel.send(goodbye_message());
  if (is_here(who.from)) add_member(who.from, std::move(channel));  // or it has been told that it is not
}

inline bool tcp_control::take_from_member(int member, const message& m) {
  switch (m.kind) {
    case kind::endpoint:
      take_endpoint(member, m.body);
      return true;
    case kind::failed:
      rule(failure_of(m));
      return true;
    case kind::ask:
      for (auto& [other, channel] : members_) {
        if (other != member) channel.send(encode({kind::ask, member, m.number}));
      }
      if (const auto asker = members_.find(member); asker != members_.end()) {
        asker->second.send(state_message(member, m.number));
      }
      return true;
    case kind::state: {
      control_wire::standing standing;
      if (m.body.size() != sizeof(standing)) return false;
      std::memcpy(&standing, m.body.data(), sizeof(standing));
      if (standing.asker == rank_) return take_standing(m);
      if (const auto asker = members_.find(standing.asker); asker != members_.end())
        asker->second.send(encode(m));
      return true;
    }
    case kind::stalled:
      take_stalled();
      return true;
    case kind::leads:
      leads_[places(member)] = true;
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
      take_endpoints(m.body);
      return true;
    case kind::failed:
      rule(failure_of(m));
      return true;
    case kind::ask:
      hub_->send(state_message(m.rank, m.number));
      return true;
    case kind::state:
      return take_standing(m);
    case kind::leads:
      return true;
    case kind::endpoint:
    case kind::stalled:
      return false;
    default:
      return take_from_anyone(hub_rank_, m);
  }
}

/// What both a hub and a member may say.
inline bool tcp_control::take_from_anyone(int from, const message& m) {
  if (m.rank < 0 || m.rank >= size_) return false;
  switch (m.kind) {
    case kind::left:
      if (m.rank == rank_)
        goodbye_is_heard_ = said_goodbye_;
      else
        leaves(m.rank, m.body);
      return true;
    case kind::lost:
      if (m.rank == rank_) {
        is_outcast_ = true;
        agreement_.cast_out();
      } else if (hub_rank_ == rank_) {
        lost(m.rank, m.body);
      } else {
        note_lost(m.rank, m.body);
      }
      return true;
    case kind::deposed:
      depose(m.rank);
      return true;
    default:
      return agreement_.take(from, m, std::chrono::steady_clock::now());
  }
}

inline void tcp_control::take_stalled() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_stall_survey_ || has_ruled()) return;
  next_stall_survey_ = now + survey_time;
  begin_survey(std::nullopt, 0);
}

inline void tcp_control::take_endpoint(int member, const std::string& text) {
  if (rank_ != 0 || missing_endpoints_ == 0 || endpoints_[places(member)].port != 0) return;
  try {
    endpoints_[places(member)] = tcp_endpoint::from(text);
  } catch (const init_error&) {
    return lost(member, "it published an address that is none");
  }
  if (--missing_endpoints_ > 0) return;
  std::string lines;
  for (const tcp_endpoint& each : endpoints_) lines += each.text() + "\n";
  tell_members(encode({kind::endpoints, rank_, 0, lines}));
  take_endpoints(lines);
}

inline void tcp_control::take_endpoints(const std::string& lines) {
  std::string problem;
  std::string_view rest = lines;
  try {
    for (int r = 0; r < size_; ++r) {
      const std::size_t end = rest.find('\n');
      if (end == std::string_view::npos) throw init_error("the list of ranks is incomplete");
      const tcp_endpoint each = tcp_endpoint::from(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      std::string unused;
      const auto addresses = resolve(each.host, each.port, unused);
      if (each.system != own_endpoint_.system && !addresses.empty() && addresses.front().is_loopback()) {
        throw init_error("rank " + std::to_string(r) + " is on another host, but offers " + each.host +
                         ", which only its own host can reach");
      }
      endpoints_[places(r)] = each;
    }
  } catch (const init_error& e) {
    problem = e.what();
  }
  const std::lock_guard lock(mutex_);
  if (problem.empty())
    together_ = true;
  else
    gave_up_ = problem;
  changed_.notify_all();
}

inline void tcp_control::leaves(int peer, const std::string& last_words) {
  {
    const std::lock_guard lock(mutex_);
    if (at(peer).exchange(presence::left, std::memory_order_acq_rel) == presence::left) return;
    if (fingerprint last; last_words.size() == sizeof(last)) {
      std::memcpy(&last, last_words.data(), sizeof(last));
      last_words_[peer] = last;
    }
    if (!together_ && gave_up_.empty()) {
      gave_up_ = "rank " + std::to_string(peer) + " gave up while the group came together";
    }
    changed_.notify_all();
  }
  agreement_.gone(peer);
  if (hub_rank_ == rank_) tell_members(encode({kind::left, peer, 0, last_words}));
  events_->presence_changed();
}

// Failure.

inline void tcp_control::propose(const failure& cause) {
  if (has_ruled() || pending_proposal_) return;
  if (hub_rank_ == rank_ || hub_rank_ == -1) return rule(cause);
  pending_proposal_ = cause;
  pending_proposal_->text.resize(std::min(cause.text.size(), longest_failure_text));
  rule_alone_at_ = std::chrono::steady_clock::now() + ruling_delay;
  if (hub_) {
    hub_->send(failure_message(*pending_proposal_));
  }
}

inline void tcp_control::rule(const failure& cause) {
  rule_alone_at_ = deadline::max();
  failure ruling = cause;
  ruling.text.resize(std::min(ruling.text.size(), longest_failure_text));
  {
    const std::lock_guard lock(mutex_);
    if (ruled_) return;
    ruled_ = true;
    if (ruling_) ruling = *ruling_;  // a caller of spread() went ahead alone
    ruling_ = ruling;
    changed_.notify_all();
  }
  if (ruling.kind == failure_kind::peer_lost && ruling.rank >= 0 && ruling.rank < size_ &&
      ruling.rank != rank_) {
    note_lost(ruling.rank, "");
  }
  tell_members(failure_message(ruling));
  events_->failed(ruling);
}

// Agreement.

inline void tcp_control::serve_agreement() {
  agreement_.advance(std::chrono::steady_clock::now());
  if (agreement_.has_lost_patience() && hub_rank_ != -1) depose(hub_rank_);
  for (const tcp_agreement::letter& each : agreement_.take_letters()) {
    if (each.to == hub_rank_) {
      if (hub_) hub_->send(encode(each.what));
    } else if (const auto member = members_.find(each.to); member != members_.end()) {
      member->second.send(encode(each.what));
    }
  }
  if (auto decided = agreement_.take_verdict()) {
    const std::lock_guard lock(mutex_);
    verdict_ = std::move(decided);
    changed_.notify_all();
  }
}

// Surveys.

inline bool tcp_control::take_standing(const message& m) {
  control_wire::standing standing;
  if (m.body.size() != sizeof(standing) || m.rank < 0 || m.rank >= size_) return false;
  std::memcpy(&standing, m.body.data(), sizeof(standing));
  const std::lock_guard lock(mutex_);
  for (survey& each : surveys_) {
    if (each.id == m.number)
      each.table[places(m.rank)] = {presence::here, standing.inside != 0, standing.last};
  }
  return true;
}

inline void tcp_control::serve_surveys() {
  {
    const std::lock_guard lock(mutex_);
    if (surveys_.empty()) return;
  }
  const rank_state own = events_->own_state();
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::uint64_t> to_ask;
  std::vector<survey> finished;
  {
    const std::lock_guard lock(mutex_);
    for (auto each = surveys_.begin(); each != surveys_.end();) {
      const auto here = each++;
      if (now < here->begin) continue;
      const bool can_ask = hub_ || hub_rank_ == rank_;
      if (can_ask && !std::exchange(here->sent, true)) to_ask.push_back(here->id);
      here->table[places(rank_)] = own;
      here->complete = true;
      for (int r = 0; r < size_; ++r) {
        if (is_here(r) && here->table[places(r)].is == presence::unknown) here->complete = false;
      }
      if (!here->own() || (!here->complete && now < here->until)) continue;
      finished.push_back(std::move(*here));
      surveys_.erase(here);
    }
    changed_.notify_all();
  }
  for (const std::uint64_t id : to_ask) {
    const std::string ask = encode({kind::ask, rank_, id});
    if (hub_) hub_->send(ask);
    if (hub_rank_ == rank_) tell_members(ask);
  }
  for (survey& each : finished) finish_own_survey(std::move(each));
}

inline void tcp_control::finish_own_survey(survey done) {
  std::vector<rank_state>& table = done.table;
  if (done.about) {
    // Others may be an instant behind: ask again, so that the table shows them in the collective too.
    const mismatch found = *done.about;
    const bool some_are_behind = std::any_of(table.begin(), table.end(), [&](const rank_state& each) {
      return each.is == presence::here && each.last.sequence < found.mine.sequence;
    });
    if (some_are_behind && done.repeated < most_repetitions) {
      return begin_survey(found, done.repeated + 1);
    }
    fill_in_presence(table);
    table[places(rank_)].last = found.mine;
    rank_state& other = table[places(found.peer)];
    if (other.last.sequence <= found.theirs.sequence) other.last = found.theirs;
    other.is = presence::here;  // or was: what it called is what matters
    return propose(describe_mismatch(table));
  }
  for (const rank_state& a : table) {
    for (const rank_state& b : table) {
      if (a.inside && b.inside && a.last.sequence == b.last.sequence && a.last.step == b.last.step &&
          a.last != b.last) {
        return propose(describe_mismatch(table));
      }
    }
  }
}

}  // namespace ddpp::detail
