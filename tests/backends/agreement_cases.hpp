// SPDX-License-Identifier: BSL-1.0
// Agreements of ranks that are processes, whatever becomes of some of them. To be included once `transport`
// is an alias of the transport under test.
#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <doctest/doctest.h>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../support/transport_life.hpp"

namespace {

using namespace std::chrono_literals;
using ddpp::attendance;
using ddpp::verdict;

static_assert(ddpp::has_agreement<transport>);

/// Who came, by rank: v for voted, a for absent, g for gone.
std::string roll_of(const verdict& what) {
  std::string roll;
  for (const attendance each : what.ranks) roll += "agv"[static_cast<int>(each)];
  return roll;
}

std::string text_of(const verdict& what) {
  return roll_of(what) + (what.yes ? " yes " : " no ") + name_of(what.decision) +
         (what.alike ? " alike " : " mixed ") + what.note;
}

/// What the processes of a test leave in files for each other: marks, and the verdicts that they got.
class notice_board {
 public:
  void mark(const std::string& name) const { std::ofstream(directory_.file(name)); }
  bool has(const std::string& name) const { return std::filesystem::exists(directory_.file(name)); }
  void await(const std::string& name) const {
    while (!has(name)) std::this_thread::sleep_for(1ms);
  }
  void await_all(const std::string& name, int ranks) const {
    for (int r = 0; r < ranks; ++r) await(name + std::to_string(r));
  }
  void note_verdict(int rank, std::uint64_t number, const verdict& what) const {
    std::ofstream(directory_.file("verdicts." + std::to_string(rank)), std::ios::app)
        << std::to_string(number) + " " + text_of(what) + "\n";
  }
  /// Of one rank, by number.
  std::map<std::uint64_t, std::string> verdicts(int rank) const {
    std::map<std::uint64_t, std::string> all;
    std::ifstream file(directory_.file("verdicts." + std::to_string(rank)));
    std::uint64_t number = 0;
    for (std::string line; file >> number && std::getline(file, line);) all[number] = line.substr(1);
    return all;
  }
  const support::scratch_directory& directory() const { return directory_; }

 private:
  support::scratch_directory directory_;
};

/// A rank of the test, in its own process.
struct voter {
  transport& t;
  const notice_board& board;

  int rank() const { return t.rank(); }
  verdict agree(std::uint64_t number, std::chrono::milliseconds time = 20s, ddpp::ballot mine = {}) {
    if (mine.note.empty()) mine.note = "note of rank " + std::to_string(rank());
    const verdict what = t.agree(number, mine, support::soon(time));
    EXPECT(what.ranks.size() == static_cast<std::size_t>(t.size()));
    board.note_verdict(rank(), number, what);
    return what;
  }
  void mark(const std::string& name) const { board.mark(name + std::to_string(rank())); }
};

/// Processes that vote. Destroyed, it has waited for all of them.
class voters {
 public:
  voters(int size, const std::function<void(voter&)>& body) : status_(static_cast<std::size_t>(size), -1) {
    for (int rank = 0; rank < size; ++rank) {
      children_.push_back(support::fork_child([&] {
        transport t(support::bootstrap_of(rank, size, support::store_in(board.directory())), {});
        voter self{t, board};
        self.mark("here");
        body(self);
      }));
    }
    board.await_all("here", size);
  }
  ~voters() { wait(); }
  voters(const voters&) = delete;
  voters& operator=(const voters&) = delete;

  void signal(int rank, int which) const { ::kill(children_[static_cast<std::size_t>(rank)], which); }
  void kill(int rank) { signal(rank, SIGKILL); }
  void stop(int rank) { signal(rank, SIGSTOP); }
  void wake(int rank) { signal(rank, SIGCONT); }

  /// Until all have ended. Those who were not killed must have succeeded.
  void wait() {
    for (std::size_t r = 0; r < children_.size(); ++r) {
      if (status_[r] == -1) status_[r] = support::status_of(children_[r]);
      CHECK((status_[r] == 0 || status_[r] == SIGKILL));
    }
  }
  bool was_killed(int rank) const { return status_[static_cast<std::size_t>(rank)] == SIGKILL; }
  int size() const { return static_cast<int>(children_.size()); }

  /// What each of the ranks got for the number.
  void all_got(const std::vector<int>& ranks, std::uint64_t number, const std::string& what) {
    wait();
    for (const int rank : ranks) CHECK(board.verdicts(rank)[number] == what);
  }

  /// All who got a verdict that counts them got the same one.
  void check_uniform() {
    wait();
    std::map<std::uint64_t, std::set<std::string>> found;
    for (int r = 0; r < size(); ++r) {
      for (const auto& [number, text] : board.verdicts(r)) {
        if (text[static_cast<std::size_t>(r)] == 'v') found[number].insert(text);
      }
    }
    for (const auto& each : found) {
      CAPTURE(each.first);
      CAPTURE(*each.second.begin());
      CAPTURE(*each.second.rbegin());
      CHECK(each.second.size() == 1);
    }
  }

  notice_board board;

 private:
  std::vector<pid_t> children_;
  std::vector<int> status_;
};

std::chrono::milliseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

}  // namespace

TEST_CASE("agreement: all vote, a hundred times, whatever they say") {
  for (int size = 1; size <= 6; ++size) {
    voters all(size, [size](voter& self) {
      for (std::uint64_t number = 1; number <= 100; ++number) {
        ddpp::ballot mine;
        mine.yes = number % 3 != 0 || self.rank() != size - 1;
        mine.decision = number % 5 == 0 && self.rank() == 0 ? ddpp::decision::shrink : ddpp::decision::agree;
        mine.note = "n" + std::to_string(number) + " of " + std::to_string(self.rank());
        const verdict what = self.agree(number, 20s, mine);
        EXPECT(roll_of(what) == std::string(static_cast<std::size_t>(size), 'v'));
        EXPECT(what.yes == (number % 3 != 0));
        EXPECT(what.decision == (number % 5 == 0 ? ddpp::decision::shrink : ddpp::decision::agree));
        EXPECT(what.alike == (number % 5 != 0 || size == 1));
        EXPECT(what.note == "n" + std::to_string(number) + " of 0");
      }
    });
    all.check_uniform();
  }
}

TEST_CASE("agreement: the longest note, and an empty one") {
  voters all(2, [](voter& self) {
    const std::string longest(ddpp::longest_note, 'x');
    EXPECT(self.t.agree(1, {.note = longest}, support::soon()).note == longest);
    EXPECT(self.t.agree(2, {}, support::soon()).note.empty());
  });
}

TEST_CASE("agreement: a rank that died before is gone, whoever it was") {
  for (int size = 2; size <= 5; ++size) {
    for (int victim = 0; victim < size; ++victim) {
      voters all(size, [&](voter& self) {
        if (self.rank() == victim) ::pause();
        self.board.await("killed");
        self.agree(1);
        self.agree(2);
      });
      all.kill(victim);
      all.board.mark("killed");
      std::string roll(static_cast<std::size_t>(size), 'v');
      roll[static_cast<std::size_t>(victim)] = 'g';
      for (int r = 0; r < size; ++r) {
        const std::string text = roll + " yes agree alike note of rank " + (victim == 0 ? "1" : "0");
        if (r != victim) all.all_got({r}, 1, text);
        if (r != victim) all.all_got({r}, 2, text);
      }
    }
  }
}

TEST_CASE("agreement: a rank that dies while the others wait for it is waited for no longer") {
  for (const int victim : {0, 1, 3}) {
    voters all(4, [&](voter& self) {
      if (self.rank() == victim) ::pause();
      self.mark("votes");
      const auto begin = std::chrono::steady_clock::now();
      self.agree(1);
      EXPECT(since(begin) < 15s);
    });
    for (int r = 0; r < 4; ++r) {
      if (r != victim) all.board.await("votes" + std::to_string(r));
    }
    std::this_thread::sleep_for(50ms);
    all.kill(victim);
    std::string roll = "vvvv";
    roll[static_cast<std::size_t>(victim)] = 'g';
    for (int r = 0; r < 4; ++r) {
      if (r != victim)
        all.all_got({r}, 1, roll + " yes agree alike note of rank " + (victim == 0 ? "1" : "0"));
    }
  }
}

TEST_CASE("agreement: the two lowest ranks die one after the other while all wait for the last") {
  voters all(5, [&](voter& self) {
    if (self.rank() == 4) self.board.await("killed");
    self.mark("votes");
    self.agree(1);
    self.agree(2);
  });
  for (int r = 0; r < 4; ++r) all.board.await("votes" + std::to_string(r));
  std::this_thread::sleep_for(50ms);
  all.kill(0);
  std::this_thread::sleep_for(20ms);
  all.kill(1);
  all.board.mark("killed");
  all.check_uniform();
  for (const int rank : {2, 3, 4}) {
    // Their votes may have been heard before.
    CHECK(all.board.verdicts(rank)[1].substr(2, 3) == "vvv");
    CHECK(all.board.verdicts(rank)[2].substr(0, 5) == "ggvvv");
  }
}

TEST_CASE("agreement: who has left in good order is not waited for") {
  for (const int leaver : {0, 1, 2}) {
    voters all(3, [&](voter& self) {
      support::meet(self.t);
      self.agree(1);
      if (self.rank() == leaver) return;
      const auto begin = std::chrono::steady_clock::now();
      self.agree(2);
      EXPECT(since(begin) < 15s);
      EXPECT(!self.t.failed());
    });
    std::string roll = "vvv";
    roll[static_cast<std::size_t>(leaver)] = 'g';
    all.check_uniform();
    for (int r = 0; r < 3; ++r) {
      if (r != leaver) CHECK(all.board.verdicts(r)[2].substr(0, 3) == roll);
    }
  }
}

TEST_CASE("agreement: who comes late gets the verdict in which it is absent") {
  for (const int late : {0, 1, 2}) {
    voters all(3, [&](voter& self) {
      if (self.rank() == late) {
        self.board.await("decided" + std::to_string(late == 0 ? 1 : 0));
        self.board.await("decided" + std::to_string(late == 2 ? 1 : 2));
      }
      const auto begin = std::chrono::steady_clock::now();
      EXPECT(roll_of(self.agree(1, self.rank() == late ? 20s : 300ms))[static_cast<std::size_t>(late)] ==
             'a');
      EXPECT(since(begin) < 10s);
      self.mark("decided");
      EXPECT(roll_of(self.agree(2)) == "vvv");
      EXPECT(!self.t.failed());
    });
    all.check_uniform();
  }
}

TEST_CASE("agreement: the first voter's time counts") {
  voters all(3, [&](voter& self) {
    if (self.rank() == 2) self.board.await("decided");
    const auto begin = std::chrono::steady_clock::now();
    const verdict what = self.agree(1, self.rank() == 1 ? 300ms : 60s);
    EXPECT(roll_of(what).substr(1) == "va");  // rank 0 may come too late for it
    if (self.rank() == 1) EXPECT(since(begin) >= 250ms);
    EXPECT(since(begin) < 20s);
    self.board.mark("decided");
    EXPECT(roll_of(self.agree(2)) == "vvv");
  });
  all.check_uniform();
}

TEST_CASE("agreement: in a group that has failed, after a death and its ruling") {
  for (const int victim : {0, 2}) {
    voters all(4, [&](voter& self) {
      if (self.rank() == victim) ::pause();
      const auto cause = support::cause_of([&] { support::receive(self.t, 1, victim, 0); });
      EXPECT(cause.kind == ddpp::failure_kind::peer_lost && cause.rank == victim);
      EXPECT(roll_of(self.agree(1))[static_cast<std::size_t>(victim)] == 'g');
      self.agree(2);
    });
    all.kill(victim);
    all.check_uniform();
  }
}

TEST_CASE("agreement: deaths after the first failure are learned too") {
  voters all(5, [&](voter& self) {
    if (self.rank() == 2 || self.rank() == 3) ::pause();
    (void)support::cause_of([&] { support::receive(self.t, 1, 2, 0); });
    self.mark("failed");
    self.board.await("all dead");
    const auto is_lost = [&](std::size_t rank) {
      return self.t.survey(support::soon(1s))[rank].is == ddpp::rank_state::presence::lost;
    };
    while (!is_lost(2) || !is_lost(3)) std::this_thread::sleep_for(1ms);
    EXPECT(roll_of(self.agree(1)) == "vvggv");
  });
  all.kill(2);
  for (const int r : {0, 1, 4}) all.board.await("failed" + std::to_string(r));
  all.kill(3);
  all.board.mark("all dead");
  all.check_uniform();
}

TEST_CASE("agreement: a rank revokes, all agree, and the same again with fewer") {
  voters all(4, [&](voter& self) {
    if (self.rank() == 3) self.t.abort({ddpp::failure_kind::revoked, 3, "enough"});
    (void)support::cause_of([&] { support::receive(self.t, 1, (self.rank() + 1) % 4, 0); });
    EXPECT(roll_of(self.agree(1)) == "vvvv");
    if (self.rank() == 3) return;
    EXPECT(roll_of(self.agree(2)) == "vvvg");
    if (self.rank() == 0) return;
    EXPECT(roll_of(self.agree(3)) == "gvvg");
  });
  all.check_uniform();
}

TEST_CASE("agreement: a stopped rank is absent, and gets that verdict when it wakes") {
  for (const int victim : {0, 1, 2}) {
    const auto size = victim == 2 ? 3 : 4;
    voters all(size, [&](voter& self) {
      if (self.rank() == victim) {
        self.mark("ready");
        self.board.await("stopped");
      }
      self.board.await("stopped");
      const auto begin = std::chrono::steady_clock::now();
      const verdict what = self.agree(1, self.rank() == victim ? 20s : 500ms);
      EXPECT(roll_of(what)[static_cast<std::size_t>(victim)] == 'a');
      if (self.rank() != victim) {
        EXPECT(since(begin) < 15s);
        EXPECT(what.yes);
      }
      self.mark("decided");
      EXPECT(roll_of(self.agree(2)) == std::string(static_cast<std::size_t>(size), 'v'));
    });
    all.board.await("ready" + std::to_string(victim));
    all.stop(victim);
    all.board.mark("stopped");
    for (int r = 0; r < size; ++r) {
      if (r != victim) all.board.await("decided" + std::to_string(r));
    }
    all.wake(victim);
    all.check_uniform();
  }
}

TEST_CASE("agreement: ranks that are stopped while they wait for the verdict") {
  for (const int victim : {0, 1}) {
    voters all(4, [&](voter& self) {
      if (self.rank() == 3) self.board.await("stopped");
      self.mark("votes");
      self.agree(1, 1s);
      self.mark("decided");
      self.agree(2, 20s);
    });
    for (int r = 0; r < 3; ++r) all.board.await("votes" + std::to_string(r));
    std::this_thread::sleep_for(50ms);
    all.stop(victim);
    all.board.mark("stopped");
    for (int r = 0; r < 4; ++r) {
      if (r != victim) all.board.await("decided" + std::to_string(r));
    }
    all.wake(victim);
    all.check_uniform();
  }
}

TEST_CASE("agreement: the two lowest ranks are stopped, and wake in either order") {
  for (const int first : {0, 1}) {
    voters all(4, [&](voter& self) {
      self.mark("ready");
      self.board.await("stopped");
      const verdict what = self.agree(1, 500ms);
      EXPECT(roll_of(what).substr(0, 2) == "aa");  // of the others one may be too late for it
      self.mark("decided");
      self.board.await_all("decided", 4);
      EXPECT(roll_of(self.agree(2)) == "vvvv");
    });
    all.board.await_all("ready", 4);
    all.stop(0);
    all.stop(1);
    all.board.mark("stopped");
    all.board.await("decided2");
    all.board.await("decided3");
    all.wake(first);
    all.board.await("decided" + std::to_string(first));
    all.wake(1 - first);
    all.check_uniform();
  }
}

TEST_CASE("agreement: rank 0 wakes when the others have decided and left") {
  voters all(3, [&](voter& self) {
    self.mark("ready");
    self.board.await("stopped");
    const auto begin = std::chrono::steady_clock::now();
    const verdict what = self.agree(1, 500ms);
    EXPECT(since(begin) < 15s);
    EXPECT(roll_of(what)[0] == 'a');  // of the others one may be too late for it
    self.mark("decided");
  });
  all.board.await_all("ready", 3);
  all.stop(0);
  all.board.mark("stopped");
  all.board.await("decided1");
  all.board.await("decided2");
  std::this_thread::sleep_for(700ms);
  all.wake(0);
  all.check_uniform();
}

TEST_CASE("agreement: a rank that is stopped, and then killed, is gone") {
  for (const int victim : {0, 1, 2}) {
    voters all(3, [&](voter& self) {
      self.mark("ready");
      self.board.await("stopped");
      EXPECT(roll_of(self.agree(1, 500ms))[static_cast<std::size_t>(victim)] == 'a');
      self.mark("decided");
      EXPECT(roll_of(self.agree(2))[static_cast<std::size_t>(victim)] == 'g');
    });
    all.board.await("ready" + std::to_string(victim));
    all.stop(victim);
    all.board.mark("stopped");
    for (int r = 0; r < 3; ++r) {
      if (r != victim) all.board.await("decided" + std::to_string(r));
    }
    std::this_thread::sleep_for(100ms);
    all.kill(victim);
    const auto begin = std::chrono::steady_clock::now();
    all.check_uniform();
    CHECK(since(begin) < 10s);
  }
}

TEST_CASE("agreement: ranks are stopped and woken at random moments" * doctest::timeout(600)) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int size = 2 + static_cast<int>(seed % 4);
    voters all(size, [&](voter& self) {
      for (std::uint64_t number = 1; number <= 15; ++number) {
        self.agree(number, 200ms);
        std::this_thread::sleep_for(10ms);
      }
      self.mark("done");
      self.board.await_all("done", size);
      EXPECT(roll_of(self.agree(16)) == std::string(static_cast<std::size_t>(size), 'v'));
    });
    for (int i = 0; i < 4; ++i) {
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 50));
      all.stop(victim);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (i % 2 == 0 ? 300 : 3'000)));
      if (random() % 2 == 0) all.wake(victim);
    }
    for (int r = 0; r < size; ++r) all.wake(r);
    all.check_uniform();
  }
}

TEST_CASE("agreement: ranks die at random moments in a loop of agreements" * doctest::timeout(600)) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int size = 2 + static_cast<int>(random() % 5);
    constexpr std::uint64_t numbers = 60;
    voters all(size, [&](voter& self) {
      for (std::uint64_t number = 1; number <= numbers; ++number) {
        ddpp::ballot mine;
        mine.yes = (number + static_cast<std::uint64_t>(self.rank())) % 7 != 0;
        EXPECT(roll_of(self.agree(number, 30s, mine))[static_cast<std::size_t>(self.rank())] == 'v');
      }
    });
    std::vector<int> order(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) order[static_cast<std::size_t>(r)] = r;
    if (seed % 2 == 0) std::shuffle(order.begin(), order.end(), random);  // else the hubs in turn
    for (int i = 0; i < size - 1; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
      all.kill(order[static_cast<std::size_t>(i)]);
    }
    all.check_uniform();
    int last = 0;
    for (int r = 0; r < size; ++r) {
      if (!all.was_killed(r)) last = r;
    }
    CHECK(all.board.verdicts(last).size() == numbers);
  }
}
