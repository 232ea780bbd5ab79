// SPDX-License-Identifier: BSL-1.0
// A listening socket in a poll loop, with those who have connected and not proven themselves yet. Their
// number and their time are bounded: whoever connects and says nothing costs one descriptor for a while, and
// stalls nobody. Nor does it cost much processor time: an epoll set tells which of them have said something,
// and after very many refusals within a moment the next ones wait in the kernel.
#pragma once

#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_listener {
 public:
  static constexpr std::size_t most_strangers = 256;
  /// A stranger has this time to prove itself, and less when others queue behind it.
  static constexpr std::chrono::milliseconds longest_stay{10'000}, shortest_stay{100};
  static constexpr int accepted_at_once = 64;
  /// A refusal costs about 50 us: at most a fifth of a core's time, however many come.
  static constexpr int most_refusals = 400;
  static constexpr std::chrono::milliseconds refusal_period{100};

  /// Throws authentication_error when proofs are asked for and there is no libcrypto.
  tcp_listener(descriptor socket, const credentials& known)
      : socket_(std::move(socket)),
        known_(known),
        epoll_(descriptor::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })) {
    if (!epoll_ || !wait_for(EPOLL_CTL_ADD, socket_.get(), EPOLLIN, listening)) {
      throw_out_of_descriptors("could not wait for connections", errno);
    }
    if (known_.proves()) libcrypto::instance();
  }

  /// Goes on with the handshakes of those who have said something, accepts others, and calls
  /// `welcome(descriptor, introduction)` for each who has proven itself and whom `expected(introduction)` (an
  /// admission) wants. Never blocks.
  template <class Expected, class Welcome>
  void serve(const Expected& expected, const Welcome& welcome) {
    const auto now = std::chrono::steady_clock::now();
    std::array<epoll_event, 64> events;
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < ready; ++i) {
      const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;  // the event is not aligned
      const auto one = strangers_.find(number);
      if (one != strangers_.end()) advance(one, expected, welcome);
    }
    if (now >= accept_again_) accept_from_now_on(true);
    for (int i = 0; i < accepted_at_once && is_accepting_ && accept_one(now); ++i) {
      advance(std::prev(strangers_.end()), expected, welcome);
    }
    while (!strangers_.empty() && now - strangers_.begin()->second.since >= longest_stay) drop_oldest();
  }

  /// Appends what to poll for.
  void add_to(std::vector<pollfd>& entries) const { entries.push_back({epoll_.get(), POLLIN, 0}); }

  /// When `serve` is to be called though nothing has happened: for a stranger's time, or to accept again.
  deadline next_due() const {
    deadline due = deadline::max();
    if (!strangers_.empty()) due = strangers_.begin()->second.since + longest_stay;
    if (!is_accepting_) due = std::min(due, accept_again_);
    return due;
  }

  std::size_t strangers() const noexcept { return strangers_.size(); }
  int get() const noexcept { return socket_.get(); }

 private:
  struct stranger {
    descriptor socket;
    server_handshake handshake;
    std::chrono::steady_clock::time_point since;
    short waits_for = 0;  // what the epoll set was told
  };
  using strangers_by_arrival = std::map<std::uint64_t, stranger>;

  /// What an event's number is for the listening socket; strangers are numbered from 1.
  static constexpr std::uint64_t listening = 0;

  bool wait_for(int how, int fd, std::uint32_t events, std::uint64_t number) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return ::epoll_ctl(epoll_.get(), how, fd, &event) == 0;
  }

  template <class Expected, class Welcome>
  void advance(strangers_by_arrival::iterator at, const Expected& expected, const Welcome& welcome) {
    stranger& one = at->second;
    const auto state = one.handshake.advance(one.socket.get(), known_, expected);
    if (state == server_handshake::state::in_progress && keep_waiting_for(at->first, one)) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, one.socket.get(), nullptr);
    const introduction who = one.handshake.peer();
    descriptor socket = std::move(strangers_.extract(at).mapped().socket);
    if (state == server_handshake::state::accepted)
      welcome(std::move(socket), who);
    else
      ++refusals_;
  }

  bool keep_waiting_for(std::uint64_t number, stranger& one) {
    const short events = one.handshake.events();
    const int how = one.waits_for == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (std::exchange(one.waits_for, events) == events) return true;
    return wait_for(how, one.socket.get(), events == POLLIN ? EPOLLIN : EPOLLOUT, number);
  }

  void accept_from_now_on(bool wanted) {
    if (std::exchange(is_accepting_, wanted) == wanted) return;
    wait_for(EPOLL_CTL_MOD, socket_.get(), wanted ? EPOLLIN : 0u, listening);
  }
  void pause_until(std::chrono::steady_clock::time_point when) {
    accept_again_ = when;
    accept_from_now_on(false);
  }

  /// False: there is nobody, or nobody can be served now.
  bool accept_one(std::chrono::steady_clock::time_point now) {
    if (now >= refusals_count_until_) {
      refusals_ = 0;
      refusals_count_until_ = now + refusal_period;
    }
    if (refusals_ >= most_refusals) return pause_until(refusals_count_until_), false;
    if (strangers_.size() >= room()) {
      const auto oldest_may_stay = strangers_.begin()->second.since + shortest_stay;
      if (now < oldest_may_stay) return pause_until(oldest_may_stay), false;
      drop_oldest();
    }
    descriptor socket = accept_on(socket_.get());
    if (socket) {
      strangers_.emplace_hint(strangers_.end(), ++arrivals_,
                              stranger{std::move(socket), server_handshake(known_), now});
      return true;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The oldest stranger's descriptor is the next one's; without strangers, wait for better times.
      if (strangers_.empty()) return pause_until(now + shortest_stay), false;
      drop_oldest();
    }
    return false;
  }

  /// Strangers leave the process most of its descriptors.
  static std::size_t room() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most_strangers;
    return std::clamp<std::size_t>(static_cast<std::size_t>(limit.rlim_cur / 4), 4, most_strangers);
  }

  void drop_oldest() {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, strangers_.begin()->second.socket.get(), nullptr);
    strangers_.erase(strangers_.begin());
  }

  descriptor socket_;
  credentials known_;
  descriptor epoll_;
  strangers_by_arrival strangers_;
  std::uint64_t arrivals_ = 0;
  int refusals_ = 0;
  bool is_accepting_ = true;
  std::chrono::steady_clock::time_point accept_again_{}, refusals_count_until_{};
};

}  // namespace ddpp::detail
