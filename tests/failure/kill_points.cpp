// SPDX-License-Identifier: BSL-1.0
// One of the ranks is killed, or stopped for a while, exactly at a named point of the protocol in shared
// memory. Whoever is left hears of it soon or does not need it, has right results, uses no processor, and
// goes on without it; nothing is left behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <new>
#include <optional>
#include <random>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "../skip.hpp"
#include "../support/leftovers.hpp"
#include "../support/places.hpp"
#include "../support/probes.hpp"
#include "../support/ranks.hpp"
#include "kill_points_rank.hpp"
#include "kill_points_tracer.hpp"

namespace {

using namespace kill_points;

enum class fate { killed, stopped, stopped_and_killed };
constexpr std::array<const char*, 3> names_of_fates{"killed", "stopped", "stopped, then killed"};

struct plan {
  std::string point;
  std::uint64_t hit = UINT64_MAX;  ///< at which time that the victim comes there
  fate what = fate::killed;
  int ranks = 3, victim = 0;
  bool named = false;  ///< the segment has a name at first

  std::string text() const {
    return "rank " + std::to_string(victim) + " of " + std::to_string(ranks) + (named ? ", named" : "") +
           ", " + names_of_fates[static_cast<std::size_t>(what)] + " at " + point + " #" +
           std::to_string(hit);
  }
  bool kills() const { return what != fate::stopped; }
};

constexpr int most_ranks = 4;

class shared_reports {
 public:
  shared_reports()
      : memory_(::mmap(nullptr, sizeof(reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT(memory_ != MAP_FAILED);
    new (memory_) reports;
  }
  ~shared_reports() { ::munmap(memory_, sizeof(reports)); }
  shared_reports(const shared_reports&) = delete;
  shared_reports& operator=(const shared_reports&) = delete;
  report& operator[](int rank) const {
    return (*static_cast<reports*>(memory_))[static_cast<std::size_t>(rank)];
  }

 private:
  using reports = std::array<report, most_ranks>;
  void* memory_;
};

class trial {
 public:
  trial(const plan& what, const support::named_points& points) : plan_(what), points_(points) {}

  /// Throws if something is wrong. Returns how often the victim came to the point.
  std::uint64_t run() {
    try {
      start();
      while (!running_.empty()) {
        wait_a_moment();
        take_notice();
        if (held_ && victim_->holds_all()) wait_while_held();
      }
      judge();
    } catch (const std::exception& error) {
      for (const pid_t rank : running_) ::kill(rank, SIGKILL);
      for (const pid_t rank : running_) support::status_of(rank);
      throw std::runtime_error(plan_.text() + " (came " + std::to_string(hits_) + " times): " + error.what());
    }
    return hits_;
  }

 private:
  static constexpr std::int64_t soon = 20'000'000'000;         // nanoseconds: generous
  static constexpr std::int64_t next_to_nothing = 25'000'000;  // of the processor
  static constexpr auto window = 50ms;

  void start() {
    sigset_t children;
    ::sigemptyset(&children);
    ::sigaddset(&children, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &children, nullptr);
    std::array<int, 2> go{};
    EXPECT(::pipe2(go.data(), O_CLOEXEC) == 0);
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      pids_.push_back(support::process([&] {
        if (rank == plan_.victim) {
          char word = 0;
          EXPECT(::read(go[0], &word, 1) == 1);
        }
        if (plan_.named) support::forbid_memfd(EPERM);
        live(reports_[rank], rank, options_of(rank), plan_.victim);
      }));
      running_.push_back(pids_.back());
    }
    const auto found = points_.find(plan_.point);
    EXPECT(found != points_.end());
    victim_.emplace(victim(), found->second);
    EXPECT(::write(go[1], "x", 1) == 1);
    ::close(go[0]);
    ::close(go[1]);
  }

  ddpp::init_options options_of(int rank) const {
    return {.init_method = "file://" + directory_.file("store"),
            .rank = rank,
            .world_size = plan_.ranks,
            .timeout = 60s,
            .init_timeout = plan_.kills() ? 3s : 60s};
  }

  pid_t victim() const { return pids_[static_cast<std::size_t>(plan_.victim)]; }

  static void wait_a_moment() {
    sigset_t children;
    ::sigemptyset(&children);
    ::sigaddset(&children, SIGCHLD);
    const timespec moment{0, 5'000'000};
    ::sigtimedwait(&children, nullptr, &moment);
  }

  void take_notice() {
    int status = 0;
    for (pid_t who = 0; (who = ::waitpid(-1, &status, WNOHANG | __WALL)) > 0;) {
      const auto rank = std::find(pids_.begin(), pids_.end(), who);
      if (!WIFSTOPPED(status) && rank != pids_.end()) {
        std::erase(running_, who);
        statuses_[static_cast<std::size_t>(rank - pids_.begin())] = status;
      }
      if ((rank == pids_.end() || who == victim()) && victim_->notice(who, status)) strike();
    }
  }

  void strike() {
    if (++hits_ != plan_.hit) return victim_->release();
    if (plan_.what == fate::killed) return kill_victim();
    victim_->hold();
    held_ = true;
  }

  void kill_victim() {
    died_at_ = now();
    ::kill(victim(), SIGKILL);
  }

  /// Until no other rank uses the processor: all wait.
  void wait_while_held() {
    const std::int64_t end = now() + soon;
    for (bool quiet = false; !quiet; EXPECT(now() < end)) {
      std::array<std::int64_t, most_ranks> before{};
      for (int rank = 0; rank < plan_.ranks; ++rank) before[static_cast<std::size_t>(rank)] = used_by(rank);
      std::this_thread::sleep_for(window);
      quiet = true;
      for (int rank = 0; rank < plan_.ranks; ++rank)
        quiet = quiet && used_by(rank) - before[static_cast<std::size_t>(rank)] < next_to_nothing;
    }
    held_ = false;
    if (plan_.kills())
      kill_victim();
    else
      victim_->release();
  }

  std::int64_t used_by(int rank) const {
    clockid_t clock{};
    return ::clock_getcpuclockid(pids_[static_cast<std::size_t>(rank)], &clock) == 0 ? used(clock) : 0;
  }

  void judge() {
    std::int64_t together = 0;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const report& its = reports_[rank];
      const std::string who = "rank " + std::to_string(rank) + " (\"" + its.error.data() + "\") ";
      const auto expect = [&](bool good, const std::string& what) { support::expect(good, who + what); };
      const int status = statuses_[static_cast<std::size_t>(rank)];
      if (rank == plan_.victim && died_at_ != 0) {
        expect(status == SIGKILL || (status == 0 && its.done), "ends by the signal");
        continue;
      }
      expect(status == 0, "ends well, not with status " + std::to_string(status));
      if (died_at_ == 0) expect(its.heard_at == 0, "sees no fault");
      if (its.heard_at != 0) expect(its.heard_at - died_at_ < soon, "hears of it soon");
      expect(its.idle_cpu < next_to_nothing, "uses no processor afterwards");
      if (!its.joined) continue;
      expect(its.done, "comes to its end");
      if (together == 0) together = its.members;
      expect(its.members == together, "is with the same members as others");
      expect((its.members >> rank & 1) != 0, "is a member");
      if (died_at_ == 0) expect(its.members == (1 << plan_.ranks) - 1, "is with all");
    }
  }

  const plan plan_;
  const support::named_points& points_;
  const support::scratch_directory directory_;
  const shared_reports reports_;
  std::vector<pid_t> pids_, running_;
  std::array<int, most_ranks> statuses_{};
  std::optional<tracer> victim_;
  std::uint64_t hits_ = 0;
  bool held_ = false;
  std::int64_t died_at_ = 0;
};

/// Which of the points only rank 0 comes to.
bool is_of_rank_0(const std::string& point) {
  return point.starts_with("file_") || point.starts_with("segment_") || point == "window_offered";
}

/// Trials at each point: at the first time that the victim comes there, or, for odd seeds, at some later
/// time.
class campaign {
 public:
  campaign(const support::named_points& points, unsigned seed)
      : points_(points), random_(seed), later_(seed % 2 != 0) {}

  /// Those of `chosen(point)`. Returns how many trials went wrong.
  template <class F>
  std::size_t run(bool named, F chosen) {
    for (const auto& [point, addresses] : points_) {
      if (!chosen(point)) continue;
      plan next{.point = point, .ranks = 2 + number_below(most_ranks - 1), .named = named};
      if (!is_of_rank_0(point)) next.victim = number_below(next.ranks);
      std::uint64_t hits = 1;
      if (later_) hits = std::max<std::uint64_t>(1, times(next));
      for (const fate what : {fate::killed, fate::stopped, fate::stopped_and_killed}) {
        next.what = what;
        next.hit = 1 + random_() % hits;
        times(next);
      }
    }
    std::printf("%zu trials, %zu came to the point, %zu wrong\n", trials_, struck_, wrong_);
    return wrong_;
  }

 private:
  int number_below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  std::uint64_t times(const plan& what) {
    ++trials_;
    try {
      const std::uint64_t hits = trial(what, points_).run();
      struck_ += hits >= what.hit;
      return hits;
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      ++wrong_;
      return 1;
    }
  }

  const support::named_points& points_;
  std::mt19937 random_;
  const bool later_;
  std::size_t trials_ = 0, struck_ = 0, wrong_ = 0;
};

void try_points(unsigned from_seed, unsigned to_seed) {
  const support::nothing_left checked;
  if (!can_trace()) return ddpp::testing::skip("processes cannot be traced here");
  if (!support::can_make_hosts()) return;
  const support::named_points points = support::points_of_this_program();
  CHECK(points.size() > 30);
  CHECK(support::status_of(support::on_host("64m", [&] {
          ::alarm(0);
          std::size_t wrong = 0;
          for (unsigned seed = from_seed; seed < to_seed; ++seed) {
            campaign trials(points, seed);
            wrong += trials.run(false, [](const std::string& point) { return !point.starts_with("file_"); });
            // Only what has to do with the name differs where the segment has one.
            wrong += trials.run(true, is_of_rank_0);
          }
          EXPECT(wrong == 0);
        })) == 0);
}

}  // namespace

TEST_CASE("killed or stopped at a named point") { try_points(0, 2); }

TEST_CASE("killed or stopped at named points, thousands of times" * doctest::test_suite("full") *
          doctest::timeout(7200)) {
  try_points(2, 50);
}
