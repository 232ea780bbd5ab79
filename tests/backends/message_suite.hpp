// SPDX-License-Identifier: BSL-1.0
// What every transport of ours does with messages. A test program defines `ranks` (see support/ranks.hpp) and
// includes this once.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/ranks.hpp"

namespace {

using support::cause_of;
using support::soon;
using transport = ranks::transport;
using bytes = std::vector<std::byte>;

bytes pattern(std::size_t size, int seed) {
  bytes data(size);
  std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761u + 12345u;
  for (std::byte& b : data) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return data;
}

std::vector<std::size_t> sizes_around_the_edges() {
  return {0,    1,     3,     8,     191,    192,    193,      1000,
          4096, 65535, 65536, 65537, 131072, 600001, 1u << 20, (1u << 20) + 1};
}

void send(transport& t, const bytes& data, int peer, int tag) { t.isend(data, peer, tag).wait(soon()); }

bytes receive(transport& t, std::size_t size, int peer, int tag) {
  bytes data(size);
  t.irecv(data, peer, tag).wait(soon());
  return data;
}

// All ranks come to it before any leaves: two rounds through rank 0.
void meet(transport& t, int tag = 999) {
  for (int round = 0; round < 2; ++round) {
    if (t.rank() != 0) {
      send(t, bytes(1), 0, tag);
      receive(t, 1, 0, tag);
    } else {
      for (int peer = 1; peer < t.size(); ++peer) receive(t, 1, peer, tag);
      for (int peer = 1; peer < t.size(); ++peer) send(t, bytes(1), peer, tag);
    }
  }
}

ddpp::fingerprint in_step(std::uint64_t sequence, ddpp::collective op = ddpp::collective::all_reduce) {
  ddpp::fingerprint print;
  print.sequence = sequence;
  print.op = op;
  return print;
}

}  // namespace

TEST_CASE("every size between every pair, from 1 to 9 ranks") {
  for (const int size : {1, 2, 3, 4, 5, 9}) {
    ranks::run(size, [](transport& t) {
      EXPECT(t.rank() >= 0 && t.rank() < t.size());
      for (const std::size_t length : sizes_around_the_edges()) {
        if (t.size() > 4 && length > 70000) continue;
        std::vector<bytes> out, in(static_cast<std::size_t>(t.size()), bytes(length));
        std::vector<decltype(t.isend({}, 0, 0))> pending;
        for (int peer = 0; peer < t.size(); ++peer) out.push_back(pattern(length, t.rank() * 16 + peer));
        for (int peer = 0; peer < t.size(); ++peer) {
          pending.push_back(t.isend(out[static_cast<std::size_t>(peer)], peer, 7));
          pending.push_back(t.irecv(in[static_cast<std::size_t>(peer)], peer, 7));
        }
        for (auto& request : pending) request.wait(soon());
        for (int peer = 0; peer < t.size(); ++peer) {
          EXPECT(in[static_cast<std::size_t>(peer)] == pattern(length, peer * 16 + t.rank()));
        }
      }
    });
  }
}

TEST_CASE("20 MB both ways at once, at odd addresses") {
  ranks::run(2, [](transport& t) {
    constexpr std::size_t length = 20'000'001;
    bytes out = pattern(length + 1, t.rank()), in(length + 3);
    auto sending = t.isend(std::span(out).subspan(1), 1 - t.rank(), 0);
    auto receiving = t.irecv(std::span(in).subspan(3), 1 - t.rank(), 0);
    sending.wait(soon());
    receiving.wait(soon());
    const bytes expected = pattern(length + 1, 1 - t.rank());
    EXPECT(std::memcmp(in.data() + 3, expected.data() + 1, length) == 0);
  });
}

TEST_CASE("tags are received in any order, one tag in its own order") {
  ranks::run(2, [](transport& t) {
    constexpr int tags = 5, rounds = 4;
    const auto length = [](int tag, int round) { return static_cast<std::size_t>(tag * 40'000 + round + 1); };
    if (t.rank() == 0) {
      std::vector<bytes> out;
      std::vector<decltype(t.isend({}, 0, 0))> pending;
      for (int round = 0; round < rounds; ++round) {
        for (int tag = 0; tag < tags; ++tag) out.push_back(pattern(length(tag, round), tag * rounds + round));
      }
      for (int round = 0; round < rounds; ++round) {
        for (int tag = 0; tag < tags; ++tag) {
          pending.push_back(t.isend(out[static_cast<std::size_t>(round * tags + tag)], 1, tag));
        }
      }
      for (auto& request : pending) request.wait(soon());
    } else {
      for (int tag = tags - 1; tag >= 0; --tag) {
        for (int round = 0; round < rounds; ++round) {
          EXPECT(receive(t, length(tag, round), 0, tag) == pattern(length(tag, round), tag * rounds + round));
        }
      }
    }
    meet(t);
  });
}

TEST_CASE("messages to oneself, before and after the receive") {
  ranks::run(2, [](transport& t) {
    const bytes data = pattern(300'000, t.rank());
    for (int round = 0; round < 3; ++round) {
      send(t, data, t.rank(), 5);
      send(t, {}, t.rank(), 6);
      EXPECT(receive(t, 0, t.rank(), 6).empty());
      EXPECT(receive(t, data.size(), t.rank(), 5) == data);
      bytes in(data.size());
      auto receiving = t.irecv(in, t.rank(), 5);
      EXPECT(!receiving.test());
      send(t, data, t.rank(), 5);
      receiving.wait(soon());
      EXPECT(in == data);
    }
    meet(t);
  });
}

TEST_CASE("a receive that is posted first does not block what comes later") {
  ranks::run(2, [](transport& t) {
    const int peer = 1 - t.rank();
    bytes late(100'000);
    auto receiving = t.irecv(late, peer, 1);
    for (int i = 0; i < 50; ++i) {
      const bytes data = pattern(static_cast<std::size_t>(i * 3000), i + t.rank());
      auto sending = t.isend(data, peer, 2);
      EXPECT(receive(t, data.size(), peer, 2) == pattern(data.size(), i + peer));
      sending.wait(soon());
    }
    const bytes data = pattern(late.size(), t.rank());
    auto sending = t.isend(data, peer, 1);
    receiving.wait(soon());
    sending.wait(soon());
    EXPECT(late == pattern(late.size(), peer));
  });
}

TEST_CASE("hundreds in flight") {
  ranks::run(3, [](transport& t) {
    constexpr int count = 300;
    std::vector<bytes> out(count), in;
    std::vector<decltype(t.isend({}, 0, 0))> pending;
    const int to = (t.rank() + 1) % 3, from = (t.rank() + 2) % 3;
    for (int i = 0; i < count; ++i) in.emplace_back(static_cast<std::size_t>(i * 37));
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out[at] = pattern(at * 37, i + t.rank());
      pending.push_back(t.isend(out[at], to, i % 3));
      pending.push_back(t.irecv(in[at], from, i % 3));
    }
    while (!pending.empty()) {  // newest first
      pending.back().wait(soon());
      pending.pop_back();
    }
    for (int i = 0; i < count; ++i) {
      EXPECT(in[static_cast<std::size_t>(i)] == pattern(static_cast<std::size_t>(i) * 37, i + from));
    }
  });
}

TEST_CASE("everything at once in random order") {
  struct message {
    bool out;
    int peer, tag, number;
  };
  ranks::run(4, [](transport& t) {
    constexpr int tags = 3, count = 30;
    const auto length = [](int from, int to, int tag, int number) {
      const std::uint32_t mixed = (static_cast<std::uint32_t>((from * 4 + to) * tags + tag) * 64u +
                                   static_cast<std::uint32_t>(number)) *
                                  2654435761u;
      return static_cast<std::size_t>(mixed >> 8) % (mixed % 4 == 0 ? 300'000 : 400);
    };
    const auto seed = [](int from, int to, int tag, int number) {
      return ((from * 4 + to) * tags + tag) * 64 + number;
    };
    std::mt19937 random(static_cast<unsigned>(t.rank()));
    std::vector<std::pair<bool, std::array<int, 2>>> order;  // out or in, peer and tag; each `count` times
    for (int peer = 0; peer < 4; ++peer) {
      for (int tag = 0; tag < tags; ++tag) {
        order.insert(order.end(), count, {true, {peer, tag}});
        order.insert(order.end(), count, {false, {peer, tag}});
      }
    }
    std::shuffle(order.begin(), order.end(), random);
    std::map<std::pair<bool, std::array<int, 2>>, int> next;
    std::vector<bytes> memory;
    std::vector<message> messages;
    std::vector<decltype(t.isend({}, 0, 0))> pending;
    for (const auto& entry : order) {
      const auto [out, where] = entry;
      const message m{out, where[0], where[1], next[entry]++};
      const int from = out ? t.rank() : m.peer, to = out ? m.peer : t.rank();
      const std::size_t size = length(from, to, m.tag, m.number);
      memory.push_back(out ? pattern(size, seed(from, to, m.tag, m.number)) : bytes(size));
      pending.push_back(out ? t.isend(memory.back(), m.peer, m.tag) : t.irecv(memory.back(), m.peer, m.tag));
      messages.push_back(m);
    }
    std::vector<std::size_t> waits(pending.size());
    std::iota(waits.begin(), waits.end(), std::size_t{0});
    std::shuffle(waits.begin(), waits.end(), random);
    for (const std::size_t i : waits) pending[i].wait(soon());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const message& m = messages[i];
      if (!m.out) EXPECT(memory[i] == pattern(memory[i].size(), seed(m.peer, t.rank(), m.tag, m.number)));
    }
    meet(t);
  });
}

TEST_CASE("from four threads at once") {
  ranks::run(2, [](transport& t) {
    std::vector<std::thread> threads;
    std::exception_ptr thrown;
    std::mutex mutex;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        try {
          for (int round = 0; round < 100; ++round) {
            const auto length = static_cast<std::size_t>((round * 7919 + tag * 104729) % 150'000);
            const bytes data = pattern(length, round + tag + t.rank());
            auto sending = t.isend(data, 1 - t.rank(), tag);
            EXPECT(receive(t, length, 1 - t.rank(), tag) == pattern(length, round + tag + 1 - t.rank()));
            sending.wait(soon());
          }
        } catch (...) {
          const std::lock_guard lock(mutex);
          thrown = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (thrown) std::rethrow_exception(thrown);
  });
}

TEST_CASE("peers that do not receive do not block what goes to another") {
  ranks::run(9, [](transport& t) {
    const bytes data = pattern(3'000'000, 1);
    if (t.rank() == 0) {
      std::vector<decltype(t.isend({}, 0, 0))> slow;
      for (int peer = 1; peer < 8; ++peer) slow.push_back(t.isend(data, peer, 0));
      for (int i = 0; i < 3; ++i) send(t, data, 8, 0);
      receive(t, 1, 8, 1);
      for (int peer = 1; peer < 8; ++peer) send(t, {}, peer, 1);
      for (auto& request : slow) request.wait(soon());
    } else if (t.rank() == 8) {
      for (int i = 0; i < 3; ++i) EXPECT(receive(t, data.size(), 0, 0) == data);
      send(t, bytes(1), 0, 1);
    } else {
      EXPECT(receive(t, data.size(), 0, 0) == data);
      receive(t, 0, 0, 1);
    }
    meet(t);
  });
}

TEST_CASE("test() alone finishes requests") {
  ranks::run(2, [](transport& t) {
    const bytes data = pattern(2'000'000, t.rank());
    bytes in(data.size());
    auto sending = t.isend(data, 1 - t.rank(), 0);
    auto receiving = t.irecv(in, 1 - t.rank(), 0);
    bool sent = false, received = false;
    while (!sent || !received) {
      sent = sent || sending.test();
      received = received || receiving.test();
      std::this_thread::yield();
    }
    EXPECT(in == pattern(data.size(), 1 - t.rank()));
  });
}

TEST_CASE("requests are withdrawn at every stage") {
  ranks::run(2, [](transport& t) {
    const int peer = 1 - t.rank();
    const bytes large = pattern(5'000'000, 1), small = pattern(100, 2);
    meet(t);  // so that there is a connection, and a send begins at once
    if (t.rank() == 0) {
      {  // a receive that nothing has come for
        bytes unused(10);
        auto receiving = t.irecv(unused, peer, 1);
        bool passed = false;
        try {
          receiving.wait(soon(std::chrono::milliseconds(20)));
        } catch (const ddpp::deadline_passed&) {
          passed = true;
        }
        EXPECT(passed);
      }
      {  // one send half under way, whose memory goes, and one not begun
        auto memory = std::make_unique<bytes>(large);
        auto half = std::make_unique<decltype(t.isend({}, 0, 0))>(t.isend(*memory, peer, 2));
        auto never = t.isend(small, peer, 3);
        half = nullptr;
        std::fill(memory->begin(), memory->end(), std::byte{0xee});
      }
      send(t, small, peer, 4);
      receive(t, 1, peer, 5);
      // a message that arrives while its receive is withdrawn half-way
      {
        auto memory = std::make_unique<bytes>(large.size());
        auto receiving = t.irecv(*memory, peer, 6);
        send(t, {}, peer, 7);
        for (int i = 0; i < 1000; ++i) receiving.test();
      }
      EXPECT(receive(t, small.size(), peer, 8) == small);
      {  // one half here as an unexpected message
        bytes unused(1);
        auto other = t.irecv(unused, peer, 100);
        for (int i = 0; i < 1000; ++i) other.test();
        bytes memory(large.size());
        auto receiving = t.irecv(memory, peer, 9);
      }
      EXPECT(receive(t, small.size(), peer, 10) == small);
    } else {
      EXPECT(receive(t, large.size(), peer, 2) == large);
      EXPECT(receive(t, small.size(), peer, 4) == small);
      send(t, bytes(1), peer, 5);
      receive(t, 0, peer, 7);
      send(t, large, peer, 6);
      send(t, small, peer, 8);
      send(t, large, peer, 9);
      send(t, small, peer, 10);
    }
    meet(t);
  });
}

TEST_CASE("a message is shown where it is, whatever its size") {
  ranks::run(3, [](transport& t) {
    const int to = (t.rank() + 1) % 3, from = (t.rank() + 2) % 3;
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t length : sizes_around_the_edges()) {
        const bytes data = pattern(length, t.rank());
        auto sending = t.isend(data, to, -1);
        int calls = 0;
        t.consume(from, -1, length, soon(), [&](std::span<const std::byte> message) {
          ++calls;
          const bytes expected = pattern(length, from);
          EXPECT(message.size() == length && reinterpret_cast<std::uintptr_t>(message.data()) % 64 == 0);
          EXPECT(length == 0 || std::memcmp(message.data(), expected.data(), length) == 0);
        });
        EXPECT(calls == 1);
        sending.wait(soon());
      }
      // one that was taken out before, one's own, and a consumer that throws
      send(t, pattern(50'000, t.rank()), to, 2);
      send(t, pattern(10, t.rank()), to, 1);
      receive(t, 10, from, 1);
      const auto look = [&](std::span<const std::byte> message) {
        EXPECT(message.size() == 50'000 && reinterpret_cast<std::uintptr_t>(message.data()) % 64 == 0);
        throw 42;
      };
      int thrown = 0;
      try {
        t.consume(from, 2, 50'000, soon(), look);
      } catch (int code) {
        thrown = code;
      }
      EXPECT(thrown == 42);
      const bytes own = pattern(1000, 5);
      send(t, own, t.rank(), 3);
      t.consume(t.rank(), 3, own.size(), soon(), [&](std::span<const std::byte> message) {
        EXPECT(bytes(message.begin(), message.end()) == own);
      });
      bool passed = false;
      try {
        t.consume(from, 50, 8, soon(std::chrono::milliseconds(1)), [](std::span<const std::byte>) {});
      } catch (const ddpp::deadline_passed&) {
        passed = true;
      }
      EXPECT(passed);
    }
    meet(t);
  });
}

TEST_CASE("a consumer may send and receive while it looks") {
  ranks::run(2, [](transport& t) {
    const int peer = 1 - t.rank();
    for (int round = 0; round < 50; ++round) {
      const bytes data = pattern(60'000, round);
      auto first = t.isend(data, peer, -1);
      t.consume(peer, -1, data.size(), soon(), [&](std::span<const std::byte> message) {
        auto second = t.isend(message, peer, -2);
        bytes back(data.size());
        t.irecv(back, peer, -2).wait(soon());
        second.wait(soon());
        EXPECT(back == data);
      });
      first.wait(soon());
    }
  });
}

TEST_CASE("background progress finishes what nobody waits for") {
  ranks::run(2, [](transport& t) {
    const bytes data = pattern(3'000'000, 3);
    t.progress_in_background();
    t.progress_in_background();
    if (t.rank() == 0) {
      auto sending = t.isend(data, 1, 0);  // more than fits on the way
      // Only when all has arrived elsewhere does anything come back; this thread must not move data for it.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT(receive(t, 1, 1, 1).size() == 1);
      sending.wait(soon());
    } else {
      EXPECT(receive(t, data.size(), 0, 0) == data);
      send(t, bytes(1), 0, 1);
    }
    meet(t);
  });
}

TEST_CASE("different sizes fail all ranks with the same words") {
  for (const bool posted_first : {true, false}) {
    ranks::run(3, [=](transport& t) {
      ddpp::failure cause;
      if (t.rank() == 0) {
        bytes in(12);
        if (posted_first) {
          auto receiving = t.irecv(in, 1, 5);
          send(t, {}, 1, 1);
          cause = cause_of([&] { receiving.wait(soon()); });
        } else {
          cause = cause_of([&] {
            send(t, {}, 1, 1);
            receive(t, 0, 1, 6);
            receive(t, 12, 1, 5);
          });
        }
      } else if (t.rank() == 1) {
        cause = cause_of([&] {
          receive(t, 0, 0, 1);
          send(t, bytes(8), 0, 5);
          send(t, {}, 0, 6);
          receive(t, 1, 0, 77);
        });
      } else {
        cause = cause_of([&] { receive(t, 1, 0, 77); });
      }
      EXPECT(t.failed());
      EXPECT(cause.kind == ddpp::failure_kind::mismatch && cause.rank == 1);
      EXPECT(cause.text == t.cause().text);
      EXPECT(cause.text == "rank 1 sent 8 bytes, but rank 0 receives 12 bytes there (tag 5)");
    });
  }
}

TEST_CASE("different collectives fail all ranks with a table of who called what") {
  for (const bool a_message_tells : {true, false}) {
    ranks::run(4, [=](transport& t) {
      const auto mine = in_step(1, t.rank() == 2 ? ddpp::collective::barrier : ddpp::collective::all_reduce);
      // All are asked as soon as two are known to differ: by then the others must have entered.
      for (const int peer : {0, 1, 3}) {
        if (t.rank() == 2) receive(t, 1, peer, 900);
      }
      t.enter(mine);
      const int to = (t.rank() + 1) % 4, from = (t.rank() + 3) % 4;
      const ddpp::failure cause = cause_of([&] {
        if (t.rank() != 2) send(t, bytes(1), 2, 900);
        if (a_message_tells) send(t, bytes(8), to, -1);
        receive(t, 8, from, -1);
        if (a_message_tells) receive(t, 8, from, -2);
      });
      EXPECT(cause.kind == ddpp::failure_kind::mismatch && cause.rank == 2);
      EXPECT(cause.text.find("rank 2: in barrier #1") != std::string::npos);
      EXPECT(cause.text.find("rank 0: in all_reduce #1") != std::string::npos);
      EXPECT(t.cause().text == cause.text);
    });
  }
}

TEST_CASE("a message of another kind of the same collective is found though its tag differs") {
  ranks::run(2, [](transport& t) {
    t.enter(in_step(3, t.rank() == 0 ? ddpp::collective::broadcast : ddpp::collective::all_reduce));
    if (t.rank() == 0) {
      send(t, bytes(8), 1, -4);
      t.leave();
      t.enter(in_step(4));
    }
    const ddpp::failure cause = cause_of([&] { receive(t, 8, 1 - t.rank(), -1); });
    EXPECT(cause.kind == ddpp::failure_kind::mismatch);
  });
}

TEST_CASE("survey tells where everyone stands") {
  ranks::run(3, [](transport& t) {
    ddpp::fingerprint print = in_step(static_cast<std::uint64_t>(t.rank()) + 1);
    print.count = 5;
    t.enter(print);
    if (t.rank() == 1) t.leave();
    meet(t);
    const auto states = t.survey(soon());
    EXPECT(states.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      const ddpp::rank_state& state = states[static_cast<std::size_t>(rank)];
      EXPECT(state.is == ddpp::rank_state::presence::here);
      EXPECT(state.last.sequence == static_cast<std::uint64_t>(rank) + 1 && state.last.count == 5);
      EXPECT(state.inside == (rank != 1));
    }
    meet(t);
  });
}

TEST_CASE("abort releases every waiter with the first cause") {
  ranks::run(4, [](transport& t) {
    const int peer = (t.rank() + 1) % 4;
    std::vector<std::thread> threads;
    std::atomic<int> released{0};
    for (int tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&, tag] {
        const auto cause = cause_of([&] {
          if (tag == 2) {
            t.consume(peer, -1, 100, soon(), [](std::span<const std::byte>) {});
          } else {
            receive(t, 100, peer, tag);
          }
        });
        if (cause.kind == ddpp::failure_kind::revoked && cause.rank == 3 && cause.text == "enough")
          ++released;
      });
    }
    if (t.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // likelier that all wait by then
      t.abort({ddpp::failure_kind::revoked, 3, "enough"});
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(released == 3);
    t.abort({ddpp::failure_kind::revoked, 0, "too late"});
    EXPECT(t.failed() && t.cause().text == "enough");
    EXPECT(cause_of([&] { send(t, bytes(1'000'000), peer, 0); }).text == "enough");
  });
}

TEST_CASE("a long cause is cut, and two at once become one") {
  ranks::run(3, [](transport& t) {
    t.abort({ddpp::failure_kind::revoked, t.rank(), std::string(5000, static_cast<char>('a' + t.rank()))});
    const ddpp::failure cause = cause_of([&] { receive(t, 1, (t.rank() + 1) % 3, 0); });
    EXPECT(cause.text == t.cause().text && cause.rank == cause.text[0] - 'a');
    EXPECT(cause.text.size() >= 1000 && cause.text.find_first_not_of(cause.text[0]) == std::string::npos);
  });
}

TEST_CASE("what a rank sent before it left is still received") {
  ranks::run(2, [](transport& t) {
    const bytes data = pattern(300'000, 9);
    if (t.rank() == 0) {
      send(t, data, 1, 1);
      send(t, pattern(10, 1), 1, 2);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT(receive(t, 10, 0, 2) == pattern(10, 1));
      EXPECT(receive(t, data.size(), 0, 1) == data);
      const ddpp::failure cause = cause_of([&] { receive(t, 1, 0, 3); });
      EXPECT(cause.kind == ddpp::failure_kind::peer_lost && cause.rank == 0);
      EXPECT(cause.text.find("rank 0 left the group") == 0);
    }
  });
}

TEST_CASE("a peer that has left fails only those who need it") {
  for (const bool by_sending : {true, false}) {
    ranks::run(4, [=](transport& t) {
      if (t.rank() == 3) return;
      const int to = (t.rank() + 1) % 3, from = (t.rank() + 2) % 3;
      for (int i = 0; i < 300; ++i) {
        const bytes data = pattern(100, i);
        auto sending = t.isend(data, to, 0);
        EXPECT(receive(t, 100, from, 0) == pattern(100, i));
        sending.wait(soon());
      }
      if (t.rank() != 0) t.isend({}, 0, 1).wait(soon());
      const ddpp::failure cause = cause_of([&] {
        if (t.rank() != 0) receive(t, 1, 0, 2);
        receive(t, 0, 1, 1);
        receive(t, 0, 2, 1);
        EXPECT(!t.failed());
        while (by_sending) send(t, bytes(1'000'000), 3, 0);
        receive(t, 1, 3, 0);
      });
      EXPECT(cause.kind == ddpp::failure_kind::peer_lost && cause.rank == 3);
    });
  }
}

TEST_CASE("sends that are dropped half-way in both directions keep nobody from leaving") {
  ranks::run(2, [](transport& t) {
    const bytes data(20'000'000);
    meet(t);
    { const auto dropped = t.isend(data, 1 - t.rank(), 0); }
  });
}

TEST_CASE("a send that is dropped half-way arrives even though the sender leaves") {
  ranks::run(2, [](transport& t) {
    meet(t);  // so that there is a connection, and the send begins at once
    if (t.rank() == 0) {
      const bytes data = pattern(20'000'000, 4);
      const auto dropped = t.isend(data, 1, 0);
    } else {
      EXPECT(receive(t, 20'000'000, 0, 0) == pattern(20'000'000, 4));
    }
  });
}

TEST_CASE("a request can be moved, and an empty one is done") {
  ranks::run(2, [](transport& t) {
    decltype(t.isend({}, 0, 0)) empty;
    EXPECT(empty.test());
    empty.wait(soon());
    bytes in(8);
    auto first = t.irecv(in, 1 - t.rank(), 0);
    auto second = std::move(first);
    EXPECT(first.test() && !second.test());
    meet(t);
    send(t, pattern(8, t.rank()), 1 - t.rank(), 0);
    first = std::move(second);
    first.wait(soon());
    first.wait(soon());
    EXPECT(first.test() && in == pattern(8, 1 - t.rank()));
    meet(t);
  });
}

TEST_CASE("misuse is an error that harms nothing") {
  ranks::run(2, [](transport& t) {
    for (const int peer : {-1, 2, 1'000'000}) {
      bool thrown = false;
      try {
        t.isend({}, peer, 0);
      } catch (const ddpp::usage_error&) {
        thrown = true;
      }
      EXPECT(thrown);
    }
    meet(t);
    EXPECT(!t.failed());
  });
}
