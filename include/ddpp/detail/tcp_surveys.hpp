// SPDX-License-Identifier: BSL-1.0
// Where everyone stands: asked by callers, who wait for the answer, or by the control thread itself, when a
// mismatch was found or ranks have been waiting for long.
#pragma once

#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/detail/tcp_presence.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_surveys {
 public:
  tcp_surveys(int rank, const tcp_presence& presence, const wake_event& control_thread)
      : rank_(rank), presence_(presence), control_thread_(control_thread) {}

  // From any thread.

  /// Blocks until all who are here have answered, or `until`.
  std::vector<rank_state> ask(deadline until) {
    std::unique_lock lock(mutex_);
    const auto mine = begin({}, until);
    control_thread_.set();
    changed_.wait_until(lock, until, [&] { return mine->is_complete; });
    std::vector<rank_state> table = std::move(mine->table);
    surveys_.erase(mine);
    lock.unlock();
    presence_.fill_in(table);
    return table;
  }
  /// A message met a receive of another collective: asks who called what.
  void investigate(int peer, const fingerprint& mine, const fingerprint& theirs) {
    {
      const std::lock_guard lock(mutex_);
      begin(mismatch{peer, mine, theirs, 0}, std::chrono::steady_clock::now() + longest_own);
    }
    control_thread_.set();
  }

  // On the control thread.

  /// Whether there is a mismatch that nobody has found. Once in a while at most.
  void look_for_mismatch(deadline now) {
    if (now < look_again_at_) return;
    look_again_at_ = now + longest_own;
    const std::lock_guard lock(mutex_);
    begin(mismatch{}, now + longest_own);
  }

  /// A rank's answer. False: it is nonsense.
  bool take(const control_wire::message& m) {
    const auto standing = control_wire::standing_of(m);
    if (!standing || m.rank < 0 || m.rank >= presence_.size()) return false;
    const std::lock_guard lock(mutex_);
    for (survey& each : surveys_) {
      if (each.id == m.number)
        each.at(m.rank) = {tcp_presence::state::here, standing->inside != 0, standing->last};
    }
    return true;
  }
  /// The hub that was asked has gone.
  void ask_again() {
    const std::lock_guard lock(mutex_);
    for (survey& each : surveys_) each.is_asked = false;
  }

  struct outcome {
    std::vector<std::uint64_t> to_ask = {};  ///< surveys that everyone is to be asked for
    std::vector<failure> causes = {};        ///< mismatches that were found
  };
  outcome serve(const rank_state& own, bool can_ask, deadline now) {
    outcome result;
    const std::lock_guard lock(mutex_);
    for (auto each = surveys_.begin(); each != surveys_.end();) {
      const auto here = each++;
      if (now < here->begin) continue;
      if (can_ask && !std::exchange(here->is_asked, true)) result.to_ask.push_back(here->id);
      here->at(rank_) = own;
      here->is_complete = is_complete(*here);
      if (!here->about || (!here->is_complete && now < here->until)) continue;
      const survey done = std::move(*here);
      surveys_.erase(here);
      if (auto cause = conclude(done, now)) result.causes.push_back(std::move(*cause));
    }
    changed_.notify_all();
    return result;
  }
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return surveys_.empty();
  }
  deadline next_due() const {
    deadline due = deadline::max();
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    for (const survey& each : surveys_) {  // what has begun and is not asked waits for a hub, which wakes
      if (each.about) due = std::min(due, each.is_asked || each.begin <= now ? each.until : each.begin);
    }
    return due;
  }

 private:
  static constexpr std::chrono::milliseconds longest_own{1'000}, repetition_pause{20};
  static constexpr int most_repetitions = 8;

  struct mismatch {
    int peer = -1;  // or nobody: it is only suspected
    fingerprint mine = {}, theirs = {};
    int repeated = 0;
  };
  struct survey {
    std::uint64_t id = 0;
    deadline begin = {}, until = {};
    std::optional<mismatch> about = {};  // the control thread's own; or a caller waits
    std::vector<rank_state> table = {};
    bool is_asked = false;
    bool is_complete = false;
    rank_state& at(int rank) { return table[static_cast<std::size_t>(rank)]; }
  };

  std::list<survey>::iterator begin(const std::optional<mismatch>& about, deadline until) {
    survey one;
    one.id = ++last_id_;
    one.until = until;
    one.about = about;
    one.table.resize(static_cast<std::size_t>(presence_.size()));
    return surveys_.insert(surveys_.end(), std::move(one));
  }

  bool is_complete(survey& one) const {
    for (int r = 0; r < presence_.size(); ++r) {
      if (presence_.is_here(r) && one.at(r).is == tcp_presence::state::unknown) return false;
    }
    return true;
  }

  std::optional<failure> conclude(survey done, deadline now) {
    if (done.about->peer < 0) return differing(done.table);
    // Others may be an instant behind: ask again, so that the table shows them in the collective too.
    const mismatch& found = *done.about;
    const bool some_are_behind =
        std::any_of(done.table.begin(), done.table.end(), [&](const rank_state& each) {
          return each.is == tcp_presence::state::here && each.last.sequence < found.mine.sequence;
        });
    if (some_are_behind && found.repeated < most_repetitions) {
      const auto again = begin(found, now + longest_own);
      again->begin = now + repetition_pause;
      ++again->about->repeated;
      return std::nullopt;
    }
    presence_.fill_in(done.table);
    done.at(rank_).last = found.mine;
    rank_state& other = done.at(found.peer);
    if (other.last.sequence <= found.theirs.sequence) other.last = found.theirs;
    other.is = tcp_presence::state::here;  // or was: what it called is what matters
    return describe_mismatch(done.table);
  }

  static std::optional<failure> differing(const std::vector<rank_state>& table) {
    for (const rank_state& a : table) {
      for (const rank_state& b : table) {
        const bool same_place = a.last.sequence == b.last.sequence && a.last.step == b.last.step;
        if (a.inside && b.inside && same_place && a.last != b.last) return describe_mismatch(table);
      }
    }
    return std::nullopt;
  }

  const int rank_;
  const tcp_presence& presence_;
  const wake_event& control_thread_;
  deadline look_again_at_ = {};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::list<survey> surveys_;
  std::uint64_t last_id_ = 0;
};

}  // namespace ddpp::detail
