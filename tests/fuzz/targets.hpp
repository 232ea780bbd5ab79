// SPDX-License-Identifier: BSL-1.0
// Everything that parses bytes from outside, as functions of such bytes. A target ends the process when what
// it is given does what it must not: be accepted without a proof, come out of a parser changed, throw what is
// no ddpp::error. Memory errors and undefined behaviour are the sanitizers' to find, hangs the time limit's.
#pragma once

#include <ddpp/backends/tcp.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/init_method.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/tcp_agreement.hpp>
#include <ddpp/detail/tcp_control_channel.hpp>
#include <ddpp/detail/tcp_control_wire.hpp>
#include <ddpp/detail/tcp_endpoint.hpp>
#include <ddpp/detail/tcp_frame.hpp>
#include <ddpp/detail/tcp_meeting.hpp>
#include <ddpp/detail/tcp_store_contents.hpp>
#include <ddpp/detail/tcp_store_protocol.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/hash_store.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace fuzz {

using namespace ddpp::detail;
using namespace std::chrono_literals;
namespace wire = ddpp::detail::handshake_wire;

#define FUZZ_EXPECT(...) \
  ((__VA_ARGS__)         \
       ? void()          \
       : (std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #__VA_ARGS__), std::abort()))

/// What is left of an input.
class bytes {
 public:
  explicit bytes(std::span<const std::uint8_t> all) : left_(all) {}
  std::uint8_t one() {
    if (left_.empty()) return 0;
    const std::uint8_t first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }
  std::string take(std::size_t most) {
    const auto part = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(part.size());
    return {part.begin(), part.end()};
  }
  std::string rest() { return take(left_.size()); }
  bool is_empty() const { return left_.empty(); }

 private:
  std::span<const std::uint8_t> left_;
};

inline ddpp::deadline soon() { return std::chrono::steady_clock::now() + 10s; }

struct socket_pair {
  descriptor ours, theirs;
  socket_pair() {
    int ends[2];
    FUZZ_EXPECT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    ours = descriptor(ends[0]);
    theirs = descriptor(ends[1]);
  }
};

inline void send_text(int fd, const std::string& text) {
  send_all(fd, std::as_bytes(std::span(text)), soon());
}

template <class T>
void overwrite(T& message, const std::string& with) {
  std::memcpy(static_cast<void*>(&message), with.data(), std::min(sizeof(message), with.size()));
}

inline const credentials job{"the secret of the job"};

/// A client says something to a server. First byte: 1: everyone is let in; 2: it begins as a client would, 4:
/// with a proof; 8: it says it bit by bit.
inline void handshake_server(bytes in) {
  const std::uint8_t how = in.one();
  const credentials known = (how & 1) != 0 ? credentials{"", true} : job;
  socket_pair sockets;
  server_handshake server(known);
  const auto anyone = [](const introduction&) { return admission::welcome; };
  auto state = server.advance(sockets.theirs.get(), known, anyone);
  wire::challenge asked;
  FUZZ_EXPECT(receive_all(sockets.ours.get(), wire::bytes_of(asked), soon()) == transfer::done);

  wire::proven_introduction said;
  said.what.mode = asked.mode;
  std::string words = in.rest();
  if ((how & 2) != 0) {
    const std::size_t skipped = offsetof(wire::introduction, purpose);
    std::string whole(reinterpret_cast<const char*>(&said), sizeof(said));
    words = whole.substr(0, skipped) + words;
    overwrite(said, words);
    if ((how & 4) != 0) said.proof = wire::prove(job.secret, wire::role_client, asked, said.what);
    whole.assign(reinterpret_cast<const char*>(&said), sizeof(said));
    words = whole + words.substr(std::min(words.size(), whole.size()));
  }
  const std::size_t step = (how & 8) != 0 ? 7 : words.size() + 1;
  for (std::size_t at = 0; at < words.size() && state == server_handshake::state::in_progress; at += step) {
    send_text(sockets.ours.get(), words.substr(at, step));
    state = server.advance(sockets.theirs.get(), known, anyone);
  }
  const bool has_proven = (how & 6) == 6;
  if (known.proves() && !has_proven) FUZZ_EXPECT(state != server_handshake::state::accepted);
  if (state == server_handshake::state::accepted) {
    FUZZ_EXPECT(server.peer().from == said.what.from || (how & 2) == 0);
  }
  ::shutdown(sockets.ours.get(), SHUT_RDWR);
  state = server.advance(sockets.theirs.get(), known, anyone);
  FUZZ_EXPECT(state != server_handshake::state::in_progress);
}

/// A server says something to a client. First byte: 1: the client proves nothing; 2: it begins with a
/// challenge, 4: and a verdict.
inline void handshake_client(bytes in) {
  const std::uint8_t how = in.one();
  const credentials known = (how & 1) != 0 ? credentials{"", true} : job;
  socket_pair sockets;
  client_handshake client({purpose::data, {}, 1, 0}, "the server");
  std::string words;
  if ((how & 2) != 0) {
    wire::challenge asked;
    asked.mode = known.proves() ? wire::mode::proven : wire::mode::open;
    words.assign(reinterpret_cast<const char*>(&asked), sizeof(asked));
  }
  if ((how & 4) != 0) {
    wire::verdict verdict;
    words.append(reinterpret_cast<const char*>(&verdict), offsetof(wire::verdict, status));
  }
  send_text(sockets.theirs.get(), words + in.rest());
  ::shutdown(sockets.theirs.get(), SHUT_WR);
  try {
    const auto state = client.advance(sockets.ours.get(), known);
    FUZZ_EXPECT(state != client_handshake::state::in_progress);
    if (known.proves()) FUZZ_EXPECT(state != client_handshake::state::accepted);
  } catch (const ddpp::authentication_error& e) {
    FUZZ_EXPECT(std::string(e.what()).find(job.secret) == std::string::npos);
  }
}

/// Requests to a store, with neither sockets nor waiting. What is answered can be read.
inline void store_requests(bytes in) {
  store_contents contents;
  for (std::string body = in.rest(); body.size() >= sizeof(store_wire::header);) {
    store_wire::header head;
    overwrite(head, body);
    body.erase(0, sizeof(head));
    if (!plausible(head, static_cast<std::uint32_t>(store_wire::request::cancel))) return;
    if (body.size() < head.bytes) return;
    const auto strings = store_wire::decode(std::string_view(body).substr(0, head.bytes), head.strings);
    if (!strings) return;
    FUZZ_EXPECT(strings->size() == head.strings && store_wire::body_bytes(*strings) == head.bytes);
    const auto what = static_cast<store_wire::request>(head.code);
    const std::vector<std::string> with(strings->begin(), strings->end());
    const auto outcome = contents.execute(what, with);
    if (outcome.must_wait) FUZZ_EXPECT(!contents.missing(what, with).empty());
    std::string answer;
    encode(answer, outcome.code, outcome.strings);
    overwrite(head, answer);
    FUZZ_EXPECT(store_wire::decode(std::string_view(answer).substr(sizeof(head)), head.strings).has_value());
    body.erase(0, with.empty() ? 0 : store_wire::body_bytes(with));
  }
}

/// A client that has proven itself says something to a server, which goes on to serve others.
inline void store_server(bytes in) {
  static ddpp::tcp_store server("127.0.0.1", 0, ddpp::tcp_store::server, {.timeout = 10s, .secret = "s"});
  {
    const descriptor client =
        connect_and_prove("127.0.0.1", server.port(), {"s"}, {purpose::store, {}, -1, -1}, soon());
    send_text(client.get(), in.rest());
    ::shutdown(client.get(), SHUT_WR);
    std::array<std::byte, 4096> answers;
    while (poll_until(client.get(), POLLIN, soon()) &&
           ::recv(client.get(), answers.data(), answers.size(), 0) > 0) {
    }
  }
  server.set("fuzz", "alive");
  FUZZ_EXPECT(server.get("fuzz") == "alive");
  server.delete_key("fuzz");
}

/// A server that has proven itself answers a client. First byte: what it was asked for.
inline void store_client(bytes in) {
  const std::uint8_t what = in.one();
  const descriptor listener = listen_on("127.0.0.1", 0);
  const std::string answer = in.rest();
  std::thread server([&] {
    if (!poll_until(listener.get(), POLLIN, soon())) return;
    const descriptor client = accept_on(listener.get());
    server_handshake handshake(job);
    const auto anyone = [](const introduction&) { return admission::welcome; };
    while (handshake.advance(client.get(), job, anyone) == server_handshake::state::in_progress) {
      if (!poll_until(client.get(), handshake.events(), soon())) return;
    }
    if (!poll_until(client.get(), POLLIN, soon())) return;
    send_text(client.get(), answer);
    ::shutdown(client.get(), SHUT_WR);
    std::array<std::byte, 4096> requests;
    while (poll_until(client.get(), POLLIN, soon()) &&
           ::recv(client.get(), requests.data(), requests.size(), 0) > 0) {
    }
  });
  try {
    ddpp::tcp_store client("127.0.0.1", address::local_of(listener.get()).port(), ddpp::tcp_store::client,
                           {.timeout = 5s, .secret = job.secret});
    switch (what % 8) {
      case 0:
        client.set("key", "value");
        break;
      case 1:
        client.get("key");
        break;
      case 2:
        client.add("key", 1);
        break;
      case 3:
        client.check({"key", "other"});
        break;
      case 4:
        client.multi_get({"key", "other"});
        break;
      case 5:
        client.wait({"key"}, 5s);
        break;
      case 6:
        client.queue_pop("key");
        break;
      case 7:
        client.compare_set("key", "a", "b");
        break;
    }
  } catch (const ddpp::error&) {
  }
  server.join();
}

/// Control messages, as a channel reads them; all that their bodies can be; and what agreement makes of them.
inline void control_messages(bytes in) {
  constexpr int size = 3;
  tcp_agreement agreement(in.one() % size, size);
  (in.one() & 1) != 0 ? agreement.lead_first() : agreement.follow_first(0);
  auto now = ddpp::deadline() + 1h;
  agreement.vote(1, {{}, true, "a note"}, now + 1s, now);
  socket_pair sockets;
  control_channel channel(std::move(sockets.theirs));
  send_text(sockets.ours.get(), in.rest());
  ::shutdown(sockets.ours.get(), SHUT_WR);
  channel.receive([&](const control_wire::message& m) {
    FUZZ_EXPECT(m.body.size() <= control_wire::longest_body);
    std::string encoded = control_wire::encode(m);
    control_wire::message again;
    FUZZ_EXPECT(parse(encoded, again) == control_wire::parsed::message && encoded.empty());
    FUZZ_EXPECT(again.kind == m.kind && again.rank == m.rank && again.number == m.number &&
                again.body == m.body);
    (void)control_wire::failure_of(m);
    (void)control_wire::last_words_of(m);
    (void)control_wire::standing_of(m);
    if (const auto vote = agreement_wire::decode_vote(m.number, m.body, now)) {
      FUZZ_EXPECT(agreement_wire::decode_vote(m.number, agreement_wire::encode(*vote, now), now).has_value());
    }
    if (const auto verdict = agreement_wire::decode_verdict(m.body, size)) {
      const std::string body = agreement_wire::encode(*verdict);
      const auto decoded = agreement_wire::decode_verdict(body, size);
      FUZZ_EXPECT(body.size() == m.body.size() && decoded && agreement_wire::encode(*decoded) == body);
    }
    if (m.rank < 0 || m.rank >= size) return true;
    const bool makes_sense = agreement.take(m.rank, m, now);
    for (int i = 0; i < 8; ++i) {
      now += 200ms;
      agreement.advance(now);
      (void)agreement.take_letters();
      (void)agreement.take_verdict();
      FUZZ_EXPECT(agreement.next_due() > now - 10s || agreement.next_due() == ddpp::deadline());
    }
    return makes_sense;
  });
}

/// What nobody has asked for is kept where there is memory for it, and is bad_alloc where there is none, as
/// it would be with a rank that means it. Here such messages are shortened.
inline std::string with_modest_frames(std::string data) {
  constexpr std::uint64_t modest = 1 << 20;
  for (std::size_t at = 0; data.size() - at >= sizeof(frame_header);) {
    frame_header header;
    std::memcpy(static_cast<void*>(&header), data.data() + at, sizeof(header));
    if (!plausible(header)) break;
    if (header.tag != 3) header.bytes = std::min(header.bytes, modest);
    std::memcpy(data.data() + at, &header, sizeof(header));
    at += sizeof(header);
    at += static_cast<std::size_t>(std::min<std::uint64_t>(header.bytes, data.size() - at));
  }
  return data;
}

/// Rank 1 of a group of two has proven itself and says something on its control connection (so many bytes as
/// the first byte says, times 4) and on its data connection (the rest): rank 0 ends in time, whatever it is.
inline void rank(bytes in) {
  const std::string control = in.take(std::size_t{4} * in.one());
  const std::string data = with_modest_frames(in.rest());
  const auto store = std::make_shared<ddpp::hash_store>(10s);
  std::thread rank_0([&] {
    try {
      ddpp::bootstrap boot;
      boot.rank = 0;
      boot.size = 2;
      boot.store = store;
      boot.host = "127.0.0.1";
      boot.deadline = soon();
      boot.timeout = 200ms;
      boot.secret = job.secret;
      ddpp::tcp t(boot, {});
      std::vector<std::byte> buffer(100);
      t.irecv(buffer, 1, 3).wait(std::chrono::steady_clock::now() + 30ms);
    } catch (const ddpp::error&) {
    } catch (const ddpp::group_failed&) {
    } catch (const ddpp::deadline_passed&) {
    }
  });
  try {
    const std::string published = store->get("tcp/0");
    const std::size_t space = published.find(' ');
    const group_id group = group_id_from(std::string_view(published).substr(0, space));
    const tcp_endpoint to = tcp_endpoint::from(std::string_view(published).substr(space + 1));
    const descriptor listener = listen_on("127.0.0.1", 0);
    const descriptor first =
        connect_and_prove(to.host, to.port, job, {purpose::control, group, 1, 0}, soon());
    const tcp_endpoint own{"127.0.0.1", address::local_of(listener.get()).port(), host_id()};
    send_text(first.get(), control_wire::encode({control_wire::kind::endpoint, 1, 0, own.text()}));
    const descriptor second = connect_and_prove(to.host, to.port, job, {purpose::data, group, 1, 0}, soon());
    send_text(second.get(), data);
    send_text(first.get(), control);
    ::shutdown(second.get(), SHUT_WR);
    std::array<std::byte, 4096> answers;
    while (poll_until(second.get(), POLLIN, std::chrono::steady_clock::now() + 5ms) &&
           ::recv(second.get(), answers.data(), answers.size(), 0) > 0) {
    }
  } catch (const ddpp::error&) {  // rank 0 has gone already
  }
  rank_0.join();
}

/// Where ranks say they listen.
inline void endpoints(bytes in) {
  const std::string text = in.rest();
  try {
    const tcp_endpoint there = tcp_endpoint::from(text);
    FUZZ_EXPECT(tcp_endpoint::from(there.text()).text() == there.text() && there.port != 0);
  } catch (const ddpp::init_error&) {
  }
  try {
    FUZZ_EXPECT(hexadecimal(group_id_from(text)).size() == text.size());
  } catch (const ddpp::init_error&) {
  }
  tcp_meeting hub(0, 3);
  for (const int member : {1, 2, 2}) hub.take_endpoint(member, text);
  tcp_meeting(1, 2).take_list(text);
}

inline void init_methods(bytes in) {
  const std::string text = in.rest();
  try {
    const init_method found = init_method_parser(text).parse();
    FUZZ_EXPECT(found.is != init_method::kind::tcp || (!found.host.empty() && found.port != 0));
    FUZZ_EXPECT(found.is != init_method::kind::file || found.path.starts_with('/'));
    FUZZ_EXPECT(found.rank >= -1 && found.world_size >= -1);
  } catch (const ddpp::init_error&) {
  }
}

/// A file with these bytes, rewritten for each input.
class scratch_file {
 public:
  scratch_file() : path_("/tmp/ddpp-fuzz-" + std::to_string(::getpid())) {}
  ~scratch_file() { ::unlink(path_.c_str()); }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;
  void hold(const std::string& content) const {
    ::unlink(path_.c_str());
    const descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    FUZZ_EXPECT(file && ::write(file.get(), content.data(), content.size()) == ssize_t(content.size()));
  }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

inline void secret_files(bytes in) {
  const scratch_file file;
  file.hold(in.rest());
  try {
    const ddpp::secret found = read_secret_file(file.path().c_str());
    FUZZ_EXPECT(!found.empty() && found.size() <= longest_secret && found.back() != '\n');
  } catch (const ddpp::authentication_error&) {
  }
}

/// What a file store is made of. First byte: 1: the bytes are a key and a value that are stored, with a true
/// checksum, and what then follows; 2: nothing but them is in the file.
inline void store_files(bytes in) {
  const std::uint8_t how = in.one();
  const scratch_file file;
  if ((how & 2) != 0) file.hold(in.rest());
  try {
    ddpp::file_store writer(file.path(), 5s);
    if ((how & 1) != 0) {
      const std::string key = in.take(in.one()), value = in.take(in.one());
      (how & 4) != 0 ? writer.queue_push(key, value) : writer.set(key, value);
    }
    const std::string more = in.rest();
    const descriptor end(::open(file.path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    FUZZ_EXPECT(end && ::write(end.get(), more.data(), more.size()) == ssize_t(more.size()));
    ddpp::file_store reader(file.path(), 5s);
    const std::int64_t keys = reader.num_keys();
    FUZZ_EXPECT(keys >= 0);
    reader.set("another key", "value");
    FUZZ_EXPECT(writer.get("another key") == "value" && writer.num_keys() >= keys);
  } catch (const ddpp::init_error&) {  // it holds something else
    FUZZ_EXPECT((how & 2) != 0);
  }
}

struct target {
  const char* name;
  void (*run)(bytes);
  int mutations;  ///< that an ordinary run of the tests tries, of the inputs in the corpus
};
inline constexpr target targets[] = {
    {"handshake_server", handshake_server, 1000},
    {"handshake_client", handshake_client, 1000},
    {"store_requests", store_requests, 2000},
    {"store_server", store_server, 200},
    {"store_client", store_client, 100},
    {"control_messages", control_messages, 1000},
    {"rank", rank, 4},
    {"endpoints", endpoints, 2000},
    {"init_methods", init_methods, 2000},
    {"secret_files", secret_files, 300},
    {"store_files", store_files, 200},
};

}  // namespace fuzz
