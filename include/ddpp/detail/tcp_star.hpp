// SPDX-License-Identifier: BSL-1.0
// The control connections: every rank has one to the hub, which is rank 0 at first, and the lowest rank that
// is left once the hub has died, left, or not answered. A hub that others have deposed, because it did not
// answer, stays a member of the group and turns to the next one when it hears of it.
//
// Who turns to a new hub calls it; the new hub calls those it misses, whether they are dead (they refuse),
// stopped (the call waits for them to wake or die), or do not know yet. Both ends of a new connection begin
// with their news: who is lost, has left, is deposed, and whether this is the hub. So a rank that takes
// itself for the hub, as it was stopped meanwhile, is told.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_agreement.hpp>
#include <ddpp/detail/tcp_connector.hpp>
#include <ddpp/detail/tcp_control_channel.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/detail/tcp_meeting.hpp>
#include <ddpp/detail/tcp_presence.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_star {
 public:
  using message = control_wire::message;

  /// Whose star it is. May send, but neither call the other functions nor be asked while it does.
  class owner {
   public:
    /// What the hub or a member says. False: it is nonsense.
    virtual bool take_from_hub(const message& m) = 0;
    virtual bool take_from_member(int member, const message& m) = 0;
    /// A rank has ended without a goodbye.
    virtual void member_is_lost(int member, const std::string& how) = 0;
    virtual void hub_is_lost(int hub, const char* how) = 0;
    /// Nobody listens for a rank any more; it may have said goodbye to others.
    virtual void may_have_left(int peer) = 0;
    /// There is another hub, this rank or one that it has a connection to.
    virtual void has_new_hub() = 0;
    virtual std::optional<failure> ruling() const = 0;
    virtual fingerprint last_collective() const = 0;

   protected:
    ~owner() = default;
  };

  tcp_star(int rank, const credentials& known, const tcp_meeting& meeting, const tcp_presence& presence,
           tcp_agreement& agreement, owner& of)
      : rank_(rank),
        known_(known),
        meeting_(meeting),
        presence_(presence),
        agreement_(agreement),
        owner_(of),
        deposed_(places(presence.size())),
        refused_(places(presence.size())),
        leads_(places(presence.size())) {}

  /// On rank 0, and on the others, who have a connection to it.
  void begin() { agreement_.lead_first(); }
  void begin(descriptor to_rank_0) {
    up_.emplace(std::move(to_rank_0));
    agreement_.follow_first(0);
  }

  int hub() const noexcept { return hub_; }  ///< or -1
  bool leads() const noexcept { return hub_ == rank_; }
  bool has_hub() const noexcept { return leads() || up_; }
  /// The others go on without this rank.
  bool is_outcast() const noexcept { return is_outcast_; }

  /// Where there is a hub, or members.
  void tell_hub(const message& m) {
    if (up_) up_->send(control_wire::encode(m));
  }
  void tell_members(const message& m) {
    const std::string encoded = control_wire::encode(m);
    for (auto& [member, channel] : members_) channel.send(encoded);
  }
  void tell(int rank, const message& m) {
    if (rank == hub_) return tell_hub(m);
    if (const auto found = members_.find(rank); found != members_.end()) {
      found->second.send(control_wire::encode(m));
    }
  }

  /// This rank, or another, is no hub any more.
  void depose(int rank) {
    if (deposed_[places(rank)]) return;
    deposed_[places(rank)] = true;
    agreement_.deposed(rank);
    if (leads()) tell_members({kind::deposed, rank});
  }
  void cast_out() {
    is_outcast_ = true;
    agreement_.cast_out();
  }
  /// A member says that it is the hub.
  void note_leader(int member) { leads_[places(member)] = true; }

  /// This rank leaves: says so to the hub, and to the next one until one has heard it. `now` and then.
  void leave(deadline now) {
    if (leave_until_ == deadline::max()) leave_until_ = now + (leads() ? hub_stays : longest_goodbye);
    if (said_goodbye_ || (!has_hub() && hub_ != -1)) return;
    said_goodbye_ = true;
    agreement_.cast_out();
    const message goodbye = control_wire::of_goodbye(rank_, owner_.last_collective());
    tell_hub(goodbye);
    tell_members(goodbye);
    for (control_channel& each : former_members_) each.send(control_wire::encode(goodbye));
  }
  bool is_leaving() const noexcept { return said_goodbye_; }
  /// The hub has repeated this rank's goodbye, so others know it too.
  void note_goodbye() { goodbye_is_heard_ = said_goodbye_; }
  /// A hub stays until all others have left, everyone while there is time.
  bool has_left(deadline now) const {
    const bool is_known = leads() ? !presence_.is_anyone_here_but(rank_) : goodbye_is_heard_ || is_outcast_;
    return (said_goodbye_ && is_known) || now >= leave_until_;
  }

  /// Appends what to poll for; and takes what was found.
  void add_to(std::vector<pollfd>& entries) {
    for (const call& each : calls_) each.connector.add_to(entries);
    first_entry_ = entries.size();
    for (const auto& each : former_members_) entries.push_back(each.entry());
    if (up_) entries.push_back(up_->entry());
    for (const auto& [member, channel] : members_) entries.push_back(channel.entry());
  }
  void note(const std::vector<pollfd>& entries, bool is_polled) {
    auto entry = entries.begin() + static_cast<std::ptrdiff_t>(first_entry_);
    const auto is_ready = [&] { return (entry++)->revents != 0 || !is_polled; };
    for (auto& each : former_members_) each.note(is_ready());
    if (up_) up_->note(is_ready());
    for (auto& [member, channel] : members_) channel.note(is_ready());
  }
  deadline next_due() const {
    deadline due = std::min(look_for_members_at_, leave_until_);
    for (const call& each : calls_) due = std::min(due, each.connector.next_due());
    return due;
  }

  /// Reads what has come from all.
  void read() {
    std::erase_if(former_members_, [](control_channel& each) {
      return each.is_ready() && !each.receive([](const message&) { return true; });
    });
    read_hub();
    read_members();
  }
  /// Goes on with calls, and finds another hub where that is needed.
  void advance(deadline now) {
    look_for_members(now);
    serve_calls(now);
    find_hub(now);
  }

  // A rank that calls, and has proven itself.

  admission judge(int peer) {
    const auto is = presence_.of(peer);
    if (is != tcp_presence::state::here && is != tcp_presence::state::lost) return admission::not_expected;
    // Who has this rank for its hub may know it before this one does; and who is a new hub before those do
    // whom it calls. If both call each other, the member's call counts.
    if (peer == hub_) return admission::not_expected;
    members_.erase(peer);  // who comes again has given up the connection before
    return admission::welcome;
  }
  void welcome(int peer, descriptor socket) {
    control_channel channel(std::move(socket));
    channel.send(news());
    if (said_goodbye_) {
      channel.send(control_wire::encode(control_wire::of_goodbye(rank_, owner_.last_collective())));
    }
    if (presence_.is_here(peer)) add_member(peer, std::move(channel));  // or it has been told that it is not
  }

 private:
  using kind = control_wire::kind;
  using milliseconds = std::chrono::milliseconds;

  static constexpr milliseconds longest_goodbye{1'000};
  static constexpr milliseconds hub_stays{500};     // for those who leave at about the same time
  static constexpr milliseconds time_to_come{500};  // to a new hub

  struct call {
    int peer = -1;
    tcp_connector connector;
  };

  static std::size_t places(int rank) { return static_cast<std::size_t>(rank); }

  void add_member(int peer, control_channel channel) {
    members_.insert_or_assign(peer, std::move(channel));
    leads_[places(peer)] = false;
    agreement_.came(peer);
  }

  /// What the other end of a new connection may not know.
  std::string news() const {
    std::string all;
    if (const auto ruling = owner_.ruling()) all += control_wire::encode(control_wire::of_failure(*ruling));
    if (leads()) all += control_wire::encode({kind::leads, rank_});
    for (int r = 0; r < presence_.size(); ++r) {
      const auto is = presence_.of(r);
      if (is == tcp_presence::state::lost) {
        all += control_wire::encode({kind::lost, r, 0, "others had lost it before"});
      }
      if (is == tcp_presence::state::left) {
        const auto last = presence_.last_words(r);
        all += control_wire::encode(control_wire::of_goodbye(r, last ? *last : fingerprint()));
      }
      if (deposed_[places(r)]) all += control_wire::encode({kind::deposed, r});
    }
    return all;
  }

  void read_hub() {
    if (!up_ || !up_->is_ready()) return;
    up_->flush();
    if (up_->receive([&](const message& m) { return owner_.take_from_hub(m); })) return;
    const char* const how = up_->end();
    up_.reset();
    const int gone = std::exchange(hub_, -1);
    said_goodbye_ = said_goodbye_ && (goodbye_is_heard_ || is_outcast_);  // otherwise, to the next hub
    const bool is_expected = said_goodbye_ || is_outcast_ || deposed_[places(gone)];
    if (presence_.is_here(gone) && !is_expected) owner_.hub_is_lost(gone, how);
  }

  void read_members() {
    for (auto each = members_.begin(); each != members_.end();) {
      const int member = each->first;
      if (!each->second.is_ready() && presence_.is_here(member)) {
        ++each;
        continue;
      }
      each->second.flush();
      const bool is_open =
          each->second.receive([&](const message& m) { return owner_.take_from_member(member, m); });
      // The members of one that is no hub any more are with the next one, which sees when they die.
      const bool is_theirs = leads() && !is_outcast_ && !deposed_[places(rank_)];
      if (!is_open && is_theirs && presence_.is_here(member)) {
        owner_.member_is_lost(member, each->second.end());
      }
      each = is_open && presence_.is_here(member) ? std::next(each) : members_.erase(each);
    }
  }

  // Succession.

  void find_hub(deadline now) {
    if (said_goodbye_ || is_outcast_) return;
    if (hub_ != -1 && (deposed_[places(hub_)] || presence_.of(hub_) == tcp_presence::state::lost)) {
      look_for_members_at_ = deadline::max();
      leads() ? step_down() : turn_away();
    }
    if (hub_ == -1) choose_hub(now);
  }

  /// First the hub is told, then what it has said is read to the end: see tcp_agreement.
  void turn_away() {
    if (up_) {
      up_->send(news());
      up_->receive([&](const message& m) { return owner_.take_from_hub(m); });
      up_.reset();
    }
    const int before = std::exchange(hub_, -1);
    if (presence_.of(before) == tcp_presence::state::lost) owner_.hub_is_lost(before, end_without_goodbye(0));
  }

  /// The members will go, and close their connections. Who came as the hub stays.
  void step_down() {
    hub_ = -1;
    const std::string all = news();
    for (auto each = members_.begin(); each != members_.end();) {
      each->second.send(all);
      const bool stays = leads_[places(each->first)];
      if (!stays) former_members_.push_back(std::move(each->second));
      each = stays ? std::next(each) : members_.erase(each);
    }
  }

  /// The lowest rank that is left.
  void choose_hub(deadline now) {
    const auto can_lead = [&](int r) {
      return !deposed_[places(r)] && (r == rank_ || (presence_.is_here(r) && !refused_[places(r)]));
    };
    int next = 0;
    while (next < presence_.size() && !can_lead(next)) ++next;
    if (next == presence_.size()) return cast_out();  // deposed, and nobody could say what was decided
    hub_ = next;
    if (leads()) {
      look_for_members_at_ = now + time_to_come;
      agreement_.lead(now);
      return owner_.has_new_hub();
    }
    agreement_.turn_to(hub_, now);
    const auto caller = members_.find(hub_);
    if (caller == members_.end() || !leads_[places(hub_)]) return begin_call(hub_);
    control_channel channel = std::move(caller->second);
    members_.erase(caller);
    follow(std::move(channel), now);
  }

  /// There is a connection to the new hub.
  void follow(control_channel channel, deadline now) {
    up_.emplace(std::move(channel));
    up_->send(news());
    agreement_.follow(now);
    owner_.has_new_hub();
  }

  void look_for_members(deadline now) {
    if (now < look_for_members_at_) return;
    look_for_members_at_ = deadline::max();
    if (said_goodbye_) return;  // the next hub's business
    for (int r = 0; r < presence_.size(); ++r) {
      if (r != rank_ && presence_.is_here(r) && !members_.contains(r)) begin_call(r);
    }
  }

  void begin_call(int peer) {
    const auto is_to_peer = [peer](const call& each) { return each.peer == peer; };
    if (std::any_of(calls_.begin(), calls_.end(), is_to_peer)) return;
    const tcp_endpoint& to = meeting_.endpoint(peer);
    const introduction who{purpose::control, meeting_.group(), rank_, peer};
    calls_.push_back({peer, tcp_connector(to.host, to.port, who, deadline_after(longest_silence),
                                          milliseconds(0), meeting_.source())});
  }

  void serve_calls(deadline now) {
    for (auto each = calls_.begin(); each != calls_.end();) {
      const auto state = each->connector.advance(known_);
      if (state == tcp_connector::state::in_progress) {
        ++each;
        continue;
      }
      call done = std::move(*each);
      each = calls_.erase(each);
      if (state == tcp_connector::state::connected)
        is_answered(done, now);
      else
        is_not_answered(done, now);
    }
  }

  /// Also long after another hub was found: then the news are what the peer has to know.
  void is_answered(call& done, deadline now) {
    control_channel channel(done.connector.take());
    if (done.peer == hub_) return follow(std::move(channel), now);
    channel.send(news());
    add_member(done.peer, std::move(channel));
  }

  void is_not_answered(const call& done, deadline now) {
    const bool is_refused = done.connector.refused();
    if (leads()) {
      if (said_goodbye_ || !presence_.is_here(done.peer) || members_.contains(done.peer)) return;
      if (is_refused) return owner_.member_is_lost(done.peer, "nobody listens at its address any more");
      look_for_members_at_ = now + time_to_come;
    } else if (done.peer != hub_) {
      return;
    } else if (is_refused) {
      refused_[places(done.peer)] = true;
      hub_ = -1;
      owner_.may_have_left(done.peer);
    } else {
      depose(done.peer);
    }
  }

  const int rank_;
  const credentials& known_;
  const tcp_meeting& meeting_;
  const tcp_presence& presence_;
  tcp_agreement& agreement_;
  owner& owner_;

  int hub_ = 0;
  std::optional<control_channel> up_;  // to the hub, while this rank is not it
  std::map<int, control_channel> members_;
  std::list<control_channel> former_members_;
  std::list<call> calls_;
  std::vector<bool> deposed_, refused_;
  std::vector<bool> leads_;  // which of members_ has come as the hub
  bool is_outcast_ = false;
  bool said_goodbye_ = false, goodbye_is_heard_ = false;
  deadline leave_until_ = deadline::max();
  deadline look_for_members_at_ = deadline::max();
  std::size_t first_entry_ = 0;
};

}  // namespace ddpp::detail
