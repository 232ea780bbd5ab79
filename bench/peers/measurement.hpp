// SPDX-License-Identifier: BSL-1.0
// What every peer does alike. `run` listens at a Unix socket; each rank of each peer connects, says who it
// is, and then waits for orders without using the processor, so that the peers can be measured in turn, size
// by size. An order is a line 'bytes warm-up-blocks blocks calls'; the answer is the number of wrong elements
// and, for each block, the microseconds per call that this rank saw.
#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace peers {

[[noreturn]] inline void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Random whole numbers times a small power of two: float sums are exact in any order, and 200 doublings end
/// below the largest float, so that calls in place can be repeated and checked to the last bit. Numbers of
/// ranks are powers of two.
class values {
 public:
  static constexpr int most_doublings = 200;

  values(int rank, int size) : size_(size), mine_(table(rank)), sum_(period) {
    for (int each = 0; each < size; ++each) {
      const auto theirs = table(each);
      for (std::size_t i = 0; i < period; ++i) sum_[i] += theirs[i];
    }
  }

  void fill(std::span<float> data) const {
    for (std::size_t at = 0; at < data.size(); at += period) {
      std::copy_n(mine_.begin(), std::min(period, data.size() - at), data.data() + at);
    }
  }

  /// How many elements are not what `calls` all-reduces in place have to leave.
  std::size_t wrong_after(int calls, std::span<const float> data) const {
    if (calls == 0) return differences(data, mine_);
    std::vector<float> expected = sum_;
    for (float& each : expected) each = std::ldexp(each, doublings(calls - 1));
    return differences(data, expected);
  }

  int doublings(int calls) const { return calls * std::countr_zero(static_cast<unsigned>(size_)); }

  /// How many elements differ from what `rank` began with.
  static std::size_t not_of_rank(int rank, std::span<const float> data) {
    return differences(data, table(rank));
  }

 private:
  static constexpr std::size_t period = 4099;  // prime: what comes from elsewhere in the buffer is wrong

  static std::vector<float> table(int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::uniform_int_distribution<int> number(1, 1 << 16);  // seven times a sum of eight still fits a float
    std::vector<float> numbers(period);
    for (float& each : numbers) each = std::ldexp(static_cast<float>(number(random)), -120);
    return numbers;
  }

  static std::size_t differences(std::span<const float> data, const std::vector<float>& expected) {
    std::size_t different = 0;
    for (std::size_t at = 0; at < data.size(); at += period) {
      const auto part = data.subspan(at, std::min(period, data.size() - at));
      if (std::memcmp(part.data(), expected.data(), part.size_bytes()) == 0) continue;
      for (std::size_t i = 0; i < part.size(); ++i) different += part[i] == expected[i] ? 0 : 1;
    }
    return different;
  }

  int size_;
  std::vector<float> mine_, sum_;
};

struct order {
  std::size_t bytes;
  int warm_up, blocks, calls;  // blocks to warm up, those that count, calls in each
};

struct answer {
  std::size_t wrong = 0;
  std::vector<double> microseconds;  // per call, of each block
};

/// A `Peer` has rank(), size(), barrier(), make_buffer(count), call(buffer) and wrong_after(calls, buffer,
/// values).
template <class Peer>
answer measure(Peer& peer, const order& todo) {
  const values random(peer.rank(), peer.size());
  auto buffer = peer.make_buffer(todo.bytes / sizeof(float));
  const std::span<float> data(buffer.data(), buffer.size());
  answer result;
  int done = 0;
  const auto check = [&] {
    peer.barrier();
    result.wrong += peer.wrong_after(done, buffer, random);
  };
  const auto refill = [&] {
    random.fill(data);
    done = 0;
  };
  const auto calls = [&](int number) {
    if (random.doublings(done + number) > values::most_doublings) check(), refill();
    peer.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < number; ++i) peer.call(buffer);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    done += number;
    return took.count() / number;
  };
  refill();
  for (int block = 0; block < todo.warm_up; ++block) calls(todo.calls);
  for (int block = 0; block < todo.blocks; ++block) result.microseconds.push_back(calls(todo.calls));
  check();
  return result;
}

class orders {
 public:
  orders(const std::string& path, const std::string& name, int rank)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_ < 0) throw_errno("socket");
    if (path.size() >= sizeof(address.sun_path)) throw std::invalid_argument("the socket's path is too long");
    path.copy(address.sun_path, path.size());
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      throw_errno("connect");
    say(name + ' ' + std::to_string(rank));
  }
  orders(const orders&) = delete;
  orders& operator=(const orders&) = delete;
  ~orders() { ::close(socket_); }

  /// False: there is nothing more to do.
  bool next(order& todo) {
    std::string line;
    for (char c; read_byte(c) && c != '\n';) line += c;
    return std::sscanf(line.c_str(), "%zu %d %d %d", &todo.bytes, &todo.warm_up, &todo.blocks, &todo.calls) ==
           4;
  }

  void give(const answer& result) {
    std::string line = std::to_string(result.wrong);
    for (const double each : result.microseconds) line += ' ' + std::to_string(each);
    say(line);
  }

 private:
  bool read_byte(char& c) {
    for (;;) {
      const auto got = ::read(socket_, &c, 1);
      if (got >= 0 || errno != EINTR) return got == 1;
    }
  }
  void say(std::string line) {
    line += '\n';
    for (std::size_t sent = 0; sent < line.size();) {
      const auto now = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno != EINTR) throw_errno("send");
      if (now > 0) sent += static_cast<std::size_t>(now);
    }
  }

  int socket_;
};

/// Measures what it is told to until there is no more.
template <class Peer>
void obey(const std::string& path, const std::string& name, Peer& peer) {
  orders from_run(path, name, peer.rank());
  for (order todo; from_run.next(todo);) from_run.give(measure(peer, todo));
}

/// A program's arguments: where `run` listens, what it calls this peer, the number of ranks, and what else
/// there is.
struct arguments {
  std::string path, name;
  int ranks;
  std::vector<std::string> more;

  arguments(int argc, char** argv) : ranks(argc > 3 ? std::atoi(argv[3]) : 0) {
    if (ranks < 1)
      throw std::invalid_argument("arguments: SOCKET NAME RANKS ...; bench/peers/run starts this program");
    path = argv[1], name = argv[2];
    more.assign(argv + 4, argv + argc);
  }
};

}  // namespace peers
