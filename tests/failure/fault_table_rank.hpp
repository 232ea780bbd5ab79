// SPDX-License-Identifier: BSL-1.0
// What the ranks of an incident do: all of them the same again and again, until a fault takes one of them and
// an error tells the others.
#pragma once

#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "fault_table_incident.hpp"

namespace fault_table {

/// Nothing hangs: a rank that takes longer is ended, which is a failure of the test.
inline constexpr unsigned longest_life = 40;  // seconds

/// The end of the victim: at its moment a thread ends the process, whatever that is doing; only what a
/// program does of its own will (to return, to throw) waits until it comes to `pass`.
class doom {
 public:
  doom(const incident& plan, board& shared) : what_(plan.what), board_(shared) {
    board_.victim = ::getpid();
    std::thread([this, moment = plan.moment] {
      std::this_thread::sleep_for(moment);
      strike();
    }).detach();
    if (plan.moment == 0ms) wait();
  }
  doom(const doom&) = delete;
  doom& operator=(const doom&) = delete;

  /// True: the time to return has come.
  bool pass() {
    if (!due_.load()) return false;
    happen();
    if (what_ == fault::throws) throw std::runtime_error("an exception of the program's");
    return what_ == fault::leaves;
  }
  void happen() { board_.happen(); }
  /// Until the fault: for who has nothing else to do.
  void wait() {
    while (!due_.load()) std::this_thread::sleep_for(1ms);
  }

 private:
  void strike() {
    if (what_ == fault::leaves || what_ == fault::throws) {
      due_ = true;
      return;
    }
    if (what_ != fault::stopped_and_killed) happen();  // the killer knows better when
    if (what_ == fault::exits_0) ::_exit(0);
    if (what_ == fault::exits_1) ::_exit(1);
    if (what_ == fault::aborts) {
      ::signal(SIGABRT, SIG_DFL);
      std::abort();
    }
    ::kill(::getpid(), what_ == fault::killed ? SIGKILL : SIGSTOP);
    for (;;) ::pause();
  }

  fault what_;
  board& board_;
  std::atomic<bool> due_{false};
};

/// One turn of a phase. Everyone is root now and then; sizes are small and large in turn.
template <class C>
class turns {
 public:
  turns(C& comm, const incident& plan)
      : comm_(comm), plan_(plan), n_(static_cast<std::size_t>(comm.size())) {}

  void take() {
    const std::size_t count = number_ % 2 == 0 ? 8 : 20'000;
    const int root = static_cast<int>(number_++ % n_);
    const bool is_root = comm_.rank() == root;
    counts_.assign(n_, count);
    counts_[0] = count + 3;
    const std::size_t own = counts_[static_cast<std::size_t>(comm_.rank())],
                      all = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
    const auto use = [](std::vector<float>& memory, std::size_t size) {
      memory.resize(size);
      return std::span(memory);
    };
    switch (plan_.during) {
      case phase::barrier:
        return ddpp::barrier(comm_);
      case phase::broadcast:
        return ddpp::broadcast(comm_, use(in_, count), root);
      case phase::reduce:
        return ddpp::reduce(comm_, use(in_, count), ddpp::sum, root);
      case phase::gather:
        return ddpp::gather(comm_, use(in_, count), use(out_, is_root ? n_ * count : 0), root);
      case phase::gather_v:
        return ddpp::gather_v(comm_, use(in_, own), use(out_, is_root ? all : 0), counts_, root);
      case phase::scatter:
        return ddpp::scatter(comm_, use(in_, is_root ? n_ * count : 0), use(out_, count), root);
      case phase::scatter_v:
        return ddpp::scatter_v(comm_, use(in_, is_root ? all : 0), use(out_, own), counts_, root);
      case phase::all_gather:
        return ddpp::all_gather(comm_, use(in_, count), use(out_, n_ * count));
      case phase::all_gather_v:
        return ddpp::all_gather_v(comm_, use(in_, own), use(out_, all), counts_);
      case phase::reduce_scatter:
        return ddpp::reduce_scatter(comm_, use(in_, n_ * count), use(out_, count));
      case phase::reduce_scatter_v:
        return ddpp::reduce_scatter_v(comm_, use(in_, all), use(out_, own), counts_);
      case phase::all_to_all:
        return ddpp::all_to_all(comm_, use(in_, n_ * count), use(out_, n_ * count));
      case phase::all_to_all_v:
        return ddpp::all_to_all_v(comm_, use(in_, all), counts_, use(out_, n_ * own),
                                  std::vector<std::size_t>(n_, own));
      case phase::receive:
        return ddpp::recv(comm_, use(in_, count), plan_.victim);
      case phase::send:  // more than any transport keeps on the way
        return ddpp::send(comm_, use(in_, std::size_t{4} << 20), plan_.victim);
      case phase::split:
        (void)comm_.split(0);
        return;
      case phase::subgroup:
        everyone_.resize(n_);
        std::iota(everyone_.begin(), everyone_.end(), 0);
        (void)comm_.subgroup(everyone_);
        return;
      default:
        return ddpp::all_reduce(comm_, use(in_, count));
    }
  }

 private:
  C& comm_;
  const incident& plan_;
  std::size_t n_, number_ = 0;
  std::vector<float> in_, out_;
  std::vector<std::size_t> counts_;
  std::vector<int> everyone_;
};

/// A model of three buckets, and training steps that do nothing but synchronise it.
template <class C>
class training {
 public:
  explicit training(C& comm) : ddp_(comm, parameters(), {.bucket_cap_mb = 0.01}) {}

  /// `between` is called in the midst of a backward pass.
  template <class F>
  void step(F&& between) {
    ddp_.prepare();
    ddp_.mark_ready(2);
    ddp_.mark_ready(1);
    between();
    ddp_.mark_ready(0);
    ddp_.wait();
  }

 private:
  std::vector<ddpp::parameter> parameters() {
    std::vector<ddpp::parameter> list;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i].resize(5000);
      gradients_[i].resize(5000);
      list.emplace_back("weight " + std::to_string(i), values_[i], gradients_[i]);
    }
    return list;
  }

  std::array<std::vector<float>, 3> values_, gradients_;
  ddpp::distributed_data_parallel<C> ddp_;
};

/// Returns when the fault is to return.
template <class C>
void be_victim(C& comm, const incident& plan, board& shared) {
  if (plan.during == phase::reducer) {
    training<C> model(comm);
    doom fate(plan, shared);
    for (;;) {
      model.step([&] {
        if (plan.what == fault::throws) fate.pass();
      });
      if (plan.what == fault::leaves && fate.pass()) return;
    }
  }
  auto& fate = *new doom(plan, shared);  // its thread may outlive this function
  if (plan.during == phase::leaving || plan.during == phase::destruction) return fate.happen();
  turns<C> turn(comm, plan);
  const bool takes_part =
      plan.during != phase::idle && plan.during != phase::receive && plan.during != phase::send;
  if (!takes_part) fate.wait();
  while (!fate.pass()) turn.take();
}

/// Until an error ends it.
template <class C>
void be_survivor(C& comm, const incident& plan, const board& shared, observation& mine) {
  const auto call = [&](auto&& f) {
    mine.called = now();
    f();
  };
  if (plan.during == phase::destruction) return;
  if (plan.during == phase::reducer) {
    training<C> model(comm);
    for (;;) call([&] { model.step([] {}); });
  }
  if (plan.during == phase::idle) {
    while (shared.fault_at == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);
  }
  turns<C> turn(comm, plan);
  for (;;) call([&] { turn.take(); });
}

inline void write_down(observation& mine, seen what, int about, const char* operation, const char* text) {
  mine.saw = now();
  mine.what = what;
  mine.about = about;
  std::strncpy(mine.operation, operation, sizeof mine.operation - 1);
  std::strncpy(mine.text, text, sizeof mine.text - 1);
}

/// Runs f and writes down what it throws.
template <class F>
void observe(observation& mine, F&& f) {
  const auto note = [&](seen what, const ddpp::group_error& e) {
    write_down(mine, what, e.rank(), e.operation().c_str(), e.what());
  };
  try {
    f();
    mine.saw = now();
  } catch (const ddpp::peer_lost& e) {
    note(seen::peer_lost, e);
  } catch (const ddpp::revoked_error& e) {
    note(seen::revoked, e);
  } catch (const ddpp::mismatch_error& e) {
    note(seen::mismatch, e);
  } catch (const ddpp::timeout_error& e) {
    write_down(mine, seen::timeout, -1, "", e.what());
  } catch (const ddpp::init_error& e) {
    write_down(mine, seen::init, -1, "", e.what());
  } catch (const std::exception& e) {
    write_down(mine, seen::other, -1, "", e.what());
  }
}

inline nanoseconds cpu_time() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& t) {
    return nanoseconds{t.tv_sec} * 1'000'000'000 + nanoseconds{t.tv_usec} * 1000;
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

/// A rank's life. `join()` makes its communicator.
template <class Join>
void live(const incident& plan, board& shared, int rank, Join&& join) {
  ::alarm(longest_life);
  if (rank == plan.victim) {
    if (is_init(plan.during)) new doom(plan, shared);
    {
      auto comm = join();
      be_victim(comm, plan, shared);
    }
    if (plan.what != fault::leaves) ::pause();  // the communicator is gone, and the fault is still to come
    return;
  }
  observation& mine = shared.observations[static_cast<std::size_t>(rank)];
  using communicator = decltype(join());
  std::optional<communicator> comm;
  observe(mine, [&] {
    comm.emplace(join());
    be_survivor(*comm, plan, shared, mine);
  });
  if (plan.during != phase::destruction) {
    const nanoseconds before = cpu_time();
    std::this_thread::sleep_for(afterwards);
    mine.used_afterwards = cpu_time() - before;
  }
  comm.reset();
  mine.ended = now();
  mine.complete = true;
}

}  // namespace fault_table
