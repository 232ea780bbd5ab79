// SPDX-License-Identifier: BSL-1.0
// How the ranks of a group decide together whoever dies or does not answer: the rules alone, without sockets,
// clocks or threads. The caller brings messages and the time, and takes away letters and verdicts.
//
// The hub leads. For the number that is open (one more than the last one decided):
//
//   member -> hub   vote
//   hub -> all      proposal, once all who are here have voted, or the earliest voter's time is up
//   member -> hub   stored
//   hub -> all      decided, once all who are here have stored the proposal, or had time to
//
// Nobody returns a verdict before it is decided, and nothing is decided before it lies in every survivor's
// hands (or at least in its socket, which is read before anything else is concluded). So whoever leads next
// hears of it: who turns to a new hub tells it the latest verdicts, the proposal it has stored, and its vote,
// in this order. A new hub proposes what it has heard was proposed; of several proposals, that of the latest
// hub. Hubs follow each other by rising rank, each leads once, so that a hub's rank dates its proposals.
//
// A new hub does not conclude that someone is absent before it has led for `settling_time`: who comes as the
// hub but has been replaced while it was stopped is told so within that time. This time, and the time that a
// hub is given to answer, count only while this rank is awake: a rank that was stopped knows nothing of what
// was meanwhile.
//
// A proposal is never decided in the same call of `advance`, not even by a hub that is alone. Between the two
// the caller reads what has come; and who gives up its hub first says so on its connection, and then reads
// that to the end. So either the hub hears that it is no longer one, or the other hears of the proposal.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/detail/tcp_agreement_wire.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_agreement {
 public:
  using message = control_wire::message;
  struct letter {
    int to = -1;
    message what = {};
  };

  static constexpr std::chrono::milliseconds storing_time{500};
  static constexpr std::chrono::milliseconds settling_time{1'500};
  /// What a hub is given beyond the time that it may need; and one that is called, to answer.
  static constexpr std::chrono::milliseconds slack{1'000};
  static constexpr std::chrono::milliseconds longest_step{100};          // counted at once
  static constexpr std::size_t most_verdicts = 16;                       // for those who come late
  static constexpr std::uint64_t most_numbers = std::uint64_t{1} << 62;  // so that one more is still a number

  tcp_agreement(int rank, int size)
      : rank_(rank),
        gone_(places(size)),
        deposed_(places(size)),
        stored_(places(size)),
        votes_(places(size)) {}

  /// This rank votes, on a number after those it has verdicts for.
  void vote(std::uint64_t number, ballot mine, deadline until, deadline now) {
    mine.note.resize(std::min(mine.note.size(), longest_note));
    pending_ = number;
    own() = {number, std::move(mine), until};
    skip_to(number);
    if (role_ != role::hub) awake_ = {};
    if (role_ == role::member) send_vote(now);
  }
  /// The verdict that this rank waits for, once.
  std::optional<verdict> take_verdict() {
    if (pending_ == 0 || (pending_ > latest_ && role_ != role::outcast)) return std::nullopt;
    return answer(std::exchange(pending_, 0));
  }

  /// This rank is the hub from now on: the first one, or a later one.
  void lead_first() {
    role_ = role::hub;
    awake_ = settling_time;
  }
  void lead(deadline now) {
    take_role(role::hub);
    restart_count(now);
  }
  /// This rank looks for its hub. Until `follow` it has none.
  void turn_to(int hub, deadline now) {
    take_role(role::seeker);
    hub_ = hub;
    since_ = now;
    patience_ = slack;
    restart_count(now);
  }
  /// It has found it.
  void follow_first(int hub) {
    role_ = role::member;
    hub_ = hub;
    patience_ = storing_time + slack;
  }
  void follow(deadline now) {
    take_role(role::member);
    restart_count(now);
    patience_ = settling_time + storing_time + slack;
    for (const auto& [number, each] : verdicts_) send_verdict(hub_, number, each);
    if (proposal_) send_proposal(hub_);
    if (pending_ > latest_) send_vote(now);
  }
  /// It takes part no longer: it leaves, or the others go on without it. What it waits for is decided without
  /// it.
  void cast_out() { role_ = role::outcast; }

  void gone(int rank) { gone_[places(rank)] = true; }
  /// Others do without this hub. It may be here, and vote.
  void deposed(int rank) {
    deposed_[places(rank)] = true;
    if (rank == rank_ && role_ == role::hub) role_ = role::seeker;
  }
  /// Someone has come to this rank as to its hub.
  void came(int member) {
    if (role_ == role::hub && under_way_) send_proposal(member);
  }

  /// False: it is nonsense.
  bool take(int from, const message& m, deadline now) {
    if (m.number == 0 || m.number > most_numbers) return false;
    switch (m.kind) {
      case control_wire::kind::vote:
        return take_vote(from, m, now);
      case control_wire::kind::proposal:
        return take_proposal(from, m);
      case control_wire::kind::stored:
        if (role_ == role::hub && under_way_ && m.number == proposal_->number) stored_[places(from)] = true;
        return true;
      case control_wire::kind::decided:
        return take_decided(m);
      default:
        return false;
    }
  }

  /// Draws the conclusions. To be called once between any two times that all connections are read.
  void advance(deadline now) {
    if (now >= counts_from()) {
      awake_ += std::min<deadline::duration>(now - counted_at_, longest_step);
      counted_at_ = now;
    }
    if (role_ != role::hub) return;
    if (under_way_) {
      if (!all_have_stored() && now < stored_by_) return;
      decide(proposal_->number, verdict(proposal_->what));
    }
    if (now >= ready_at()) propose(now);
  }

  /// Whether the hub is to be given up, as it does not answer.
  bool has_lost_patience() const { return waits_for_hub() && awake_ >= patience_; }

  /// When `advance` is to be called though nothing has come.
  deadline next_due() const {
    const deadline from = counts_from();
    const deadline count = from == deadline::max() ? from : std::max(from, counted_at_ + longest_step);
    if (role_ != role::hub) return count;
    if (under_way_) return all_have_stored() ? deadline() : std::min(count, stored_by_);
    return std::min(count, ready_at());
  }

  std::vector<letter> take_letters() { return std::exchange(letters_, {}); }

 private:
  /// `outcast` for good; every rank is `hub` once at most.
  enum class role : std::uint8_t { seeker, member, hub, outcast };

  struct stored_proposal {
    std::uint64_t number = 0;
    int proposer = -1;
    verdict what = {};
  };

  void take_role(role next) {
    if (role_ != role::outcast) role_ = next;
  }
  static std::size_t places(int rank) { return static_cast<std::size_t>(rank); }
  int size() const { return static_cast<int>(votes_.size()); }
  cast_vote& own() { return votes_[places(rank_)]; }
  bool has_voted(int rank) const { return votes_[places(rank)].number == latest_ + 1; }

  bool waits_for_hub() const {
    return pending_ > latest_ && (role_ == role::member || role_ == role::seeker);
  }
  bool is_settled() const { return awake_ >= settling_time; }
  /// From when on the time that this rank is awake matters.
  deadline counts_from() const {
    if (role_ == role::hub) return is_settled() ? deadline::max() : deadline();
    return waits_for_hub() ? std::max(votes_[places(rank_)].until, since_) : deadline::max();
  }
  void restart_count(deadline now) {
    awake_ = {};
    counted_at_ = now;
  }

  void send(int to, message what) {
    if (to != rank_ && !gone_[places(to)]) letters_.push_back({to, std::move(what)});
  }
  void send_vote(deadline now) {
    send(hub_, {control_wire::kind::vote, rank_, pending_, agreement_wire::encode(own(), now)});
  }
  void send_proposal(int to) {
    send(to, {control_wire::kind::proposal, proposal_->proposer, proposal_->number,
              agreement_wire::encode(proposal_->what)});
  }
  void send_verdict(int to, std::uint64_t number, const verdict& what) {
    send(to, {control_wire::kind::decided, rank_, number, agreement_wire::encode(what)});
  }

  /// Whoever is at `number` has a verdict for the one before.
  void skip_to(std::uint64_t number) {
    if (number <= latest_ + 1) return;
    latest_ = number - 1;
    drop_what_is_decided();
  }
  void drop_what_is_decided() {
    if (proposal_ && proposal_->number <= latest_) {
      proposal_.reset();
      under_way_ = false;
    }
  }

  bool take_vote(int from, const message& m, deadline now) {
    auto vote = agreement_wire::decode_vote(m.number, m.body, now);
    if (!vote) return false;
    if (m.number <= latest_) {
      send_verdict(from, m.number, answer(m.number));
      return true;
    }
    skip_to(m.number);
    votes_[places(from)] = std::move(*vote);
    return true;
  }

  bool take_proposal(int from, const message& m) {
    auto what = agreement_wire::decode_verdict(m.body, votes_.size());
    if (!what || m.rank < 0 || m.rank >= size()) return false;
    if (under_way_ || m.number <= latest_) return true;
    skip_to(m.number);
    if (proposal_ && proposal_->proposer > m.rank) return true;
    proposal_ = {m.number, m.rank, std::move(*what)};
    if (role_ == role::member && from == hub_) send(hub_, {control_wire::kind::stored, rank_, m.number});
    return true;
  }

  bool take_decided(const message& m) {
    const auto what = agreement_wire::decode_verdict(m.body, votes_.size());
    if (!what) return false;
    if (verdicts_.contains(m.number)) return true;
    if (m.number > latest_ || m.number == pending_) decide(m.number, *what);
    return true;
  }

  void decide(std::uint64_t number, verdict what) {
    if (role_ == role::hub) {
      for (int r = 0; r < size(); ++r) send_verdict(r, number, what);
    }
    latest_ = std::max(latest_, number);
    verdicts_.insert_or_assign(number, std::move(what));
    if (verdicts_.size() > most_verdicts) verdicts_.erase(verdicts_.begin());
    drop_what_is_decided();
  }

  /// For who asks after a number that is decided. Whom it counts as voting has been told while it was young.
  verdict answer(std::uint64_t number) const {
    const auto found = verdicts_.find(number);
    if (found != verdicts_.end()) return found->second;
    verdict without_asker;
    without_asker.ranks.assign(votes_.size(), attendance::absent);
    return without_asker;
  }

  // As the hub.

  /// When there is, or will be, enough to propose something, as far as is known.
  deadline ready_at() const {
    bool all_voted = true, settled = true;
    deadline earliest = deadline::max();
    for (int r = 0; r < size(); ++r) {
      if (has_voted(r)) {
        earliest = std::min(earliest, votes_[places(r)].until);
      } else if (!gone_[places(r)]) {
        all_voted = false;
        settled = settled && deposed_[places(r)];
      }
    }
    if (earliest == deadline::max()) return deadline::max();
    if (all_voted) return deadline();
    return settled || is_settled() ? earliest : deadline::max();
  }

  void propose(deadline now) {
    const std::uint64_t number = latest_ + 1;
    proposal_ = {number, rank_, proposal_ ? std::move(proposal_->what) : tally()};
    under_way_ = true;
    stored_by_ = now + storing_time;
    stored_.assign(stored_.size(), false);
    for (int r = 0; r < size(); ++r) send_proposal(r);
  }

  verdict tally() const {
    verdict result;
    const ballot* lowest = nullptr;
    result.yes = true;
    for (int r = 0; r < size(); ++r) {
      if (!has_voted(r)) {
        result.ranks.push_back(gone_[places(r)] ? attendance::gone : attendance::absent);
        continue;
      }
      const ballot& each = votes_[places(r)].ballot;
      if (lowest == nullptr) lowest = &each;
      result.ranks.push_back(attendance::voted);
      result.yes = result.yes && each.yes;
      result.alike = result.alike && each.decision == lowest->decision;
      result.decision = std::max(result.decision, each.decision);
    }
    result.note = lowest->note;
    return result;
  }

  bool all_have_stored() const {
    for (int r = 0; r < size(); ++r) {
      if (r != rank_ && !gone_[places(r)] && !stored_[places(r)]) return false;
    }
    return true;
  }

  const int rank_;
  role role_ = role::seeker;
  int hub_ = -1;
  deadline since_ = deadline();  // when this rank turned to its hub
  deadline counted_at_ = deadline();
  deadline::duration awake_{};  // as the hub, or past the time of the vote
  std::chrono::milliseconds patience_{};
  std::vector<bool> gone_, deposed_, stored_;
  std::vector<cast_vote> votes_;  // the latest of each rank that this one has heard of
  std::uint64_t pending_ = 0;     // the number that this rank waits for
  std::uint64_t latest_ = 0;      // the last one decided
  std::map<std::uint64_t, verdict> verdicts_;
  std::optional<stored_proposal> proposal_;  // for the number after `latest_`
  bool under_way_ = false;                   // it is this hub's own
  deadline stored_by_ = {};
  std::vector<letter> letters_;
};

}  // namespace ddpp::detail
