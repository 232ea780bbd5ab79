// SPDX-License-Identifier: BSL-1.0
// What the ranks do while one of them is killed or stopped: everything that goes through shared memory, with
// results that are checked, and going on without the one that is lost.
#pragma once

#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"

namespace kill_points {

using namespace std::chrono_literals;

/// In memory that all processes see.
struct report {
  std::atomic<bool> done{false}, joined{false};
  std::atomic<std::int64_t> heard_at{0};  ///< of the loss, on the steady clock, in nanoseconds
  std::int64_t members = 0;               ///< a bit for each that was there at the end
  std::int64_t idle_cpu = 0;              ///< nanoseconds used in `rest` after the loss
  std::array<char, 1000> error{};
};

inline constexpr auto rest = 50ms;

inline std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline std::int64_t used(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// All collectives and messages, each with buffers of `count` elements from each rank.
template <class C>
class exchange {
 public:
  exchange(C& comm, std::size_t count)
      : comm_(comm), n_(static_cast<std::size_t>(comm.size())), count_(count) {}

  void all() {
    reductions(values(comm_.rank(), n_ * count_));
    reductions(symmetric(n_ * count_));
    rooted();
    gathers();
    messages();
    ddpp::barrier(comm_);
  }

 private:
  using element = std::int64_t;
  using elements = std::vector<element>;

  static element value(int rank, std::size_t i) { return 1000 * (rank + 1) + static_cast<element>(i % 997); }
  static elements values(int rank, std::size_t count) {
    elements list(count);
    fill(list, rank);
    return list;
  }
  template <class Range>
  static void fill(Range& range, int rank) {
    for (std::size_t i = 0; i < range.size(); ++i) range[i] = value(rank, i);
  }
  ddpp::symmetric_buffer<element> symmetric(std::size_t count) {
    auto memory = ddpp::allocate_symmetric<element>(comm_, count);
    fill(memory, comm_.rank());
    return memory;
  }

  element sum(std::size_t i) const {
    const auto n = static_cast<element>(n_);
    return 1000 * n * (n + 1) / 2 + n * static_cast<element>(i % 997);
  }
  template <class Range, class Expected>
  static void expect_all(const Range& range, Expected expected, const char* what) {
    for (std::size_t i = 0; i < range.size(); ++i) {
      if (range[i] != expected(i)) support::expect(false, std::string(what) + " is right");
    }
  }

  /// In buffers of either kind, as long as n * count.
  template <class Buffer>
  void reductions(Buffer&& data) {
    const auto me = static_cast<std::size_t>(comm_.rank());
    ddpp::all_reduce(comm_, data);
    expect_all(
        data, [&](std::size_t i) { return sum(i); }, "all_reduce");
    fill(data, comm_.rank());
    elements piece(count_);
    ddpp::reduce_scatter(comm_, data, piece);
    expect_all(
        piece, [&](std::size_t i) { return sum(me * count_ + i); }, "reduce_scatter");
    ddpp::all_gather(comm_, piece, data);
    expect_all(
        data, [&](std::size_t i) { return sum(i); }, "all_gather");
    for (int root = 0; root < comm_.size(); ++root) {
      fill(data, comm_.rank());
      ddpp::broadcast(comm_, data, root);
      expect_all(
          data, [&](std::size_t i) { return value(root, i); }, "broadcast");
    }
  }

  void rooted() {
    const int root = comm_.size() - 1;
    const bool is_root = comm_.rank() == root;
    const elements mine = values(comm_.rank(), count_);
    elements reduced(is_root ? count_ : 0), whole(is_root ? n_ * count_ : 0), piece(count_);
    ddpp::reduce(comm_, mine, reduced, ddpp::sum, root);
    expect_all(
        reduced, [&](std::size_t i) { return sum(i); }, "reduce");
    ddpp::gather(comm_, mine, whole, root);
    expect_all(
        whole, [&](std::size_t i) { return value(static_cast<int>(i / count_), i % count_); }, "gather");
    ddpp::scatter(comm_, whole, piece, root);
    expect_all(
        piece, [&](std::size_t i) { return value(comm_.rank(), i); }, "scatter");
  }

  void gathers() {
    elements out(n_ * count_);
    const elements mine = values(comm_.rank(), n_ * count_);
    const std::size_t begin = static_cast<std::size_t>(comm_.rank()) * count_;
    ddpp::all_to_all(comm_, mine, out);
    expect_all(
        out, [&](std::size_t i) { return value(static_cast<int>(i / count_), begin + i % count_); },
        "all_to_all");
    auto around = mine;
    ddpp::all_reduce(comm_, around, ddpp::sum, ddpp::algorithms::ring{});
    expect_all(
        around, [&](std::size_t i) { return sum(i); }, "all_reduce around a ring");
  }

  /// Several at once, beside collectives.
  void messages() {
    const int next = (comm_.rank() + 1) % comm_.size(),
              before = (comm_.rank() + comm_.size() - 1) % comm_.size();
    elements in(count_), out = values(comm_.rank(), count_), first = out, second = out;
    auto received = ddpp::irecv(comm_, in, before, 1);
    auto reduced = ddpp::all_reduce_async(comm_, first);
    auto sent = ddpp::isend(comm_, out, next, 1);
    auto again = ddpp::all_reduce_async(comm_, second);
    received.wait();
    sent.wait();
    reduced.wait();
    again.wait();
    expect_all(
        in, [&](std::size_t i) { return value(before, i); }, "a message");
    expect_all(
        first, [&](std::size_t i) { return sum(i); }, "all_reduce_async");
    expect_all(
        second, [&](std::size_t i) { return sum(i); }, "the second all_reduce_async");
  }

  C& comm_;
  const std::size_t n_, count_;
};

/// Two steps of training, in which buckets are reduced while others become ready.
template <class C>
void train(C& comm) {
  std::array<std::vector<float>, 3> values, gradients;
  std::vector<ddpp::parameter> model;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].resize(5000);
    gradients[i].resize(5000);
    model.emplace_back("weight " + std::to_string(i), values[i], gradients[i]);
  }
  ddpp::distributed_data_parallel ddp(comm, std::move(model), {.bucket_cap_mb = 0.01});
  for (int step = 0; step < 2; ++step) {
    ddp.prepare();
    for (std::size_t i = values.size(); i-- > 0;) {
      std::fill(gradients[i].begin(), gradients[i].end(), static_cast<float>(2 * (comm.rank() + step)));
      ddp.mark_ready(i);
    }
    ddp.wait();
    const auto mean = static_cast<float>(comm.size() - 1 + 2 * step);
    for (const auto& each : gradients)
      support::expect(std::count(each.begin(), each.end(), mean) == std::ssize(each), "the average is right");
  }
}

/// What all ranks do.
template <class C>
void work(C& comm) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{30'000}}) exchange<C>(comm, count).all();
  train(comm);
  auto half = comm.split(comm.rank() % 2);
  exchange<C>(half, 40).all();
}

/// Who is there.
template <class C>
std::int64_t members_of(C& comm, int origin) {
  std::vector<std::int64_t> members(1, std::int64_t{1} << origin);
  ddpp::all_reduce(comm, members);
  return members[0];
}

/// By the lost rank's number here, or in its half.
inline bool is_about(const ddpp::peer_lost& error, int victim) {
  return error.rank() == victim || error.rank() == victim / 2;
}

inline void write_down(report& mine, const std::string& error) {
  mine.error.fill(0);
  error.copy(mine.error.data(), mine.error.size() - 1);
}

/// The rank's life. An exception that leaves it is a fault.
inline void live(report& mine, int origin, const ddpp::init_options& options, int victim) {
  std::optional<ddpp::communicator<ddpp::shm>> comm;
  try {
    comm.emplace(ddpp::init<ddpp::shm>(options));
  } catch (const ddpp::peer_lost& error) {
    write_down(mine, error.what());
  } catch (const ddpp::init_error& error) {
    write_down(mine, error.what());
  } catch (const ddpp::timeout_error& error) {
    write_down(mine, error.what());
  }
  if (!comm) {
    mine.heard_at = now();
    return;
  }
  mine.joined = true;
  bool worked = false, fresh = false;
  for (;;) {
    try {
      if (!worked) work(*comm);
      worked = true;
      if (fresh) exchange(*comm, 50).all();
      mine.members = members_of(*comm, origin);
      if (comm->agree(true)) break;
    } catch (const ddpp::peer_lost& error) {
      mine.heard_at = now();
      write_down(mine, error.what());
      support::expect(is_about(error, victim), std::string("not ") + error.what());
      const std::int64_t before = used(CLOCK_PROCESS_CPUTIME_ID);
      std::this_thread::sleep_for(rest);
      mine.idle_cpu = used(CLOCK_PROCESS_CPUTIME_ID) - before;
      worked = true;
    }
    *comm = comm->shrink();
    fresh = true;
  }
  comm.reset();
  mine.done = true;
}

}  // namespace kill_points
