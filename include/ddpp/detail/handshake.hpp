// SPDX-License-Identifier: BSL-1.0
// What comes before everything else on a connection: both ends prove that they know the job's secret. Three
// messages of fixed size:
//
//   server -> client   challenge: version, mode, the server's nonce
//   client -> server   introduction: purpose, group, both ranks, the client's nonce, the client's proof
//   server -> client   verdict: status, the server's proof
//
// A proof is HMAC-SHA256(secret, role || challenge || introduction without its proof). It covers both nonces
// (no replay), the role (no reflection), purpose, group and ranks (no use elsewhere), version and mode (no
// downgrade). The client proves first: a stranger who connects learns nothing but a nonce. Without a secret
// (mode open) proofs are zero and only this host is talked to, unless the credentials say otherwise by name.
// Until the verdict a connection costs the server one server_handshake and no allocation.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/hmac.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace ddpp::detail {

static_assert(std::endian::native == std::endian::little,
              "ddpp's wire format is that of little-endian machines");

/// What one end knows. `open`: neither prove nor ask for a proof, whoever it is (security::none).
struct credentials {
  ddpp::secret secret = {};
  bool open = false;
  bool proves() const noexcept { return !open && !secret.empty(); }
};

enum class purpose : std::uint8_t { store = 1, control = 2, data = 3 };

/// Tells the groups of a job apart: random, published through their store. All zero for the store itself.
using group_id = std::array<std::byte, 16>;

/// Who connects to whom, and what for.
struct introduction {
  purpose what = purpose::store;
  group_id group = {};
  std::int32_t from = -1;
  std::int32_t to = -1;
};

/// What a server thinks of a peer that has proven itself. `duplicate`: there is a connection to it already,
/// or one is being made from here.
enum class admission : std::uint8_t { welcome, not_expected, duplicate };

namespace handshake_wire {

inline constexpr std::uint32_t magic = 0x50504444;  // "DDPP"
inline constexpr std::uint16_t version = 1;
enum class mode : std::uint8_t { open = 0, proven = 1 };
enum class status : std::uint8_t { accepted = 1, wrong_proof, wrong_mode, not_expected, duplicate };
using nonce = std::array<std::byte, 32>;

struct challenge {
  std::uint32_t magic = handshake_wire::magic;
  std::uint16_t version = handshake_wire::version;
  handshake_wire::mode mode = mode::open;
  std::uint8_t reserved = 0;
  handshake_wire::nonce nonce = {};
};

struct introduction {
  std::uint32_t magic = handshake_wire::magic;
  std::uint16_t version = handshake_wire::version;
  handshake_wire::mode mode = mode::open;
  detail::purpose purpose = {};
  std::int32_t from = -1;
  std::int32_t to = -1;
  group_id group = {};
  handshake_wire::nonce nonce = {};
};

struct proven_introduction {
  introduction what;
  hmac_digest proof = {};
};

struct verdict {
  std::uint32_t magic = handshake_wire::magic;
  std::uint16_t version = handshake_wire::version;
  handshake_wire::status status = {};
  std::uint8_t reserved = 0;
  hmac_digest proof = {};
};

/// What a proof covers.
struct transcript {
  std::array<char, 16> role = {};
  handshake_wire::challenge challenge;
  handshake_wire::introduction introduction;
};
inline constexpr std::array<char, 16> role_client = {"ddpp client"};
inline constexpr std::array<char, 16> role_server = {"ddpp server"};

static_assert(sizeof(challenge) == 40 && sizeof(introduction) == 64 && sizeof(proven_introduction) == 96 &&
              sizeof(verdict) == 40 && sizeof(transcript) == 120);  // no padding anywhere

inline hmac_digest prove(const secret& key, const std::array<char, 16>& role, const challenge& asked,
                         const introduction& said) {
  const transcript all{role, asked, said};
  return hmac_sha256(key, std::as_bytes(std::span(&all, 1)));
}

template <class T>
std::span<std::byte> bytes_of(T& message) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_writable_bytes(std::span(&message, 1));
}

}  // namespace handshake_wire

/// One message of fixed size on its way through a socket that does not block.
class stepwise_transfer {
 public:
  enum class progress : std::uint8_t { under_way, complete, broken };

  void restart() noexcept { done_ = 0; }
  std::size_t done() const noexcept { return done_; }

  progress send(int fd, std::span<const std::byte> message) {
    while (done_ < message.size()) {
      const ssize_t sent =
          ::send(fd, message.data() + done_, message.size() - done_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? progress::under_way : progress::broken;
      done_ += static_cast<std::size_t>(sent);
    }
    return progress::complete;
  }

  /// `plausible()` is asked after each part.
  template <class Plausible>
  progress receive(int fd, std::span<std::byte> message, const Plausible& plausible) {
    while (done_ < message.size()) {
      const ssize_t got = ::recv(fd, message.data() + done_, message.size() - done_, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return progress::under_way;
      if (got <= 0) return progress::broken;
      done_ += static_cast<std::size_t>(got);
      if (!plausible()) return progress::broken;
    }
    return progress::complete;
  }

 private:
  std::size_t done_ = 0;
};

/// The server's side, for one connection in a poll loop: never blocks, reads nothing beyond the introduction.
class server_handshake {
 public:
  enum class state : std::uint8_t { in_progress, accepted, refused };

  explicit server_handshake(const credentials& known) {
    challenge_.mode = known.proves() ? handshake_wire::mode::proven : handshake_wire::mode::open;
    fill_random(challenge_.nonce);
  }

  /// Goes on as far as the socket permits. `expected(introduction)` gives the admission of a peer; it is
  /// asked only of peers that have proven themselves. Once accepted, the next byte is the protocol's.
  template <class Expected>
  state advance(int fd, const credentials& known, const Expected& expected) {
    using namespace handshake_wire;
    using progress = stepwise_transfer::progress;
    for (;;) {
      progress how = progress::broken;
      switch (step_) {
        case step::challenge:
          how = transfer_.send(fd, bytes_of(challenge_));
          if (how != progress::complete) break;
          if (!known.open && !known.proves() && !stays_on_this_host(fd)) return end(step::refused);
          to(step::introduction);
          continue;
        case step::introduction:
          how = transfer_.receive(fd, bytes_of(introduction_), [this] { return plausible(); });
          if (how != progress::complete) break;
          verdict_.status = judge(known, expected);
          if (verdict_.status == status::accepted && known.proves()) {
            verdict_.proof = prove(known.secret, role_server, challenge_, introduction_.what);
          }
          to(step::verdict);
          continue;
        case step::verdict:
          how = transfer_.send(fd, bytes_of(verdict_));
          if (how != progress::complete) break;
          return end(verdict_.status == status::accepted ? step::accepted : step::refused);
        case step::accepted:
          return state::accepted;
        case step::refused:
          return state::refused;
      }
      return how == progress::broken ? end(step::refused) : state::in_progress;
    }
  }

  /// What to poll for.
  short events() const noexcept { return step_ == step::introduction ? POLLIN : POLLOUT; }

  /// Meaningful once accepted.
  detail::introduction peer() const {
    const handshake_wire::introduction& said = introduction_.what;
    return {said.purpose, said.group, said.from, said.to};
  }

 private:
  enum class step : std::uint8_t { challenge, introduction, verdict, accepted, refused };

  void to(step next) {
    step_ = next;
    transfer_.restart();
  }
  state end(step how) {
    step_ = how;
    return how == step::accepted ? state::accepted : state::refused;
  }

  /// Strangers are shown the door at their first wrong byte.
  bool plausible() const {
    const handshake_wire::introduction right;
    return std::memcmp(&introduction_, &right, std::min<std::size_t>(transfer_.done(), 6)) == 0;
  }

  template <class Expected>
  handshake_wire::status judge(const credentials& known, const Expected& expected) const {
    using namespace handshake_wire;
    const handshake_wire::introduction& said = introduction_.what;
    if (said.mode != challenge_.mode) return status::wrong_mode;
    if (known.proves() &&
        !equal_in_constant_time(introduction_.proof, prove(known.secret, role_client, challenge_, said))) {
      return status::wrong_proof;
    }
    switch (expected(peer())) {
      case admission::welcome:
        return status::accepted;
      case admission::duplicate:
        return status::duplicate;
      case admission::not_expected:
        break;
    }
    return status::not_expected;
  }

  step step_ = step::challenge;
  stepwise_transfer transfer_;
  handshake_wire::challenge challenge_;
  handshake_wire::proven_introduction introduction_;
  handshake_wire::verdict verdict_;
};

/// The client's side, for one connected socket in a poll loop.
class client_handshake {
 public:
  /// `broken`: the connection ended before a verdict; the server may be busy with strangers: try again.
  enum class state : std::uint8_t { in_progress, accepted, duplicate, broken };

  /// `where` names the server in errors.
  client_handshake(const introduction& who, std::string where) : where_(std::move(where)) {
    said_.what.purpose = who.what;
    said_.what.from = who.from;
    said_.what.to = who.to;
    said_.what.group = who.group;
    fill_random(said_.what.nonce);
  }

  /// Goes on as far as the socket permits. Throws authentication_error when one of the two does not convince
  /// the other.
  state advance(int fd, const credentials& known) {
    using namespace handshake_wire;
    using progress = stepwise_transfer::progress;
    const auto always = [] { return true; };
    for (;;) {
      progress how = progress::broken;
      switch (step_) {
        case step::challenge:
          if (!known.open && !known.proves() && !stays_on_this_host(fd)) {
            refuse(
                "this is another host and there is no secret; set DDPP_SECRET or DDPP_SECRET_FILE on all "
                "ranks "
                "(or choose security::none by name)");
          }
          how = transfer_.receive(fd, bytes_of(asked_), always);
          if (how != progress::complete) break;
          answer_challenge(known);
          to(step::introduction);
          continue;
        case step::introduction:
          how = transfer_.send(fd, bytes_of(said_));
          if (how != progress::complete) break;
          to(step::verdict);
          continue;
        case step::verdict:
          how = transfer_.receive(fd, bytes_of(verdict_), always);
          if (how != progress::complete) break;
          return judge(known);
      }
      return how == progress::broken ? state::broken : state::in_progress;
    }
  }

  /// What to poll for.
  short events() const noexcept { return step_ == step::introduction ? POLLOUT : POLLIN; }

 private:
  enum class step : std::uint8_t { challenge, introduction, verdict };

  void to(step next) {
    step_ = next;
    transfer_.restart();
  }

  [[noreturn]] void refuse(const std::string& why) const { throw authentication_error(where_ + ": " + why); }

  void check_origin(std::uint32_t magic, std::uint16_t version) const {
    if (magic != handshake_wire::magic) refuse("what listens there is not ddpp");
    if (version != handshake_wire::version) refuse("its version of ddpp differs from this one");
  }

  void answer_challenge(const credentials& known) {
    using namespace handshake_wire;
    check_origin(asked_.magic, asked_.version);
    if (known.proves() && asked_.mode != mode::proven) {
      refuse(
          "it does not ask for the job's secret, which this process has; all ranks need the same "
          "DDPP_SECRET");
    }
    if (!known.proves() && asked_.mode != mode::open) {
      refuse(
          "it asks for the job's secret, which this process does not have; all ranks need the same "
          "DDPP_SECRET "
          "or DDPP_SECRET_FILE");
    }
    said_.what.mode = asked_.mode;
    if (known.proves()) said_.proof = prove(known.secret, role_client, asked_, said_.what);
  }

  state judge(const credentials& known) const {
    using namespace handshake_wire;
    check_origin(verdict_.magic, verdict_.version);
    if (verdict_.status == status::duplicate) return state::duplicate;
    if (verdict_.status == status::not_expected)
      refuse("it does not expect this rank (it is of another group)");
    if (verdict_.status != status::accepted)
      refuse("it knows another secret; all ranks need the same DDPP_SECRET");
    if (known.proves() &&
        !equal_in_constant_time(verdict_.proof, prove(known.secret, role_server, asked_, said_.what))) {
      refuse("it did not prove that it knows the job's secret");
    }
    return state::accepted;
  }

  step step_ = step::challenge;
  stepwise_transfer transfer_;
  std::string where_;
  handshake_wire::challenge asked_;
  handshake_wire::proven_introduction said_;
  handshake_wire::verdict verdict_;
};

/// Connects and shakes hands, again and again until the deadline. Blocks. Throws as connect_to, and
/// authentication_error.
inline descriptor connect_and_prove(const std::string& host, std::uint16_t port, const credentials& known,
                                    const introduction& who, deadline until,
                                    when_refused refused = when_refused::retry, const address& from = {}) {
  const std::string where = host_and_port(host, port);
  retry_pause pause;
  for (;;) {
    descriptor fd = connect_to(host, port, until, refused, from);
    client_handshake handshake(who, where);
    for (;;) {
      const auto state = handshake.advance(fd.get(), known);
      if (state == client_handshake::state::accepted) return fd;
      if (state != client_handshake::state::in_progress) break;
      if (!poll_until(fd.get(), handshake.events(), until)) break;
    }
    if (std::chrono::steady_clock::now() >= until) {
      throw timeout_error(where + " took the connection but did not answer in time");
    }
    pause.sleep(until);
  }
}

}  // namespace ddpp::detail
