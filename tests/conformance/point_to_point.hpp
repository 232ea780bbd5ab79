// SPDX-License-Identifier: BSL-1.0
// Messages between two ranks: tags, any order, many at once, to oneself, from several threads.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "suite.hpp"

using namespace conformance;

TEST_CASE("receives posted on every rank before the sends") {
  for (const int n : {1, 2, 3, 8}) {
    on_ranks(n, [](auto& comm) {
      const int next = (comm.rank() + 1) % comm.size(),
                previous = (comm.rank() + comm.size() - 1) % comm.size();
      for (const std::size_t count : {0u, 1u, 1000u, 1'000'000u}) {
        std::vector<int> out(count, comm.rank()), in(count, -1);
        auto received = ddpp::irecv(comm, in, previous);
        auto sent = ddpp::isend(comm, out, next);
        sent.wait();
        received.wait();
        for (const int x : in) EXPECT(x == previous);
      }
    });
  }
}

CASE_WHERE(ddpp::has_tags<transport>, "each (peer, tag) is a channel of its own, first in first out") {
  on_ranks(2, [](auto& comm) {
    constexpr int tags = 7, each = 5;
    const auto value = [](int tag, int k) { return 100 * tag + k; };
    const auto length = [](int tag, int k) { return static_cast<std::size_t>(tag * 20'000 + k * 111); };
    if (comm.rank() == 0) {
      std::vector<std::vector<int>> buffers;
      std::vector<ddpp::work> pending;
      for (int k = 0; k < each; ++k) {
        for (int tag = 0; tag < tags; ++tag) {
          buffers.emplace_back(length(tag, k), value(tag, k));
          pending.push_back(ddpp::isend(comm, buffers.back(), 1, tag));
        }
      }
      for (auto& work : pending) work.wait();
    } else {
      for (int tag = tags; tag-- > 0;) {  // the last first
        for (int k = 0; k < each; ++k) {
          std::vector<int> in(length(tag, k), -1);
          ddpp::recv(comm, in, 0, tag);
          for (const int x : in) EXPECT(x == value(tag, k));
        }
      }
    }
  });
}

CASE_WHERE(ddpp::has_tags<transport>,
           "hundreds of messages in flight among all ranks, oneself included, matched in any order") {
  on_ranks(4, [](auto& comm) {
    constexpr int tags = 5, each = 6;
    struct channel {
      int peer, tag;
    };
    const auto value = [](int from, int to, int tag, int k) {
      return ((from * 10 + to) * 10 + tag) * 10 + k;
    };
    const auto length = [](int tag, int k) { return static_cast<std::size_t>((tag * 7 + k * 13) % 9 * 700); };
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    // Within a channel in order, otherwise in any order, another one on each rank and for either direction.
    const auto shuffled = [&] {
      std::vector<channel> all;
      for (int peer = 0; peer < comm.size(); ++peer) {
        for (int tag = 0; tag < tags; ++tag) all.insert(all.end(), each, {peer, tag});
      }
      std::shuffle(all.begin(), all.end(), random);
      return all;
    };
    struct message {
      std::vector<int> data;
      int expected;
      ddpp::work work;
    };
    std::vector<message> sent, received;
    std::vector<int> next_out(static_cast<std::size_t>(comm.size() * tags)), next_in(next_out);
    const auto number_in = [&](std::vector<int>& next, channel c) {
      return next[static_cast<std::size_t>(c.peer * tags + c.tag)]++;
    };
    const auto outgoing = shuffled(), incoming = shuffled();
    for (std::size_t i = 0; i < outgoing.size();
         ++i) {  // so that some are posted before they come, others after
      const channel to = outgoing[i], from = incoming[i];
      const int k = number_in(next_out, to), l = number_in(next_in, from);
      sent.push_back({std::vector<int>(length(to.tag, k), value(comm.rank(), to.peer, to.tag, k)), 0, {}});
      sent.back().work = ddpp::isend(comm, sent.back().data, to.peer, to.tag);
      received.push_back(
          {std::vector<int>(length(from.tag, l), -1), value(from.peer, comm.rank(), from.tag, l), {}});
      received.back().work = ddpp::irecv(comm, received.back().data, from.peer, from.tag);
    }
    std::vector<std::size_t> order(received.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // (The least transport matches a receive when it is waited for.)
    if (ddpp::has_control_plane<transport>) std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) received[i].work.wait(), sent[i].work.wait();
    for (const message& m : received) {
      EXPECT(std::all_of(m.data.begin(), m.data.end(), [&](int x) { return x == m.expected; }));
    }
  });
}

TEST_CASE("messages to oneself") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> out(30'000, comm.rank() + 5), in(30'000);
    auto sent = ddpp::isend(comm, out, comm.rank());
    ddpp::recv(comm, in, comm.rank());
    sent.wait();
    EXPECT(in == out);
    std::vector<int> again(30'000);
    ddpp::send_recv(comm, out, comm.rank(), again, comm.rank());
    EXPECT(again == out);
  });
}

TEST_CASE("opposite sends of large buffers") {
  on_ranks(4, [](auto& comm) {
    std::vector<double> out(500'000, comm.rank()), in(500'000);
    const int partner = comm.rank() ^ 1;
    ddpp::send_recv(comm, out, partner, in, partner);
    EXPECT(in.front() == partner && in.back() == partner);
    std::vector<double> more(500'000);
    std::optional<ddpp::work> sent, received;
    ddpp::group(comm, [&] {
      sent = ddpp::isend(comm, out, partner);
      received = ddpp::irecv(comm, more, partner);
    });
    sent->wait();
    received->wait();
    EXPECT(more == in);
  });
}

CASE_WHERE(!ddpp::has_stream_order<transport>,
           "an isend is finished without a further call on the sender's side") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> large(3'000'000, 7), token(1);
    if (comm.rank() == 0) {
      auto sent = ddpp::isend(comm, large, 1);
      ddpp::recv(comm, token, 1, 9);  // rank 1 answers only when it has all of it
      EXPECT(sent.done());
    } else {
      std::vector<int> in(large.size());
      ddpp::recv(comm, in, 0);
      EXPECT(in == large);
      ddpp::send(comm, token, 0, 9);
    }
  });
}

CASE_WHERE(ddpp::has_tags<transport>,
           "four threads send and receive on one communicator while another runs collectives") {
  on_ranks(2, [](auto& comm) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(4);
    const int partner = 1 - comm.rank();
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int k = 0; k < 50; ++k) {
            std::vector<int> out(static_cast<std::size_t>(1 + k * 300), 1000 * t + k), in(out.size());
            ddpp::send_recv(comm, out, partner, in, partner, t);
            for (const int x : in) EXPECT(x == 1000 * t + k);
          }
        } catch (...) {
          errors[static_cast<std::size_t>(t)] = std::current_exception();
        }
      });
    }
    for (int k = 0; k < 50; ++k) {
      std::vector<int> x(100 * static_cast<std::size_t>(k), 1);
      ddpp::all_reduce(comm, x);
      for (const int v : x) EXPECT(v == 2);
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  });
}

CASE_WHERE(!ddpp::has_stream_order<transport>, "messages never wait behind a collective") {
  on_ranks(2, [](auto& comm) {
    std::vector<int> x(10, 1), note(1, 42);
    if (comm.rank() == 0) {
      auto work =
          ddpp::all_reduce_async(comm, x);  // cannot end before rank 1 joins, which waits for the message
      ddpp::send(comm, note, 1);
      work.wait();
    } else {
      std::vector<int> in(1);
      ddpp::recv(comm, in, 0);
      EXPECT(in[0] == 42);
      ddpp::all_reduce(comm, x);
    }
  });
}

CASE_WHERE(!ddpp::has_stream_order<transport>,
           "waiting with any patience, and again after one's time was up") {
  on_ranks(
      2,
      [](auto& comm) {
        std::vector<int> x(1), y(1);
        auto received = ddpp::irecv(comm, x, 1 - comm.rank());
        if (comm.rank() == 0) {  // rank 1 sends only after it has heard
          EXPECT(!received.wait_for(-1h) && !received.wait_for(0.5ms));
          EXPECT_THROWS(ddpp::timeout_error, received.wait());
          ddpp::send(comm, y, 1);
        }
        EXPECT(received.wait_for(std::chrono::milliseconds::max()));
        received.wait();
        if (comm.rank() == 1) ddpp::send(comm, y, 0);
      },
      1500ms);
}

CASE_WHERE(!ddpp::has_stream_order<transport>, "a receive whose time is up leaves the communicator usable") {
  on_ranks(
      2,
      [](auto& comm) {
        std::vector<int> x(10);
        if (comm.rank() == 0) {
          const std::string text = EXPECT_THROWS(ddpp::timeout_error, ddpp::recv(comm, x, 1, 5));
          EXPECT(says(text, "rank 1") && says(text, "tag 5"));
          std::vector<int> go(1);
          ddpp::send(comm, go, 1);
        } else {
          std::vector<int> go(1);
          for (bool there = false; !there;) {  // as long as rank 0 takes for its time-out
            auto pending = ddpp::irecv(comm, go, 0);
            there = pending.wait_for(60s);
          }
        }
        std::vector<int> ones(3, 1);
        ddpp::all_reduce(comm, ones);
        EXPECT(ones[0] == 2);
      },
      1500ms);
}
