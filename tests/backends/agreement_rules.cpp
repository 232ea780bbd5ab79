// SPDX-License-Identifier: BSL-1.0
// The rules of agreement over tcp, without sockets: thousands of random orders of votes, deliveries, deaths
// and passing time.
#include <ddpp/agreement.hpp>
#include <ddpp/detail/tcp_agreement.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <doctest/doctest.h>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using ddpp::attendance;
using ddpp::verdict;
using ddpp::detail::tcp_agreement;
namespace wire = ddpp::detail::control_wire;

/// What happens in a simulation besides votes.
struct dangers {
  int deaths = 0;
  bool lose_what_was_sent = false;  ///< a host that dies takes with it what it had not delivered
  std::chrono::milliseconds shortest_vote = 0s, longest_vote = 60s;
};

/// Ranks with connections that keep order, driven by chance.
class simulation {
 public:
  static constexpr std::uint64_t numbers = 6;

  simulation(int size, unsigned seed, const dangers& what) : random_(seed), dangers_(what) {
    for (int r = 0; r < size; ++r) {
      nodes_.push_back(node{.rules = tcp_agreement(r, size)});
      nodes_.back().gone.resize(static_cast<std::size_t>(size));
      if (r == 0)
        nodes_[0].rules.lead_first();
      else
        nodes_.back().rules.follow_first(0);
    }
  }

  /// Until all survivors have all verdicts. False: they never get them.
  bool run() {
    for (int steps = 0; !is_done(); ++steps) {
      if (steps > 100'000) return false;
      step();
    }
    return true;
  }

  void check() const {
    std::map<std::uint64_t, std::set<std::string>> found;
    for (std::size_t r = 0; r < nodes_.size(); ++r) {
      for (const auto& [number, what] : nodes_[r].got) {
        check_validity(number, what);
        if (what.ranks[r] == attendance::voted && has_witness(what)) found[number].insert(text_of(what));
      }
    }
    for (const auto& each : found) {
      CAPTURE(each.first);
      CAPTURE(*each.second.begin());
      CAPTURE(*each.second.rbegin());
      CHECK(each.second.size() == 1);
    }
  }

  const std::map<std::uint64_t, verdict>& verdicts(std::size_t rank) const { return nodes_[rank].got; }

 private:
  struct node {
    tcp_agreement rules;
    bool alive = true;
    int hub = 0;
    bool connected = true;
    std::vector<bool> gone = {};
    std::uint64_t voted = 0;
    std::map<std::uint64_t, verdict> got = {};
  };
  using message = std::optional<wire::message>;  // nothing: the end of the connection

  int size() const { return static_cast<int>(nodes_.size()); }
  node& at(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  int any(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  static ddpp::ballot ballot_of(int rank, std::uint64_t number) {
    const auto mix = number * 7 + static_cast<std::uint64_t>(rank) * 3;
    return {mix % 4 == 0 ? ddpp::decision::shrink : ddpp::decision::agree, mix % 5 != 0,
            std::to_string(number) + " of " + std::to_string(rank)};
  }

  static std::string text_of(const verdict& what) {
    std::string text = std::to_string(what.yes) + name_of(what.decision) + std::to_string(what.alike);
    for (const attendance each : what.ranks) text += "agv"[static_cast<int>(each)];
    return text + what.note;
  }

  /// The verdict is one of the ballots of those that it counts.
  void check_validity(std::uint64_t number, const verdict& what) const {
    verdict right;
    right.yes = true;
    bool first = true;
    for (int r = 0; r < size(); ++r) {
      const node& each = nodes_[static_cast<std::size_t>(r)];
      const attendance came = what.ranks[static_cast<std::size_t>(r)];
      if (came == attendance::gone) CHECK(!each.alive);
      if (came != attendance::voted) continue;
      CHECK(each.voted >= number);
      const ddpp::ballot mine = ballot_of(r, number);
      if (first) right.note = mine.note, right.decision = mine.decision;
      first = false;
      right.alike = right.alike && mine.decision == right.decision;
      right.decision = std::max(right.decision, mine.decision);
      right.yes = right.yes && mine.yes;
    }
    if (first) return;  // for one who came much later
    right.ranks = what.ranks;
    CHECK(text_of(what) == text_of(right));
  }

  /// A rank that is on its way to the hub for very long is not waited for. If all who voted die, it cannot
  /// know what they decided.
  bool has_witness(const verdict& what) const {
    if (dangers_.lose_what_was_sent) return true;  // no time passes then
    for (std::size_t r = 0; r < nodes_.size(); ++r) {
      if (what.ranks[r] == attendance::voted && nodes_[r].alive) return true;
    }
    return false;
  }

  bool is_done() const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const node& each) { return !each.alive || each.got.size() == numbers; });
  }

  void step() {
    const int rank = any(size());
    node& self = at(rank);
    if (!self.alive) return;
    switch (any(8)) {
      case 0:
        if (self.got.size() == self.voted && self.voted < numbers) {
          const auto spread = dangers_.longest_vote - dangers_.shortest_vote;
          const auto time = dangers_.shortest_vote + 1ms * any(static_cast<int>(spread.count()));
          ++self.voted;
          self.rules.vote(self.voted, ballot_of(rank, self.voted), now_ + time, now_);
        }
        break;
      case 1:
        if (dangers_.deaths > 0 && any(30) == 0) return die(rank);
        break;
      case 2:
        if (!self.connected) connect(rank);
        break;
      case 3:
        if (self.hub == rank) look_for(any(size()), rank);
        break;
      case 4:
        if (!dangers_.lose_what_was_sent || nothing_is_under_way()) now_ += 1ms * any(200);
        break;
      default:
        deliver_to(rank);
    }
    self.rules.advance(now_);
    send_letters(rank, false);
    if (auto what = self.rules.take_verdict()) self.got[self.voted] = *what;
  }

  bool nothing_is_under_way() const {
    return std::all_of(queues_.begin(), queues_.end(), [&](const auto& each) {
      return each.second.empty() || !nodes_[static_cast<std::size_t>(each.first.second)].alive;
    });
  }

  /// A rank sends what it has to say, or dies while it does.
  void send_letters(int rank, bool dies) {
    auto letters = at(rank).rules.take_letters();
    if (dies && !letters.empty()) {
      std::shuffle(letters.begin(), letters.end(), random_);
      letters.resize(static_cast<std::size_t>(any(static_cast<int>(letters.size()) + 1)));
    }
    for (auto& each : letters) {
      const bool up = at(rank).hub == each.to && at(rank).connected;
      const bool down = at(each.to).hub == rank && at(each.to).connected;
      if (up || down) queues_[{rank, each.to}].push_back(std::move(each.what));
    }
  }

  void die(int rank) {
    --dangers_.deaths;
    at(rank).rules.advance(now_);
    send_letters(rank, true);
    at(rank).alive = false;
    for (int peer = 0; peer < size(); ++peer) {
      auto& queue = queues_[{rank, peer}];
      if (dangers_.lose_what_was_sent) {
        queue.resize(static_cast<std::size_t>(any(static_cast<int>(queue.size()) + 1)));
      }
      const bool up = at(rank).hub == peer && at(rank).connected;
      const bool down = at(peer).hub == rank && at(peer).connected;
      if (up || down) queue.push_back(std::nullopt);
    }
  }

  void deliver_to(int rank) {
    const int from = any(size());
    auto& queue = queues_[{from, rank}];
    if (queue.empty()) return;
    const message what = std::move(queue.front());
    queue.pop_front();
    if (!what) return is_lost(from, rank);
    if (what->kind == wire::kind::lost) return note_lost(what->rank, rank);
    CHECK(at(rank).rules.take(from, *what, now_));
  }

  void note_lost(int rank, int at_rank) {
    at(at_rank).gone[static_cast<std::size_t>(rank)] = true;
    at(at_rank).rules.gone(rank);
  }

  void is_lost(int rank, int at_rank) {
    node& self = at(at_rank);
    if (self.gone[static_cast<std::size_t>(rank)] && rank != self.hub) return;
    note_lost(rank, at_rank);
    if (self.hub == at_rank) {
      for (int r = 0; r < size(); ++r) {
        if (at(r).hub == at_rank && at(r).connected && r != at_rank) {
          queues_[{at_rank, r}].push_back(wire::message{wire::kind::lost, rank});
        }
      }
    }
    if (rank == self.hub) choose_hub(at_rank);
  }

  void choose_hub(int rank) {
    node& self = at(rank);
    self.hub = 0;
    while (self.gone[static_cast<std::size_t>(self.hub)]) ++self.hub;
    self.connected = self.hub == rank;
    if (self.connected)
      self.rules.lead(now_);
    else
      self.rules.turn_to(self.hub, now_);
  }

  void connect(int rank) {
    node& self = at(rank);
    if (!at(self.hub).alive) return is_lost(self.hub, rank);
    self.connected = true;
    at(self.hub).rules.came(rank);
    self.rules.follow(now_);
    send_letters(self.hub, false);
  }

  /// A hub looks whether a rank that it has no connection to has died.
  void look_for(int rank, int hub) {
    const bool has_said_all = queues_[{rank, hub}].empty();
    if (!at(rank).alive && has_said_all && !at(hub).gone[static_cast<std::size_t>(rank)]) is_lost(rank, hub);
  }

  std::mt19937 random_;
  dangers dangers_;
  ddpp::deadline now_ = ddpp::deadline() + 1h;
  std::vector<node> nodes_;
  std::map<std::pair<int, int>, std::deque<message>> queues_;
};

void run_many(unsigned seeds, dangers what) {
  const int most_deaths = what.deaths;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    const int size = 1 + static_cast<int>(seed % 6);
    what.deaths = std::min(most_deaths, size - 1);
    simulation one(size, seed, what);
    REQUIRE(one.run());
    one.check();
  }
}

const std::string& said(const std::vector<tcp_agreement::letter>& letters, std::size_t which) {
  return letters.at(which).what.body;
}

}  // namespace

TEST_CASE("agreement rules: all vote, in any order") {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const int size = 1 + static_cast<int>(seed % 6);
    simulation one(size, seed, {.shortest_vote = 60min, .longest_vote = 90min});
    REQUIRE(one.run());
    one.check();
    for (const auto& each : one.verdicts(0)) {
      const auto& ranks = each.second.ranks;
      CHECK(std::count(ranks.begin(), ranks.end(), attendance::voted) == size);
    }
  }
}

TEST_CASE("agreement rules: some are late") { run_many(3000, {.longest_vote = 500ms}); }

TEST_CASE("agreement rules: ranks die, and what they sent arrives") {
  run_many(6000, {.deaths = 5});
  run_many(3000, {.deaths = 5, .longest_vote = 2s});
}

TEST_CASE("agreement rules: ranks die, and what they sent is lost") {
  run_many(6000, {.deaths = 5, .lose_what_was_sent = true});
}

TEST_CASE("agreement rules: a hub that is alone decides only after it has read what came meanwhile") {
  const auto now = ddpp::deadline() + 1h;
  tcp_agreement hub(0, 2);
  hub.lead_first();
  hub.vote(1, {}, now, now);
  hub.advance(now + 1s);
  const auto letters = hub.take_letters();
  REQUIRE(letters.size() == 1);
  CHECK(letters[0].what.kind == wire::kind::proposal);
  CHECK(!hub.take_verdict());
  hub.deposed(0);  // it is told between the two steps
  hub.advance(now + 10s);
  CHECK(hub.take_letters().empty());
  CHECK(!hub.take_verdict());
  hub.turn_to(1, now + 10s);
  hub.follow(now + 10s);
  const auto told = hub.take_letters();
  REQUIRE(told.size() == 2);
  CHECK(told[0].what.kind == wire::kind::proposal);
  CHECK(said(told, 0) == said(letters, 0));
  CHECK(told[1].what.kind == wire::kind::vote);
}

TEST_CASE("agreement rules: a rank that was stopped takes nobody for absent at once, and no hub for mute") {
  auto now = ddpp::deadline() + 1h;
  tcp_agreement late(1, 3);
  late.follow_first(0);
  late.vote(1, {}, now + 1s, now);
  now += 1h;
  late.advance(now);
  CHECK(!late.has_lost_patience());
  for (int i = 0; i < 30; ++i) late.advance(now += 100ms);
  CHECK(late.has_lost_patience());

  late.lead(now);
  late.gone(0);
  now += 1h;
  late.advance(now);
  CHECK(late.take_letters().size() == 1);  // the vote of the beginning
  for (int i = 0; i < 16; ++i) late.advance(now += 100ms);
  CHECK(late.take_letters().size() == 1);  // a proposal
}

TEST_CASE("agreement rules: nonsense is told from messages") {
  const auto now = ddpp::deadline() + 1h;
  using kind = wire::kind;
  const auto takes = [&](kind what, int rank, std::uint64_t number, const std::string& body) {
    tcp_agreement hub(0, 3);
    hub.lead_first();
    return hub.take(1, {what, rank, number, body}, now);
  };
  const std::string vote =
      ddpp::detail::agreement_wire::encode(ddpp::detail::cast_vote{1, {.note = "note"}, now + 1s}, now);
  verdict what;
  what.ranks.resize(3);
  const std::string proposal = ddpp::detail::agreement_wire::encode(what);
  CHECK(takes(kind::vote, 1, 1, vote));
  CHECK(!takes(kind::vote, 1, 0, vote));
  CHECK(!takes(kind::vote, 1, 1, ""));
  CHECK(!takes(kind::vote, 1, 1, vote.substr(0, 15)));
  CHECK(!takes(kind::vote, 1, 1, vote + std::string(ddpp::longest_note, 'x')));
  CHECK(!takes(kind::vote, 1, 1, std::string(16, '\xff')));
  CHECK(takes(kind::proposal, 1, 1, proposal));
  CHECK(!takes(kind::proposal, 3, 1, proposal));
  CHECK(!takes(kind::proposal, -1, 1, proposal));
  CHECK(!takes(kind::proposal, 1, 0, proposal));
  CHECK(!takes(kind::proposal, 1, 1, proposal.substr(1)));
  CHECK(!takes(kind::proposal, 1, 1, proposal + std::string(ddpp::longest_note + 1, 'x')));
  CHECK(takes(kind::decided, 1, 1, proposal));
  CHECK(!takes(kind::decided, 1, 1, std::string(proposal.size(), '\xff')));
  CHECK(!takes(kind::endpoint, 1, 1, ""));
}
