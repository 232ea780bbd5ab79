// SPDX-License-Identifier: BSL-1.0
// The handshake refuses everyone who does not know the secret, whatever they say or replay, and costs little:
// alone, and at each kind of port that a job has.
#include <ddpp/backends/tcp.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/tcp_listener.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/tcp_store.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../support/process.hpp"
#include "../support/ranks.hpp"

using namespace ddpp::detail;
using namespace std::chrono_literals;
namespace wire = ddpp::detail::handshake_wire;

namespace {

/// A listener served by a thread of its own, which counts whom it welcomes.
class served_listener {
 public:
  explicit served_listener(const credentials& known)
      : listener_(listen_on("127.0.0.1", 0), known), port_(address::local_of(listener_.get()).port()) {
    thread_ = std::thread([this] { run(); });
  }
  ~served_listener() {
    stop_ = true;
    wake_.set();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }
  /// Waits for so many, as a client has its verdict before the server's thread has counted it.
  bool has_welcomed(int count) const {
    for (int i = 0; i < 2000 && welcomed_ < count; ++i) std::this_thread::sleep_for(1ms);
    return welcomed_ == count;
  }
  std::size_t strangers() const { return strangers_; }
  std::size_t most_strangers_seen() const { return most_; }

 private:
  void run() {
    std::vector<pollfd> entries;
    std::vector<descriptor> kept;
    while (!stop_) {
      entries.assign({{wake_.get(), POLLIN, 0}});
      listener_.add_to(entries);
      ::poll(entries.data(), entries.size(), poll_timeout(listener_.next_due()));
      listener_.serve(
          [](const introduction& who) {
            return who.what == purpose::data && who.to == 0 ? admission::welcome : admission::not_expected;
          },
          [&](descriptor socket, const introduction&) {
            kept.push_back(std::move(socket));
            ++welcomed_;
          });
      strangers_ = listener_.strangers();
      most_ = std::max(most_.load(), strangers_.load());
    }
  }

  tcp_listener listener_;
  std::uint16_t port_;
  wake_event wake_;
  std::atomic<bool> stop_{false};
  std::atomic<int> welcomed_{0};
  std::atomic<std::size_t> strangers_{0}, most_{0};
  std::thread thread_;
};

const introduction rank_one{purpose::data, {}, 1, 0};

ddpp::deadline soon() { return std::chrono::steady_clock::now() + 20s; }

descriptor stranger(std::uint16_t port) { return connect_to("127.0.0.1", port, soon()); }

/// Whether the other side closes the connection without having sent a verdict of acceptance.
bool shown_the_door(int fd, std::size_t challenge_bytes_left) {
  std::array<std::byte, sizeof(wire::challenge) + sizeof(wire::verdict)> bytes{};
  std::size_t got = 0;
  for (;;) {
    if (!poll_until(fd, POLLIN, soon())) return false;
    const ssize_t now = ::recv(fd, bytes.data() + got, bytes.size() - got, 0);
    if (now <= 0) break;
    got += static_cast<std::size_t>(now);
    if (got == bytes.size()) break;
  }
  if (got <= challenge_bytes_left) return true;
  wire::verdict verdict;
  std::memcpy(&verdict, bytes.data() + challenge_bytes_left, sizeof(verdict));
  return verdict.status != wire::status::accepted;
}

const credentials of_the_job{"the secret of the job"};

/// A connection of someone who writes down all that is said.
struct conversation {
  descriptor socket;
  wire::challenge asked = {};
  wire::proven_introduction said = {};
  wire::verdict verdict = {};

  explicit conversation(std::uint16_t port) : socket(stranger(port)) {
    REQUIRE(receive_all(socket.get(), wire::bytes_of(asked), soon()) == transfer::done);
  }
  /// What a rank would say here.
  wire::proven_introduction honest(const introduction& who, const ddpp::secret& key) const {
    wire::proven_introduction words;
    words.what.mode = wire::mode::proven;
    words.what.purpose = who.what;
    words.what.group = who.group;
    words.what.from = who.from;
    words.what.to = who.to;
    fill_random(words.what.nonce);
    words.proof = wire::prove(key, wire::role_client, asked, words.what);
    return words;
  }
  /// Says it, with `more` behind it. Nothing: the connection was closed without a verdict.
  std::optional<wire::status> say(const wire::proven_introduction& words, const std::string& more = {}) {
    said = words;
    std::string bytes(reinterpret_cast<const char*>(&words), sizeof(words));
    bytes += more;
    send_all(socket.get(), std::as_bytes(std::span(bytes)), soon());
    if (receive_all(socket.get(), wire::bytes_of(verdict), soon()) != transfer::done) return std::nullopt;
    return verdict.status;
  }
};

/// Everything that someone can try who has listened, but does not know the secret, at a port where `who`
/// would be answered `right`.
void attack(std::uint16_t port, const introduction& who, wire::status right, const std::string& request) {
  const auto honest = [&](const conversation& with) { return with.honest(who, of_the_job.secret); };
  conversation heard(port);
  REQUIRE(heard.say(honest(heard)) == right);

  // Replayed, whole and with what is free to choose replaced.
  CHECK(conversation(port).say(heard.said, request) == wire::status::wrong_proof);
  {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    words.proof = heard.said.proof;
    CHECK(again.say(words, request) == wire::status::wrong_proof);
    conversation mixed(port);
    words = heard.said;
    words.proof = honest(mixed).proof;
    CHECK(mixed.say(words) == wire::status::wrong_proof);
  }

  // Reflected: what the server has said, here or elsewhere, as if the client had proven it.
  {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    words.proof = heard.verdict.proof;
    CHECK(again.say(words) == wire::status::wrong_proof);
    conversation mirror(port);
    words = honest(mirror);
    words.what.nonce = mirror.asked.nonce;
    words.proof = wire::prove(of_the_job.secret, wire::role_server, mirror.asked, words.what);
    CHECK(mirror.say(words) == wire::status::wrong_proof);
  }

  // Downgraded.
  {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    words.what.mode = wire::mode::open;
    CHECK(again.say(words, request) == wire::status::wrong_mode);
    words.proof = {};
    CHECK(conversation(port).say(words, request) == wire::status::wrong_mode);
    words = honest(again);
    words.what.version = 0;
    CHECK_FALSE(conversation(port).say(words).has_value());
  }

  // A rank's proof, for something else than it has proven.
  const std::function<void(wire::introduction&)> lies[] = {
      [](wire::introduction& what) {
        what.purpose = static_cast<purpose>(static_cast<int>(what.purpose) % 3 + 1);
      },
      [](wire::introduction& what) { what.purpose = static_cast<purpose>(200); },
      [](wire::introduction& what) { what.group[15] ^= std::byte{1}; },
      [](wire::introduction& what) { ++what.from; },
      [](wire::introduction& what) { ++what.to; },
      [](wire::introduction& what) { what.nonce[31] ^= std::byte{128}; },
  };
  for (const auto& lie : lies) {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    lie(words.what);
    CHECK(again.say(words) == wire::status::wrong_proof);
  }

  // Guessed: every byte counts, and no key, another key and a prefix of the key are other keys.
  for (std::size_t i = 0; i < hmac_digest().size(); ++i) {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    words.proof[i] ^= std::byte{1};
    CHECK(again.say(words) == wire::status::wrong_proof);
  }
  for (const ddpp::secret& key : {ddpp::secret(), ddpp::secret("the secret of the"), ddpp::secret("x")}) {
    conversation again(port);
    CHECK(again.say(again.honest(who, key), request) == wire::status::wrong_proof);
  }
  {
    conversation again(port);
    wire::proven_introduction words = honest(again);
    words.proof = {};
    CHECK(again.say(words, request) == wire::status::wrong_proof);
  }

  // Passed on: the proof that a rank gives to someone else's question, or for another rank's port.
  {
    conversation elsewhere(port), here(port);
    CHECK(here.say(honest(elsewhere)) == wire::status::wrong_proof);
    conversation again(port);
    introduction to_another = who;
    to_another.to += 7;
    to_another.what = who.what == purpose::store ? purpose::data : who.what;
    CHECK(again.say(again.honest(to_another, of_the_job.secret)) == wire::status::not_expected);
  }

  // Cut short.
  {
    const conversation again(port);
    const wire::proven_introduction words = honest(again);
    send_all(again.socket.get(), std::as_bytes(std::span(&words, 1)).first(sizeof(words) - 1), soon());
    ::shutdown(again.socket.get(), SHUT_WR);
    CHECK(shown_the_door(again.socket.get(), 0));
  }
}

/// What a client does that comes to someone who is no server of this job: `impostor(socket, introduction)` is
/// what that one does after the client has introduced itself.
std::string deceived(wire::challenge asked,
                     const std::function<wire::verdict(const wire::proven_introduction&)>& lie,
                     const std::function<void(std::uint16_t)>& client) {
  const descriptor listener = listen_on("127.0.0.1", 0);
  std::thread impostor([&] {
    poll_until(listener.get(), POLLIN, soon());
    const descriptor peer = accept_on(listener.get());
    wire::proven_introduction said;
    send_all(peer.get(), wire::bytes_of(asked), soon());
    const wire::challenge right;
    const bool is_ours = asked.magic == right.magic && asked.version == right.version;
    const bool has_answered = receive_all(peer.get(), wire::bytes_of(said), soon()) == transfer::done;
    CHECK(has_answered == (is_ours && asked.mode == wire::mode::proven));
    if (!has_answered) return;
    wire::verdict verdict = lie(said);
    send_all(peer.get(), wire::bytes_of(verdict), soon());
    std::byte more{};  // nothing of the job may follow
    CHECK(receive_all(peer.get(), std::span(&more, 1), soon()) == transfer::closed);
  });
  const std::string text =
      support::text_of<ddpp::authentication_error>([&] { client(address::local_of(listener.get()).port()); });
  impostor.join();
  return text;
}

}  // namespace

TEST_CASE("HMAC-SHA256 agrees with RFC 4231") {
  const std::string key = "Jefe", data = "what do ya want for nothing?";
  const hmac_digest digest = hmac_sha256(key, std::as_bytes(std::span(data)));
  std::string text;
  for (const std::byte each : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(each) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(each) & 15u];
  }
  CHECK(text == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("who knows the secret is let in, who does not is told so") {
  const credentials known{"the secret"};
  served_listener server(known);
  const descriptor in = connect_and_prove("127.0.0.1", server.port(), known, rank_one, soon());
  CHECK(in);
  for (const credentials& other : {credentials{"the secreT"}, credentials{""}, credentials{"", true}}) {
    CHECK_THROWS_AS(connect_and_prove("127.0.0.1", server.port(), other, rank_one, soon()),
                    ddpp::authentication_error);
  }
  CHECK_THROWS_AS(
      connect_and_prove("127.0.0.1", server.port(), known, introduction{purpose::data, {}, 1, 2}, soon()),
      ddpp::authentication_error);
  CHECK(server.has_welcomed(1));
}

TEST_CASE("a client with a secret refuses a server that asks for none, or proves nothing") {
  served_listener open(credentials{});
  CHECK(connect_and_prove("127.0.0.1", open.port(), credentials{}, rank_one, soon()));
  CHECK_THROWS_AS(connect_and_prove("127.0.0.1", open.port(), credentials{"x"}, rank_one, soon()),
                  ddpp::authentication_error);

  // An impostor asks for a proof and accepts whatever it gets.
  const descriptor listener = listen_on("127.0.0.1", 0);
  std::thread impostor([&] {
    poll_until(listener.get(), POLLIN, soon());
    const descriptor peer = accept_on(listener.get());
    wire::challenge asked;
    asked.mode = wire::mode::proven;
    send_all(peer.get(), wire::bytes_of(asked), soon());
    wire::proven_introduction said;
    receive_all(peer.get(), wire::bytes_of(said), soon());
    wire::verdict verdict;
    verdict.status = wire::status::accepted;
    verdict.proof = said.proof;  // the client's own proof is not the server's
    send_all(peer.get(), wire::bytes_of(verdict), soon());
  });
  CHECK_THROWS_AS(connect_and_prove("127.0.0.1", address::local_of(listener.get()).port(), credentials{"x"},
                                    rank_one, soon()),
                  ddpp::authentication_error);
  impostor.join();
}

TEST_CASE("what was recorded on one connection is worth nothing on another") {
  const credentials known{"s"};
  served_listener server(known);
  wire::challenge asked;
  wire::proven_introduction said;
  const auto introduce = [&](int fd) {
    REQUIRE(receive_all(fd, wire::bytes_of(asked), soon()) == transfer::done);
  };
  const descriptor first = stranger(server.port());
  introduce(first.get());
  said.what.mode = wire::mode::proven;
  said.what.purpose = purpose::data;
  said.what.from = 1;
  said.what.to = 0;
  said.proof = wire::prove(known.secret, wire::role_client, asked, said.what);
  REQUIRE(send_all(first.get(), wire::bytes_of(said), soon()) == transfer::done);
  wire::verdict verdict;
  REQUIRE(receive_all(first.get(), wire::bytes_of(verdict), soon()) == transfer::done);
  REQUIRE(verdict.status == wire::status::accepted);

  SUBCASE("replay") {}
  SUBCASE("another rank") { said.what.from = 2; }
  SUBCASE("another purpose") { said.what.purpose = purpose::control; }
  SUBCASE("the server's proof, reflected") { said.proof = verdict.proof; }
  SUBCASE("downgrade") {
    said.what.mode = wire::mode::open;
    said.proof = {};
  }
  const descriptor second = stranger(server.port());
  introduce(second.get());
  REQUIRE(send_all(second.get(), wire::bytes_of(said), soon()) == transfer::done);
  REQUIRE(receive_all(second.get(), wire::bytes_of(verdict), soon()) == transfer::done);
  CHECK(verdict.status != wire::status::accepted);
  CHECK(server.has_welcomed(1));
}

TEST_CASE("at the store's port, attackers get nowhere") {
  ddpp::tcp_store store("127.0.0.1", 0, ddpp::tcp_store::server,
                        {.timeout = 20s, .secret = of_the_job.secret});
  std::string request;
  store_wire::encode(request, store_wire::request::set,
                     std::vector<std::string_view>{"planted", "by an attacker"});
  attack(store.port(), {purpose::store, {}, -1, -1}, wire::status::accepted, request);
  CHECK_FALSE(store.check({"planted"}));
  CHECK(store.num_keys() == 0);
}

TEST_CASE("at a rank's port, attackers get nowhere, whatever they call their connection") {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::atomic<int> right{0};
  std::vector<std::thread> ranks;
  std::atomic<bool> over{false};
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto boot = support::bootstrap_of(rank, 2, store);
      boot.secret = of_the_job.secret;
      if (rank == 1) store->set("kept", store->get("tcp/0"));
      ddpp::tcp t(boot, {});
      // Rank 0 says whether there will be another round; rank 1 says it back.
      std::vector<std::byte> out(1000), in(1000);
      for (std::byte more{1}; more == std::byte{1};) {
        if (rank == 0) {
          out.assign(out.size(), std::byte(!over));
          t.isend(out, 1, 0).wait(soon());
        }
        t.irecv(in, 1 - rank, 0).wait(soon());
        more = in[0];
        if (rank == 1) t.isend(in, 0, 0).wait(soon());
        if (rank == 0 && in != out) return;
        if (rank == 0) store->set("connected", "");
      }
      ++right;
    });
  }
  const std::string published = store->get("kept");
  const std::size_t space = published.find(' ');
  const group_id group = group_id_from(std::string_view(published).substr(0, space));
  const std::uint16_t port = tcp_endpoint::from(std::string_view(published).substr(space + 1)).port;
  store->wait({"connected"}, 20s);

  frame_header frame;
  const std::string request(reinterpret_cast<const char*>(&frame), sizeof(frame));
  // To whom proves all, rank 0 says that it has this connection, or that this is none for it.
  attack(port, {purpose::data, group, 1, 0}, wire::status::duplicate, request);
  attack(port, {purpose::control, group, 1, 9}, wire::status::not_expected,
         control_wire::encode({control_wire::kind::lost, 1, 0, "planted"}));
  attack(port, {purpose::store, {}, -1, -1}, wire::status::not_expected, request);
  over = true;
  for (std::thread& each : ranks) each.join();
  CHECK(right == 2);
}

TEST_CASE(
    "a client tells impostors by what they cannot prove, says nothing more, and keeps the secret to itself") {
  const auto data = [](std::uint16_t port) {
    connect_and_prove("127.0.0.1", port, of_the_job, rank_one, soon());
  };
  const auto control = [](std::uint16_t port) {
    const auto store = std::make_shared<ddpp::hash_store>();
    store->set("tcp/0", hexadecimal(group_id()) + " " + tcp_endpoint{"127.0.0.1", port, host_id()}.text());
    auto boot = support::bootstrap_of(1, 2, store);
    boot.secret = of_the_job.secret;
    ddpp::tcp(boot, {});
  };
  const auto store = [](std::uint16_t port) {
    ddpp::tcp_store("127.0.0.1", port, ddpp::tcp_store::client, {.timeout = 20s, .secret = of_the_job.secret})
        .set("key", "value");
  };
  // What a true server has once said to this very client.
  served_listener server(of_the_job);
  conversation heard(server.port());
  REQUIRE(heard.say(heard.honest(rank_one, of_the_job.secret)) == wire::status::accepted);

  const wire::challenge true_one = heard.asked;
  wire::challenge open = true_one, older = true_one, other = true_one;
  open.mode = wire::mode::open;
  older.version = 0;
  other.magic ^= 1;
  const auto accepts = [](const wire::proven_introduction&) {
    wire::verdict verdict;
    verdict.status = wire::status::accepted;
    return verdict;
  };
  const auto reflects = [&](const wire::proven_introduction& said) {
    wire::verdict verdict = accepts(said);
    verdict.proof = said.proof;
    return verdict;
  };
  const auto replays = [&](const wire::proven_introduction&) { return heard.verdict; };
  const auto guesses = [&](const wire::proven_introduction& said) {
    wire::verdict verdict = accepts(said);
    verdict.proof = wire::prove("", wire::role_server, true_one, said.what);
    return verdict;
  };
  const auto babbles = [&](const wire::proven_introduction& said) {
    wire::verdict verdict = accepts(said);
    verdict.status = static_cast<wire::status>(77);
    return verdict;
  };
  const std::pair<const wire::challenge*, std::function<wire::verdict(const wire::proven_introduction&)>>
      lies[] = {{&open, accepts},      {&older, accepts},    {&other, accepts},    {&true_one, accepts},
                {&true_one, reflects}, {&true_one, replays}, {&true_one, guesses}, {&true_one, babbles}};
  for (const auto& client : {std::function<void(std::uint16_t)>(data), {control}, {store}}) {
    for (const auto& [asked, lie] : lies) {
      const std::string text = deceived(*asked, lie, client);
      CHECK(text != "");
      CHECK_FALSE(support::says(text, of_the_job.secret));
    }
  }
}

TEST_CASE("garbage is refused, silence stalls nobody, and neither costs more than its bound") {
  const credentials known{"s"};
  served_listener server(known);
  std::vector<descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(server.port()));
  CHECK(connect_and_prove("127.0.0.1", server.port(), known, rank_one, soon()));
  CHECK(server.most_strangers_seen() <= tcp_listener::most_strangers);

  for (unsigned seed = 0; seed < 50; ++seed) {
    const descriptor fd = stranger(server.port());
    std::array<std::byte, 4096> noise;
    for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = std::byte((i * 7919 + seed * 104729) >> 3);
    if (seed % 2 == 0) {  // right up to the proof
      wire::proven_introduction said;
      said.what.mode = wire::mode::proven;
      std::memcpy(noise.data(), &said.what, sizeof(said.what));
    }
    send_all(fd.get(), noise, soon());
    CHECK(shown_the_door(fd.get(), sizeof(wire::challenge)));
  }
  CHECK(connect_and_prove("127.0.0.1", server.port(), known, rank_one, soon()));
  CHECK(server.has_welcomed(2));
}

TEST_CASE("the secret comes from the environment, else from a file, else is made once") {
  const std::string path = "/tmp/ddpp-test-secret-" + std::to_string(::getpid());
  std::ofstream(path) << "from the file\n";
  ::chmod(path.c_str(), 0600);
  ::unsetenv("DDPP_SECRET");
  ::unsetenv("DDPP_SECRET_FILE");
  CHECK(job_secret().empty());
  ::setenv("DDPP_SECRET_FILE", path.c_str(), 1);
  CHECK(job_secret() == "from the file");
  CHECK(ensure_job_secret() == "from the file");
  ::setenv("DDPP_SECRET", "from the environment", 1);
  CHECK(job_secret() == "from the environment");
  ::unsetenv("DDPP_SECRET");
  ::unlink(path.c_str());
  CHECK_THROWS_AS(job_secret(), ddpp::authentication_error);
  ::unsetenv("DDPP_SECRET_FILE");
  const ddpp::secret made = ensure_job_secret();
  CHECK(made.size() == 64);
  CHECK(job_secret() == made);
  CHECK(ensure_job_secret() == made);
  ::unsetenv("DDPP_SECRET");
  CHECK(ensure_job_secret() != made);
  ::unsetenv("DDPP_SECRET");
}

TEST_CASE("a secret's file that others may read or change is refused, and what it holds is not shown") {
  const std::string path = "/tmp/ddpp-test-secret-" + std::to_string(::getpid());
  const std::string content = "hunter2-hunter2-hunter2";
  ::unsetenv("DDPP_SECRET");
  ::setenv("DDPP_SECRET_FILE", path.c_str(), 1);
  const auto refusal = [&] {
    std::string text;
    try {
      const ddpp::secret found = job_secret();
      CHECK(found == content);
    } catch (const ddpp::authentication_error& e) {
      text = e.what();
      CHECK(text.find(path) != std::string::npos);
      CHECK(text.find("hunter2") == std::string::npos);
    }
    return text;
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(refusal(), "cannot be read"));
  std::ofstream(path) << content << "\r\n\n";
  for (const mode_t mode : {0644u, 0604u, 0602u, 0620u, 0666u}) {
    ::chmod(path.c_str(), mode);
    CAPTURE(mode);
    CHECK(says(refusal(), "chmod 600"));
  }
  for (const mode_t mode : {0600u, 0400u, 0440u, 0640u}) {
    ::chmod(path.c_str(), mode);
    CAPTURE(mode);
    CHECK(refusal() == "");
  }
  if (::geteuid() == 0) {
    REQUIRE(::chown(path.c_str(), 12345, 0) == 0);
    CHECK(says(refusal(), "user 12345"));
    REQUIRE(::chown(path.c_str(), 0, 0) == 0);
  }
  ::chmod(path.c_str(), 0600);
  std::ofstream(path) << "\n\n";
  CHECK(says(refusal(), "empty"));
  std::ofstream(path) << std::string(longest_secret, 's');
  CHECK(job_secret() == std::string(longest_secret, 's'));
  std::ofstream(path) << std::string(longest_secret + 1, 's');
  CHECK(says(refusal(), "more than"));
  ::unlink(path.c_str());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(says(refusal(), "no regular file"));  // and nobody waits for its writer
  ::unlink(path.c_str());
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  CHECK(says(refusal(), "no regular file"));
  ::rmdir(path.c_str());
  ::unsetenv("DDPP_SECRET_FILE");
}

TEST_CASE("a name with several addresses is tried in full, and IPv6 is as good as IPv4") {
  const credentials known{"s"};
  served_listener server(known);  // on 127.0.0.1 only; localhost may be ::1 first
  CHECK(connect_and_prove("localhost", server.port(), known, rank_one, soon()));
  std::string tried;
  if (!resolve("::1", 0, tried).empty()) {
    try {
      const descriptor fd = listen_on("::1", 0);
      const address local = address::local_of(fd.get());
      CHECK(local.text() == "[::1]:" + std::to_string(local.port()));
      const descriptor client = connect_to("::1", local.port(), soon());
      CHECK(stays_on_this_host(client.get()));
    } catch (const ddpp::init_error& e) {  // a system without IPv6
      CHECK(std::string(e.what()).find("[::1]:0") != std::string::npos);
    }
  }
}

TEST_CASE("listeners bind the address that was named, never all") {
  const descriptor fd = listen_on("127.0.0.1", 0);
  CHECK(address::local_of(fd.get()).host() == "127.0.0.1");
  CHECK_THROWS_AS(listen_on("0.0.0.0", 0), ddpp::init_error);
  CHECK_THROWS_AS(listen_on("::", 0), ddpp::init_error);
  CHECK_THROWS_AS(listen_on("no.such.host.invalid", 0), ddpp::init_error);
  bool in_use = false;
  CHECK_THROWS_AS(listen_on("127.0.0.1", address::local_of(fd.get()).port(), &in_use), ddpp::init_error);
  CHECK(in_use);
}
