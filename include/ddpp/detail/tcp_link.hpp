// SPDX-License-Identifier: BSL-1.0
// The message engine's link over sockets: one connection per pair of ranks that have something to say to each
// other, made when first needed. All reading and writing is done by whoever polls; nothing blocks, so that a
// slow peer holds up nobody else.
//
// What is read goes straight to where it belongs when it is much, and through an aligned buffer, together
// with what follows it, when it is little. A message that nobody has asked for stops its connection: what was
// read of it is kept, the rest stays in the socket, and the sender feels it.
#pragma once

#include <ddpp/detail/address.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/detail/operation.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/staging.hpp>
#include <ddpp/detail/tcp_control.hpp>
#include <ddpp/detail/tcp_frame.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <sys/uio.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_link final : public message_link {
 public:
  tcp_link(int size, tcp_control& control)
      : control_(control), connections_(static_cast<std::size_t>(size)), buffer_(buffer_bytes) {
    entries_.reserve(connections_.size() + 1);
  }

  /// Before anything else: whose link this is.
  void serve(const message_engine& engine) noexcept { engine_ = &engine; }

  // For the control thread. It never waits for the engine's mutex here: who holds that one may be waiting for
  // the control thread to bring a ruling.

  /// A connection to `peer` has been made and both ends have proven themselves.
  void connected(int peer, descriptor socket) {
    if (stays_on_this_host(socket.get())) prefer_local_speed(socket.get());
    {
      const std::lock_guard lock(news_mutex_);
      arrivals_.emplace_back(peer, std::move(socket));
    }
    tell_news();
  }
  /// Someone has left.
  void presence_changed() { tell_news(); }
  rank_state own_state() const {
    const std::lock_guard lock(news_mutex_);
    return own_state_;
  }

  /// Tells all peers, as far as their sockets take it at once, that nothing more will come. What they sent
  /// and nobody wanted is thrown away: a socket closed with something unread would take back what was sent.
  /// Under the mutex.
  void say_goodbye(const message_engine& engine, const fingerprint& last) {
    take_news();
    frame_header header;
    header.kind = frame_kind::goodbye;
    header.print = last;
    for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
      const auto& each = connections_[peer];
      if (!each || !each->socket) continue;
      const int fd = each->socket.get();
      if (!engine.senders().contains(static_cast<int>(peer))) {
        while (::send(fd, &header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) {
        }
      }
      ::shutdown(fd, SHUT_WR);
      for (int i = 0; i < most_discarded; ++i) {
        const ssize_t got = ::recv(fd, buffer_.data(), buffer_bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EINTR)) break;
      }
    }
  }

  void poll(message_engine& engine) override {
    take_news();
    engine.senders().for_each([&](int peer) {
      if (connection* const each = at(peer)) write(engine, peer, *each);
    });
    engine.receivers().for_each([&](int peer) {
      if (connection* const each = at(peer)) read(engine, peer, *each);
    });
  }

  void push(message_engine& engine, int peer) override {
    connection* const to = at(peer);
    if (to == nullptr) return control_.want_connection(peer);
    write(engine, peer, *to);
    if (engine.senders().contains(peer)) ring();
  }

  void pull(message_engine& engine, int peer) override {
    connection* const from = at(peer);
    if (from == nullptr) return control_.want_connection(peer);
    read(engine, peer, *from);
    if (engine.receivers().contains(peer)) ring();
  }

  void prepare_send(int) override {}

  std::uint32_t announce_park(const message_engine& engine) override {
    wake_.clear();
    take_news();
    entries_.assign({{wake_.get(), POLLIN, 0}});
    const auto add = [&](int peer, short events) {
      const connection* const each = at(peer);
      if (each == nullptr || !each->socket) return;
      if (events == POLLOUT && each->cannot_send) return;
      if (entries_.back().fd == each->socket.get())
        entries_.back().events |= events;
      else
        entries_.push_back({each->socket.get(), events, 0});
    };
    for (int peer = 0; peer < static_cast<int>(connections_.size()); ++peer) {
      if (engine.senders().contains(peer)) add(peer, POLLOUT);
      if (engine.receivers().contains(peer)) add(peer, POLLIN);
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= tell_hub_at_) {
      control_.stalled();
      give_up_silent_peers();
      next_patience_ = std::min(next_patience_ * 2, longest_patience);
      tell_hub_at_ = deadline::max();
    }
    if (tell_hub_at_ == deadline::max()) tell_hub_at_ = now + next_patience_;
    park_until_ = tell_hub_at_;
    parked_.store(true);
    return 0;
  }
  void cancel_park() override { parked_.store(false); }

  void park(message_engine&, std::uint32_t, deadline until) override {
    ::poll(entries_.data(), entries_.size(), poll_timeout(std::min(until, park_until_)));
    parked_.store(false);
  }

  void ring() noexcept override {
    if (parked_.load()) wake_.set();
  }

  failure spread(const failure& cause) override {
    const bool is_alone = connections_.size() == 1;  // with nobody to rule
    return is_alone ? cause : control_.spread(cause);
  }
  void investigate(message_engine&, const suspicion& found) override {
    control_.investigate(found.peer, found.mine, found.theirs);
  }

  bool has_left(int peer) override {
    const connection* const each = at(peer);
    if (each != nullptr && each->said_goodbye) return true;
    const bool all_is_read = each == nullptr || !each->socket || !engine_->receivers().contains(peer);
    return all_is_read && control_.has_left(peer);
  }
  bool is_dry(int peer) override {
    const connection* const each = at(peer);
    return each == nullptr || each->is_dry();
  }
  std::optional<fingerprint> last_known(int peer) override {
    const connection* const each = at(peer);
    return each != nullptr && each->said_goodbye ? each->in.print : control_.last_words(peer);
  }
  std::optional<fingerprint> peek(int peer) override {
    const connection* const from = at(peer);
    if (from == nullptr || !from->socket) return std::nullopt;
    frame_header next = from->in;
    if (!from->stuck) {
      if (from->in_have != 0) return std::nullopt;
      const ssize_t got = ::recv(from->socket.get(), &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT);
      if (got != static_cast<ssize_t>(sizeof(next))) return std::nullopt;
    }
    const bool is_of_collective = next.kind == frame_kind::message && next.tag < 0;
    return is_of_collective ? std::optional(next.print) : std::nullopt;
  }
  void take_back(int, int) noexcept override {}

  void publish(const fingerprint& print, bool inside) noexcept override {
    note_progress();
    const std::lock_guard lock(news_mutex_);
    own_state_ = {rank_state::presence::here, inside, print};
  }

 private:
  struct connection {
    descriptor socket = {};
    frame_header out = {};
    std::size_t out_left = 0;  // of the header of the send that has begun
    bool cannot_send = false;  // the peer takes nothing more
    frame_header in = {};
    std::size_t in_have = 0;           // of the header that is coming
    bool stuck = false;                // nobody has asked for the message of that header
    std::vector<std::byte> kept = {};  // what was read beyond it
    bool said_goodbye = false;

    bool is_dry() const noexcept { return (said_goodbye || !socket) && in_have < sizeof(in) && kept.empty(); }
  };

  /// Sockets take and give in pieces of this size at most, so that sending and receiving alternate.
  static constexpr std::size_t most_at_once = std::size_t{1} << 20;
  static constexpr std::size_t buffer_bytes = std::size_t{64} << 10;
  /// From so many missing bytes on a message is read to where it belongs.
  static constexpr std::size_t direct_from = std::size_t{16} << 10;
  static constexpr int most_reads = 16;
  static constexpr int most_discarded = 256;
  static constexpr std::chrono::milliseconds first_patience{300}, longest_patience{10'000};

  // Who parks stores parked_ before it looks for news, who brings some stores has_news_ before it looks at
  // parked_, all sequentially consistent: one of the two sees the other.
  void tell_news() {
    has_news_.store(true);
    ring();
  }
  void take_news() {
    if (!has_news_.load()) return;
    has_news_.store(false);
    {
      const std::lock_guard lock(news_mutex_);
      for (auto& [peer, socket] : arrivals_) {
        auto& place = connections_[static_cast<std::size_t>(peer)];
        place = std::make_unique<connection>();
        place->socket = std::move(socket);
      }
      arrivals_.clear();
    }
    ring();  // who is parked, or about to, does so for less than there is now
  }

  connection* at(int peer) const noexcept { return connections_[static_cast<std::size_t>(peer)].get(); }

  void give_up_silent_peers() {
    for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
      connection* const each = connections_[peer].get();
      if (each == nullptr || !each->socket || each->said_goodbye || !is_silent(each->socket.get())) continue;
      ended(static_cast<int>(peer), *each, end_without_goodbye(ETIMEDOUT));
    }
  }

  void note_progress() noexcept {
    next_patience_ = first_patience;
    tell_hub_at_ = deadline::max();
  }

  void write(message_engine& engine, int peer, connection& to) {
    if (to.cannot_send || !to.socket) return;
    while (operation* const op = engine.next_send(peer)) {
      if (!op->begun) {
        to.out.tag = op->tag;
        to.out.bytes = op->bytes;
        to.out.print = op->print;
        to.out_left = sizeof(to.out);
      }
      const std::size_t payload = std::min(op->bytes - op->moved, most_at_once);
      iovec parts[2] = {{reinterpret_cast<std::byte*>(&to.out) + sizeof(to.out) - to.out_left, to.out_left},
                        {const_cast<std::byte*>(op->from) + op->moved, payload}};
      msghdr message{};
      message.msg_iov = parts + (to.out_left == 0 ? 1 : 0);
      message.msg_iovlen = (to.out_left == 0 ? 0u : 1u) + (payload == 0 ? 0u : 1u);
      const ssize_t sent = ::sendmsg(to.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (sent < 0) {  // what it sent before may still be read
        to.cannot_send = true;
        if (!to.said_goodbye) control_.suspect(peer, end_without_goodbye(errno));
        return;
      }
      const std::size_t of_header = std::min(static_cast<std::size_t>(sent), to.out_left);
      const bool all = static_cast<std::size_t>(sent) == to.out_left + payload;
      to.out_left -= of_header;
      engine.begin_send(*op);
      if (to.out_left == 0) engine.sent(*op, static_cast<std::size_t>(sent) - of_header);
      if (!all) return;
    }
  }

  void read(message_engine& engine, int peer, connection& from) {
    for (int i = 0; i < most_reads && engine.receivers().contains(peer) && !engine.failed(); ++i) {
      if (!unstick(engine, peer, from) || !from.socket || from.said_goodbye) return;
      const std::size_t missing = engine.missing_bytes(peer);
      std::span<std::byte> straight;
      if (missing >= direct_from) straight = engine.destination(peer);
      straight = straight.first(std::min(straight.size(), most_at_once));
      // Little is read together with what follows it; of much, only the next header, for its bytes to go
      // straight to where they belong too.
      std::size_t ahead = buffer_bytes;
      if (!straight.empty())
        ahead = straight.size() == missing ? sizeof(from.in) : 0;
      else if (missing == 0 && from.in.bytes >= direct_from)
        ahead = sizeof(from.in) - from.in_have;
      iovec parts[2] = {{straight.data(), straight.size()}, {buffer_.data(), ahead}};
      msghdr message{};
      message.msg_iov = parts + (straight.empty() ? 1 : 0);
      message.msg_iovlen = straight.empty() ? 1 : 2;
      const ssize_t got = ::recvmsg(from.socket.get(), &message, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return ended(peer, from, end_without_goodbye(got < 0 ? errno : 0));
      note_progress();
      const auto bytes = static_cast<std::size_t>(got);
      const std::size_t placed = std::min(bytes, straight.size());
      if (placed > 0) engine.delivered(peer, placed);
      take(engine, peer, from, {buffer_.data(), bytes - placed});
      if (bytes < straight.size() + ahead) return;
    }
  }

  void ended(int peer, connection& from, const char* how) {
    from.socket.reset();
    from.cannot_send = true;
    control_.suspect(peer, how);
  }

  /// Goes on with the message that nobody had asked for, and with what was read beyond it. False: still
  /// nobody.
  bool unstick(message_engine& engine, int peer, connection& from) {
    if (!from.stuck) return true;
    from.stuck = false;
    from.kept.swap(read_before_);
    from.kept.clear();
    if (begin(engine, peer, from)) {
      take(engine, peer, from, read_before_);
    } else {
      from.kept.swap(read_before_);
    }
    return !from.stuck;
  }

  /// Hands to the engine what has been read.
  void take(message_engine& engine, int peer, connection& from, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (engine.mid_message(peer)) {
        const std::size_t part = std::min(bytes.size(), engine.missing_bytes(peer));
        engine.deliver(peer, bytes.first(part));
        bytes = bytes.subspan(part);
        continue;
      }
      const std::size_t part = std::min(bytes.size(), sizeof(from.in) - from.in_have);
      std::memcpy(reinterpret_cast<std::byte*>(&from.in) + from.in_have, bytes.data(), part);
      from.in_have += part;
      bytes = bytes.subspan(part);
      if (from.in_have == sizeof(from.in) && !begin(engine, peer, from)) {
        from.kept.assign(bytes.begin(), bytes.end());
        return;
      }
    }
  }

  /// A header is complete. False: nothing after it can be taken now.
  bool begin(message_engine& engine, int peer, connection& from) {
    if (!plausible(from.in)) {
      from.in_have = 0;
      ended(peer, from, "it talks nonsense");
      return false;
    }
    if (from.in.kind == frame_kind::goodbye) {
      from.in_have = 0;
      from.said_goodbye = true;
      from.cannot_send = true;
      return false;
    }
    from.stuck = !engine.begin_message(peer, {from.in.tag, from.in.bytes, from.in.print});
    if (!from.stuck) from.in_have = 0;
    return !from.stuck;
  }

  const message_engine* engine_ = nullptr;
  tcp_control& control_;
  std::vector<std::unique_ptr<connection>> connections_;  // by peer
  staging buffer_;
  std::vector<std::byte> read_before_;  // what was kept of a connection, while it is taken
  std::vector<pollfd> entries_;
  std::atomic<bool> parked_{false}, has_news_{false};
  mutable std::mutex news_mutex_;  // guards the next two; the last one to be taken
  std::vector<std::pair<int, descriptor>> arrivals_;
  rank_state own_state_ = {rank_state::presence::here};
  wake_event wake_;
  deadline tell_hub_at_ = deadline::max();  // that we wait for long
  deadline park_until_ = {};
  std::chrono::milliseconds next_patience_ = first_patience;
};

}  // namespace ddpp::detail
