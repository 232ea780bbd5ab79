// SPDX-License-Identifier: BSL-1.0
// How the ranks of a group find each other: rank 0 publishes its address, the others connect to it and say
// where they listen; once it has heard of all, it tells all.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_endpoint.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::detail {

class tcp_meeting {
 public:
  tcp_meeting(int rank, int size)
      : rank_(rank), size_(size), endpoints_(static_cast<std::size_t>(size)), missing_(size - 1) {}

  // On the constructing thread. The first two before the control thread runs.

  /// The socket on which this rank listens from now on.
  descriptor listen(const bootstrap& boot) {
    descriptor socket = listen_on(boot.host.empty() ? "127.0.0.1" : boot.host, 0);
    const address local = address::local_of(socket.get());
    own_ = {local.host(), local.port(), host_id()};
    if (variable("DDPP_SOCKET_IFNAME")) {
      source_ = local;
      source_.set_port(0);
    }
    return socket;
  }
  /// The connection to rank 0; none on rank 0 itself. Blocks until boot.deadline at most.
  descriptor meet_rank_0(const bootstrap& boot, const credentials& known) {
    if (rank_ == 0) {
      fill_random(group_);
      at(0) = own_;
      boot.store->set("tcp/0", hexadecimal(group_) + " " + own_.text());
      return {};
    }
    boot.store->set("tcp/" + std::to_string(rank_), "");
    if (!await_key(boot, "tcp/0")) throw_missing(missing_ranks(*boot.store));
    const std::string published = boot.store->get("tcp/0");
    const std::size_t space = published.find(' ');
    if (space == std::string::npos) throw init_error("rank 0 published an address that is none");
    group_ = group_id_from(std::string_view(published).substr(0, space));
    const tcp_endpoint rank_0 = tcp_endpoint::from(std::string_view(published).substr(space + 1));
    check_is_reachable(0, rank_0);
    try {
      return connect_and_prove(rank_0.host, rank_0.port, known, {purpose::control, group_, rank_, 0},
                               boot.deadline, when_refused::give_up, source_);
    } catch (const authentication_error&) {
      throw;
    } catch (const init_error& e) {
      throw init_error(whose() + "rank 0 died or gave up while the group came together: " + e.what());
    } catch (const timeout_error& e) {
      throw timeout_error(whose() + "rank 0 does not answer: " + e.what());
    }
  }
  /// Blocks until all are known, someone has given up or died, or boot.deadline; throws but for the first.
  /// Rank 0 knows who is missing: the others give it a moment longer to say so.
  void await_everyone(const bootstrap& boot) {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return together_ || problem_; };
    const deadline until = rank_ == 0 ? boot.deadline : boot.deadline + time_for_last_word;
    for (auto left = time_left(until); left.count() > 0; left = time_left(until)) {
      if (changed_.wait_for(lock, std::min(left, peer_check_interval), is_over)) break;
      lock.unlock();
      boot.check_peers();
      lock.lock();
    }
    const bool together = together_;
    const std::optional<failure> problem = problem_;
    std::string missing = missing_endpoints();
    lock.unlock();
    if (together) {  // a failure since then is for the first operation to report
      return forget_keys(boot, {"tcp/" + std::to_string(rank_)});
    }
    if (missing.empty()) missing = missing_ranks(*boot.store);
    if (!problem) throw_missing(missing);
    if (problem->kind == failure_kind::timeout) throw timeout_error(whose() + problem->text);
    throw init_error(whose() + problem->text);
  }

  // On the control thread.

  const group_id& group() const noexcept { return group_; }
  const tcp_endpoint& own_endpoint() const noexcept { return own_; }
  /// Where calls to other ranks come from, where that is chosen; else empty.
  const address& source() const noexcept { return source_; }
  /// Its port is 0 until everyone is known.
  const tcp_endpoint& endpoint(int rank) const { return endpoints_[static_cast<std::size_t>(rank)]; }

  /// Where a member listens. False: it is nonsense, or not for this rank to know.
  bool take_endpoint(int member, const std::string& text) {
    if (rank_ != 0 || missing_ == 0 || at(member).port != 0) return false;
    try {
      const tcp_endpoint there = tcp_endpoint::from(text);
      const std::lock_guard lock(mutex_);
      at(member) = there;
    } catch (const init_error&) {
      return false;
    }
    --missing_;
    return true;
  }
  /// For all, once all are known to rank 0.
  std::string list() const {
    std::string lines;
    for (const tcp_endpoint& each : endpoints_) lines += each.text() + "\n";
    return lines;
  }
  bool is_complete() const noexcept { return missing_ == 0; }

  void take_list(const std::string& lines) {
    std::string problem;
    try {
      read_list(lines);
    } catch (const init_error& e) {
      problem = e.what();
    }
    if (!problem.empty()) return fail({failure_kind::revoked, rank_, problem});
    const std::lock_guard lock(mutex_);
    together_ = true;
    changed_.notify_all();
  }
  /// Who gave up, or died, while the group came together. Means nothing later.
  void fail(const failure& problem) {
    const std::lock_guard lock(mutex_);
    if (problem_) return;
    problem_ = problem;
    changed_.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds time_for_last_word{500};

  std::string whose() const { return "rank " + std::to_string(rank_) + ": "; }
  tcp_endpoint& at(int rank) { return endpoints_[static_cast<std::size_t>(rank)]; }

  /// Those of whom rank 0 has not heard. Under the mutex.
  std::string missing_endpoints() const {
    std::vector<int> missing;
    for (int r = 0; rank_ == 0 && r < size_; ++r) {
      if (endpoint(r).port == 0) missing.push_back(r);
    }
    return list_of_ranks(missing);
  }

  /// Those who have not even begun to come, as far as the store can tell.
  std::string missing_ranks(store& here) const {
    std::string missing;
    try {
      for (int r = 0; r < size_; ++r) {
        if (r == rank_ || here.check({"tcp/" + std::to_string(r)})) continue;
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
      }
    } catch (const error&) {  // the store has gone
    }
    return missing;
  }

  [[noreturn]] void throw_missing(const std::string& missing) const {
    throw timeout_error(whose() + "the group of " + std::to_string(size_) +
                        " ranks did not come together in time: " +
                        (missing.empty() ? "rank 0 does not say who is missing" : missing + " did not come"));
  }

  void check_is_reachable(int rank, const tcp_endpoint& offered) const {
    std::string unused;
    const auto addresses = resolve(offered.host, offered.port, unused);
    if (offered.system == own_.system || addresses.empty() || !addresses.front().is_loopback()) return;
    throw init_error(whose() + "rank " + std::to_string(rank) + " is on another host, but offers " +
                     offered.host + ", which only its own host can reach: see DDPP_SOCKET_IFNAME");
  }

  void read_list(std::string_view rest) {
    for (int r = 0; r < size_; ++r) {
      const std::size_t end = rest.find('\n');
      if (end == std::string_view::npos) throw init_error("the list of ranks is incomplete");
      const tcp_endpoint each = tcp_endpoint::from(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      check_is_reachable(r, each);
      const std::lock_guard lock(mutex_);
      at(r) = each;
    }
  }

  const int rank_, size_;
  group_id group_ = {};
  tcp_endpoint own_ = {};
  address source_ = {};
  std::vector<tcp_endpoint> endpoints_;  // by rank; written under the mutex
  int missing_;                          // endpoints that rank 0 does not know yet

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool together_ = false;
  std::optional<failure> problem_;
};

}  // namespace ddpp::detail
