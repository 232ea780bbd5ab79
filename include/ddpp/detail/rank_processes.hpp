// SPDX-License-Identifier: BSL-1.0
// Ranks as forked processes: started, watched, ended, and what became of the first that failed.
#pragma once

#include <ddpp/detail/child_process.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/rank_report.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <signal.h>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// The ranks of this host, `first_rank` and the following. Not thread-safe.
class rank_processes {
 public:
  /// `starter` is the function that a user has called, for error texts. `grace` is how long the others may
  /// take to end after the first failure, and again after SIGTERM before SIGKILL.
  rank_processes(const char* starter, int n, int first_rank, std::chrono::milliseconds grace)
      : starter_(starter), first_rank_(first_rank), grace_(grace), reports_(static_cast<std::size_t>(n)) {}

  /// Forks the next rank, which runs body(). Throws `resource_error` when the system refuses.
  template <class F>
  void start(F&& body) {
    const std::size_t index = children_.all().size();
    try {
      children_.start(reports_[index], std::forward<F>(body));
    } catch (const resource_error& e) {
      could_not_start(index, e.what());
    }
  }

  /// Waits until all have ended well, or returns false when `until` has passed first. After the first failure
  /// the others get the grace period, then SIGTERM, then SIGKILL; then throws `spawn_error`.
  [[gnu::cold]] bool join(deadline until) {
    while (!first_failure_ && children_.running() > 0) {
      const std::vector<std::size_t> ended = children_.wait_for_ends(until);
      if (ended.empty()) return false;
      note(ended);
    }
    if (!first_failure_) return true;
    wind_down();
    throw_failure();
  }

  /// SIGTERM, the grace period, SIGKILL.
  [[gnu::cold]] void terminate() {
    children_.send_all(SIGTERM);
    wait_for_all(deadline_after(grace_));
    children_.kill_all();
  }

  /// For a rank: throws `peer_lost` once the parent knows of one that has failed.
  [[gnu::cold]] void check_others() const {
    const std::optional<std::size_t> failed = reports_.failed_first();
    if (!failed) return;
    throw peer_lost(text("rank ", rank_of(*failed), " failed before the group had come together"),
                    rank_of(*failed), starter_, 0);
  }

  const child_processes& children() const noexcept { return children_; }

 private:
  int rank_of(std::size_t index) const noexcept { return first_rank_ + static_cast<int>(index); }

  [[noreturn, gnu::cold]] void could_not_start(std::size_t index, const char* why) const {
    throw resource_error(text(starter_, ": could not start rank ", rank_of(index), " (number ", index + 1,
                              " of ", reports_.size(), " here): ", why));
  }

  /// The first failure in time is the one to report, but one that only followed another rank's (its peer was
  /// lost) gives way to the next that is a cause.
  [[gnu::cold]] void note(const std::vector<std::size_t>& ended) {
    for (const std::size_t i : ended) {
      if (!has_failed(i)) continue;
      if (!first_failure_) reports_.announce_failure(i);
      if (!first_failure_ || (followed(*first_failure_) && !followed(i))) first_failure_ = i;
    }
  }

  bool followed(std::size_t i) const { return reports_[i].end() == rank_end::followed; }

  bool has_failed(std::size_t i) const {
    const child_process& child = children_.all()[i];
    if (!child.status_known) return reports_[i].end() != rank_end::finished;
    return child.exit_code != 0 || child.signal != 0;
  }

  [[gnu::cold]] void wind_down() {
    const deadline until = deadline_after(grace_);
    while (children_.running() > 0) {
      const std::vector<std::size_t> ended = children_.wait_for_ends(until);
      if (ended.empty()) break;
      note(ended);
    }
    if (children_.running() > 0) terminate();
  }

  void wait_for_all(deadline until) {
    while (children_.running() > 0 && !children_.wait_for_ends(until).empty()) {
    }
  }

  [[noreturn, gnu::cold]] void throw_failure() {
    const std::size_t i = *first_failure_;
    const child_process& child = children_.all()[i];
    const rank_end end = reports_[i].end();
    std::string how =
        "ended, and its status is unknown because this program ignores or collects SIGCHLD itself";
    if (end == rank_end::failed || end == rank_end::followed)
      how = text("failed: ", reports_[i].text());
    else if (child.signal != 0)
      how = text("was ended by signal ", child.signal, " (", ::strsignal(child.signal), ")");
    else if (child.status_known)
      how = text("exited with status ", child.exit_code);
    throw spawn_error(text("rank ", rank_of(i), " (process ", child.pid, ") ", how), rank_of(i),
                      child.exit_code, child.signal);
  }

  const char* starter_;
  int first_rank_;
  std::chrono::milliseconds grace_;
  rank_reports reports_;
  child_processes children_;  // ended before what they use goes
  std::optional<std::size_t> first_failure_;
};

}  // namespace ddpp::detail
