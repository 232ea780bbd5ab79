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
#include <map>
#include <new>
#include <optional>
#include <random>
#include <set>
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
  std::string point = {};  ///< empty: nothing happens, all are counted
  std::uint64_t hit = 1;   ///< at which time that the victim comes there
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

  /// Throws if something is wrong. Returns how often the victim came to the point, or to each.
  std::map<std::string, std::uint64_t> run() {
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
      throw std::runtime_error(plan_.text() + ": " + error.what());
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
    std::set<std::uintptr_t> traps;
    for (const auto& [point, addresses] : points_) {
      if (plan_.point.empty() || plan_.point == point) traps.insert(addresses.begin(), addresses.end());
    }
    victim_.emplace(victim(), traps);
    EXPECT(::write(go[1], "x", 1) == 1);
    ::close(go[0]);
    ::close(go[1]);
  }

  ddpp::init_options options_of(int rank) const {
    return {.init_method = "file://" + directory_.file("store"),
            .rank = rank,
            .world_size = plan_.ranks,
            .timeout = 60s};
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
      if (rank != pids_.end() && who != victim()) continue;
      if (const std::uintptr_t point = victim_->notice(who, status); point != 0) come_to(point);
    }
  }

  void come_to(std::uintptr_t address) {
    const auto has_it = [&](const auto& point) {
      return std::find(point.second.begin(), point.second.end(), address) != point.second.end();
    };
    const std::uint64_t hits = ++hits_[std::find_if(points_.begin(), points_.end(), has_it)->first];
    if (held_) return;  // another thread
    if (plan_.point.empty() || hits != plan_.hit) return victim_->release();
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
  std::map<std::string, std::uint64_t> hits_;
  bool held_ = false;
  std::int64_t died_at_ = 0;
};

/// Trials at every point that the victim comes to.
class campaign {
 public:
  campaign(const support::named_points& points, unsigned seed) : points_(points), random_(seed) {}

  /// Returns how many went wrong. `all`: all fates at each point instead of two.
  std::size_t run(int ranks, int victim, bool named, bool all) {
    const plan undisturbed{.ranks = ranks, .victim = victim, .named = named};
    for (const auto& [point, times] : trial(undisturbed, points_).run()) {
      plan next = undisturbed;
      next.point = point;
      const fate left_out = random_() % 2 == 0 ? fate::stopped : fate::stopped_and_killed;
      for (const fate what : {fate::killed, fate::stopped, fate::stopped_and_killed}) {
        if (!all && what == left_out) continue;
        next.what = what;
        next.hit = 1 + random_() % times;
        attempt(next);
      }
    }
    std::printf("%zu trials, in %zu the victim came to the point, %zu wrong\n", trials_, struck_, wrong_);
    return wrong_;
  }

 private:
  void attempt(const plan& what) {
    ++trials_;
    try {
      struck_ += trial(what, points_).run()[what.point] >= what.hit;
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      ++wrong_;
    }
  }

  const support::named_points& points_;
  std::mt19937 random_;
  std::size_t trials_ = 0, struck_ = 0, wrong_ = 0;
};

template <class F>
void on_traced_host(F f) {
  const support::nothing_left checked;
  if (!can_trace()) return ddpp::testing::skip("processes cannot be traced here");
  if (!support::can_make_hosts()) return;
  const support::named_points points = support::points_of_this_program();
  CHECK(points.size() > 30);
  CHECK(support::status_of(support::on_host("64m", [&] {
          ::alarm(0);
          EXPECT(f(points) == 0);
        })) == 0);
}

}  // namespace

TEST_CASE("killed or stopped at a named point" * doctest::timeout(400)) {
  on_traced_host([](const support::named_points& points) {
    return campaign(points, 1).run(3, 1, false, false) + campaign(points, 2).run(2, 0, true, false);
  });
}

TEST_CASE("killed or stopped at named points, thousands of times" * doctest::test_suite("full") *
          doctest::timeout(7200)) {
  on_traced_host([](const support::named_points& points) {
    std::size_t wrong = 0;
    for (unsigned seed = 3; seed < 63; ++seed) {
      const int ranks = 2 + static_cast<int>(seed % 3), victim = static_cast<int>(seed / 3) % ranks;
      wrong += campaign(points, seed).run(ranks, victim, seed % 4 == 0, true);
    }
    return wrong;
  });
}
