// SPDX-License-Identifier: BSL-1.0
// An incident: what happens to one rank, while the ranks do what, and when. And the board, in memory that all
// processes share, on which each survivor writes what it saw.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/types.h>
#include <utility>

namespace fault_table {

using namespace std::chrono_literals;

enum class fault : std::uint8_t {
  leaves,
  exits_0,
  exits_1,
  throws,
  aborts,
  killed,
  stopped,
  stopped_and_killed
};
inline constexpr std::array all_faults{
    fault::leaves, fault::exits_0, fault::exits_1, fault::throws,
    fault::aborts, fault::killed,  fault::stopped, fault::stopped_and_killed};

inline const char* name_of(fault f) {
  constexpr std::array names{"returns", "exit 0",  "exit 1",  "exception",
                             "abort",   "SIGKILL", "SIGSTOP", "SIGSTOP, then SIGKILL"};
  return names[static_cast<std::size_t>(f)];
}

/// The initial ones first; from `idle` on the group exists when the fault comes.
enum class phase : std::uint8_t {
  init_file,
  init_tcp,
  init_spawn,
  init_launch,
  idle,
  barrier,
  broadcast,
  all_reduce,
  reduce,
  gather,
  gather_v,
  scatter,
  scatter_v,
  all_gather,
  all_gather_v,
  reduce_scatter,
  reduce_scatter_v,
  all_to_all,
  all_to_all_v,
  receive,
  send,
  split,
  subgroup,
  reducer,
  leaving,
  destruction,
};
inline constexpr int phases = static_cast<int>(phase::destruction) + 1;

inline const char* name_of(phase p) {
  constexpr std::array<const char*, phases> names{"init, file://",
                                                  "init, tcp://",
                                                  "init in spawn",
                                                  "launch",
                                                  "between operations",
                                                  "barrier",
                                                  "broadcast",
                                                  "all_reduce",
                                                  "reduce",
                                                  "gather",
                                                  "gather_v",
                                                  "scatter",
                                                  "scatter_v",
                                                  "all_gather",
                                                  "all_gather_v",
                                                  "reduce_scatter",
                                                  "reduce_scatter_v",
                                                  "all_to_all",
                                                  "all_to_all_v",
                                                  "recv",
                                                  "send",
                                                  "split",
                                                  "subgroup",
                                                  "reducer",
                                                  "destruction of one",
                                                  "destruction of all"};
  return names[static_cast<std::size_t>(p)];
}

inline bool is_init(phase p) { return p < phase::idle; }

struct incident {
  fault what = fault::killed;
  phase during = phase::all_reduce;
  std::chrono::milliseconds moment{0};  ///< after the phase has begun
  int ranks = 2;
  int victim = 0;

  std::string text() const {
    return std::string(name_of(what)) + " of rank " + std::to_string(victim) + " of " +
           std::to_string(ranks) + ", " + name_of(during) + ", after " + std::to_string(moment.count()) +
           " ms";
  }
  /// There is a user's function to leave only where the group exists and others need this rank.
  bool makes_sense() const {
    const bool has_function = during != phase::leaving && during != phase::destruction && !is_init(during);
    return has_function || (what != fault::throws && what != fault::leaves) ||
           (what == fault::leaves && during == phase::leaving && moment == 0ms);
  }
  /// The stopped are alive: only a timeout tells that they are absent.
  std::chrono::milliseconds timeout() const { return what == fault::stopped ? 1s : 30s; }
  std::chrono::milliseconds init_timeout() const { return is_init(during) ? 2s : 30s; }
};

enum class seen : std::uint8_t { nothing, peer_lost, revoked, timeout, mismatch, init, other };

inline const char* name_of(seen s) {
  constexpr std::array names{"nothing",        "peer_lost",  "revoked_error", "timeout_error",
                             "mismatch_error", "init_error", "another error"};
  return names[static_cast<std::size_t>(s)];
}

using nanoseconds = std::int64_t;

inline nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// One survivor's. The texts are cut at their lengths.
struct observation {
  std::atomic<bool> complete{false};
  seen what = seen::nothing;
  int about = -1;  ///< the rank that the error names, if its type tells
  char operation[24] = {};
  char text[1900] = {};
  nanoseconds called = 0, saw = 0, ended = 0;
  nanoseconds used_afterwards = 0;  ///< CPU time in a sleep of `afterwards`
};
inline constexpr auto afterwards = 200ms;
inline constexpr int most_ranks = 8;

struct board {
  std::atomic<nanoseconds> fault_at{0};  ///< 0: it has not happened yet
  std::atomic<pid_t> victim{0};
  std::array<observation, most_ranks> observations;

  /// What the survivors will see begins now, unless it has begun.
  void happen() {
    nanoseconds not_yet = 0;
    fault_at.compare_exchange_strong(not_yet, now());
  }
};
static_assert(std::atomic<nanoseconds>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

class shared_board {
 public:
  shared_board() {
    void* const memory =
        ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap: " + std::to_string(errno));
    board_ = new (memory) board;
  }
  shared_board(const shared_board&) = delete;
  shared_board& operator=(const shared_board&) = delete;
  ~shared_board() { ::munmap(board_, sizeof(board)); }

  board& operator*() const noexcept { return *board_; }
  board* operator->() const noexcept { return board_; }

 private:
  board* board_ = nullptr;
};

}  // namespace fault_table
