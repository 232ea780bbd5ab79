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

namespace handshake_wire {

inline constexpr std::uint32_t magic = 0x50504444;  // "DDPP"
inline constexpr std::uint16_t version = 1;
enum class mode : std::uint8_t { open = 0, proven = 1 };
enum class status : std::uint8_t { accepted = 1, wrong_proof = 2, wrong_mode = 3, not_expected = 4 };
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

/// The server's side, for one connection in a poll loop: never blocks, reads nothing beyond the introduction.
class server_handshake {
 public:
  enum class state : std::uint8_t { in_progress, accepted, refused };

  explicit server_handshake(const credentials& known) {
    challenge_.mode = known.proves() ? handshake_wire::mode::proven : handshake_wire::mode::open;
    fill_random(challenge_.nonce);
  }

  /// Goes on as far as the socket permits. `expected(introduction)` says whether such a peer is wanted; it is
  /// asked only of peers that have proven themselves. Once accepted, the next byte is the protocol's.
  template <class Expected>
  state advance(int fd, const credentials& known, const Expected& expected) {
    using namespace handshake_wire;
    if (step_ == step::challenge && send_some(fd, bytes_of(challenge_))) {
      if (!known.open && !known.proves() && !stays_on_this_host(fd)) return end(step::refused);
      to(step::introduction);
    }
    if (step_ == step::introduction && receive_some(fd, bytes_of(introduction_))) {
      verdict_.status = judge(known, expected);
      if (verdict_.status == status::accepted && known.proves()) {
        verdict_.proof = prove(known.secret, role_server, challenge_, introduction_.what);
      }
      to(step::verdict);
    }
    if (step_ == step::verdict && send_some(fd, bytes_of(verdict_))) {
      return end(verdict_.status == status::accepted ? step::accepted : step::refused);
    }
    return step_ == step::refused ? state::refused : state::in_progress;
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
    done_ = 0;
  }
  state end(step how) {
    step_ = how;
    return how == step::accepted ? state::accepted : state::refused;
  }

  bool send_some(int fd, std::span<const std::byte> message) {
    while (done_ < message.size()) {
      const ssize_t sent =
          ::send(fd, message.data() + done_, message.size() - done_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) step_ = step::refused;
      if (sent < 0) return false;
      done_ += static_cast<std::size_t>(sent);
    }
    return true;
  }

  bool receive_some(int fd, std::span<std::byte> message) {
    while (done_ < message.size()) {
      const ssize_t got = ::recv(fd, message.data() + done_, message.size() - done_, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) step_ = step::refused;
      if (got <= 0) return false;
      done_ += static_cast<std::size_t>(got);
      if (!plausible()) return step_ = step::refused, false;
    }
    return true;
  }

  /// Strangers are shown the door at their first wrong byte.
  bool plausible() const {
    const handshake_wire::introduction right;
    return std::memcmp(&introduction_, &right, std::min<std::size_t>(done_, 6)) == 0;
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
    return expected(peer()) ? status::accepted : status::not_expected;
  }

  step step_ = step::challenge;
  std::size_t done_ = 0;
  handshake_wire::challenge challenge_;
  handshake_wire::proven_introduction introduction_;
  handshake_wire::verdict verdict_;
};

/// The client's side over a connected socket, until the deadline. True: both have proven themselves. False:
/// the connection ended or the time was up before a verdict (the server may be busy with strangers: try
/// again). Throws authentication_error when one of the two has not convinced the other; `where` is the text
/// for it.
inline bool client_handshake(int fd, const credentials& known, const introduction& who,
                             const std::string& where, deadline until) {
  using namespace handshake_wire;
  const auto refuse = [&](const std::string& why) { throw authentication_error(where + ": " + why); };
  if (!known.open && !known.proves() && !stays_on_this_host(fd)) {
    refuse(
        "this is another host and there is no secret; set DDPP_SECRET or DDPP_SECRET_FILE on all ranks (or "
        "choose security::none by name)");
  }
  challenge asked;
  if (receive_all(fd, bytes_of(asked), until) != transfer::done) return false;
  if (asked.magic != handshake_wire::magic) refuse("what listens there is not ddpp");
  if (asked.version != handshake_wire::version) refuse("its version of ddpp differs from this one");
  if (known.proves() && asked.mode != mode::proven) {
    refuse(
        "it does not ask for the job's secret, which this process has; all ranks need the same DDPP_SECRET");
  }
  if (!known.proves() && asked.mode != mode::open) {
    refuse(
        "it asks for the job's secret, which this process does not have; all ranks need the same DDPP_SECRET "
        "or "
        "DDPP_SECRET_FILE");
  }

  proven_introduction said;
  said.what.mode = asked.mode;
  said.what.purpose = who.what;
  said.what.from = who.from;
  said.what.to = who.to;
  said.what.group = who.group;
  fill_random(said.what.nonce);
  if (known.proves()) said.proof = prove(known.secret, role_client, asked, said.what);
  if (send_all(fd, bytes_of(said), until) != transfer::done) return false;

  verdict answer;
  if (receive_all(fd, bytes_of(answer), until) != transfer::done) return false;
  if (answer.magic != handshake_wire::magic || answer.version != handshake_wire::version) {
    refuse("what listens there is not ddpp");
  }
  if (answer.status == status::not_expected)
    refuse("it does not expect this rank (it belongs to another group)");
  if (answer.status != status::accepted)
    refuse("it knows another secret; all ranks need the same DDPP_SECRET");
  if (known.proves() &&
      !equal_in_constant_time(answer.proof, prove(known.secret, role_server, asked, said.what))) {
    refuse("it did not prove that it knows the job's secret");
  }
  return true;
}

/// Connects and shakes hands, again and again until the deadline. Throws as connect_to and client_handshake.
inline descriptor connect_and_prove(const std::string& host, std::uint16_t port, const credentials& known,
                                    const introduction& who, deadline until,
                                    when_refused refused = when_refused::retry) {
  const std::string where = host_and_port(host, port);
  retry_pause pause;
  for (;;) {
    descriptor fd = connect_to(host, port, until, refused);
    if (client_handshake(fd.get(), known, who, where, until)) return fd;
    if (std::chrono::steady_clock::now() >= until) {
      throw timeout_error(where + " took the connection but did not answer in time");
    }
    pause.sleep(until);
  }
}

}  // namespace ddpp::detail
