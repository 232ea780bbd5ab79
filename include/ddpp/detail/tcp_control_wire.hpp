// SPDX-License-Identifier: BSL-1.0
// What ranks say to each other besides data, and a connection that carries it without blocking.
#pragma once

#include <ddpp/detail/socket.hpp>
#include <ddpp/fingerprint.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddpp::detail {

namespace control_wire {

enum class kind : std::uint8_t {
  endpoint = 1,  ///< to the hub: where `rank` listens (body)
  endpoints,     ///< to all: where everyone listens (body: a line each)
  left,          ///< `rank` has left in good order. Body: the fingerprint of its last collective, if any
  lost,          ///< `rank` has ended without a goodbye, body: how. To itself: the others go on without it
  leads,         ///< `rank`, who says so, is the hub
  deposed,       ///< `rank` is no hub any more, as it did not answer
  failed,        ///< to the hub: a proposal; to all: its ruling. `number`: the failure_kind, body: the text
  ask,           ///< `rank` wants to know where everyone stands, for its survey `number`
  state,         ///< where `rank` stands (body: standing), for the survey `number` of standing.asker
  stalled,       ///< to the hub: `rank` has been waiting for long
  vote,          ///< to the hub: `rank` votes on agreement `number` (body: agreement_wire)
  proposal,      ///< what `rank` proposed as the hub for agreement `number` (body: the verdict)
  stored,        ///< to the hub: `rank` has stored its proposal for agreement `number`
  decided        ///< the verdict of agreement `number` (body)
};

inline constexpr std::uint32_t magic = 0x4C525443;  // "CTRL"
inline constexpr std::size_t longest_body = std::size_t{1} << 20;

struct header {
  std::uint32_t magic = control_wire::magic;
  control_wire::kind kind = {};
  std::uint8_t reserved[3] = {};
  std::int32_t rank = -1;
  std::uint32_t bytes = 0;
  std::uint64_t number = 0;
};

struct standing {
  std::int32_t asker = -1;
  std::uint8_t inside = 0;
  std::uint8_t reserved[3] = {};
  fingerprint last = {};
};
static_assert(sizeof(header) == 24 && sizeof(standing) == 48);

struct message {
  control_wire::kind kind = {};
  int rank = -1;
  std::uint64_t number = 0;
  std::string body = {};
};

inline std::string encode(const message& m) {
  header head;
  head.kind = m.kind;
  head.rank = m.rank;
  head.bytes = static_cast<std::uint32_t>(m.body.size());
  head.number = m.number;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  return bytes += m.body;
}

enum class parsed : std::uint8_t { message, incomplete, nonsense };

/// Takes the first message off `bytes`.
inline parsed parse(std::string& bytes, message& result) {
  header head;
  if (bytes.size() < sizeof(head)) return parsed::incomplete;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != magic || head.kind < kind::endpoint || head.kind > kind::decided ||
      head.bytes > longest_body) {
    return parsed::nonsense;
  }
  if (bytes.size() - sizeof(head) < head.bytes) return parsed::incomplete;
  result = {head.kind, head.rank, head.number, bytes.substr(sizeof(head), head.bytes)};
  bytes.erase(0, sizeof(head) + head.bytes);
  return parsed::message;
}

}  // namespace control_wire

/// A control connection in a poll loop.
class control_channel {
 public:
  explicit control_channel(descriptor socket) : socket_(std::move(socket)) {
    expect_prompt_reader(socket_.get());
  }

  /// Queues the message and sends what the socket takes.
  void send(const std::string& encoded) {
    if (out_.size() < most_queued) out_ += encoded;
    flush();
  }

  void flush() {
    std::size_t sent = 0;
    while (sent < out_.size()) {
      const ssize_t now =
          ::send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (now < 0)
        sent = out_.size();  // the end shows when receiving
      else
        sent += static_cast<std::size_t>(now);
    }
    out_.erase(0, sent);
  }

  /// Calls `take(message)` for each that has come; false is its answer to nonsense. False: the connection has
  /// ended, carries nonsense, or its other end has not read for very long.
  template <class Take>
  bool receive(const Take& take) {
    bool open = out_.size() < most_queued;
    for (;;) {
      char buffer[16384];
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0) open = false;
      if (got <= 0) break;
      in_.append(buffer, static_cast<std::size_t>(got));
      if (in_.size() > 2 * control_wire::longest_body) break;
    }
    control_wire::message message;
    for (;;) {
      switch (parse(in_, message)) {
        case control_wire::parsed::nonsense:
          return false;
        case control_wire::parsed::incomplete:
          return open;
        case control_wire::parsed::message:
          if (!take(message)) return false;
      }
    }
  }

  /// Whether there was something to do when last polled.
  bool is_ready() const noexcept { return ready_ || out_.size() >= most_queued; }
  void note(bool is_ready) noexcept { ready_ = is_ready; }
  pollfd entry() const noexcept {
    return {socket_.get(), static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  }

 private:
  static constexpr std::size_t most_queued = std::size_t{8} << 20;

  descriptor socket_;
  bool ready_ = true;
  std::string in_, out_;
};

}  // namespace ddpp::detail
