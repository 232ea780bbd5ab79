// SPDX-License-Identifier: BSL-1.0
// What loopback sockets allow: the bytes of a ring all-reduce, 2 (n - 1) / n of the buffer, go to the right
// and as many come from the left, from and to memory at the beginning of a page. Nothing is reduced, and no
// part waits for another.
#include <arpa/inet.h>
#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <new>
#include <poll.h>
#include <span>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "forked_ranks.hpp"

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t most_at_once = std::size_t{1} << 20;  // the fastest, of 16 KiB to 1 MiB
constexpr int tries_before_poll = 100;

struct free_pages {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{page}); }
};
using pages = std::unique_ptr<std::byte, free_pages>;
pages new_pages(std::size_t bytes) {
  return pages(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{page})));
}

/// Two connected TCP sockets. Nothing is lost between them, so they need no congestion control, and the
/// simplest costs least: with bbr 1 MiB takes up to twice as long.
std::array<int, 2> connected_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || ::bind(listener, name, length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, name, &length) != 0)
    peers::throw_errno("listen");
  const int one = ::socket(AF_INET, SOCK_STREAM, 0);
  if (one < 0 || ::connect(one, name, length) != 0) peers::throw_errno("connect");
  const int other = ::accept(listener, nullptr, nullptr);
  if (other < 0) peers::throw_errno("accept");
  ::close(listener);
  const int on = 1;
  constexpr std::string_view simplest = "reno";
  for (const int each : {one, other}) {
    ::setsockopt(each, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(each, IPPROTO_TCP, TCP_CONGESTION, simplest.data(), simplest.size());
  }
  return {one, other};
}

/// Where in a buffer that is gone through cyclically the next bytes are.
struct cursor {
  std::byte* memory;
  std::size_t bytes, left;
  std::size_t done = 0;

  std::span<std::byte> next() const {
    const std::size_t at = done % bytes;
    return {memory + at, std::min({bytes - at, left, most_at_once})};
  }
  bool advance(ssize_t moved) {
    if (moved < 0 && errno != EAGAIN && errno != EINTR) peers::throw_errno("exchange");
    if (moved <= 0) return false;
    done += static_cast<std::size_t>(moved), left -= static_cast<std::size_t>(moved);
    return true;
  }
};

struct socket_rank {
  struct buffer {
    std::size_t count;
    pages out, in;
    float* data() { return reinterpret_cast<float*>(out.get()); }
    std::size_t size() const { return count; }
  };

  int rank_, size_;
  int to_right, from_left;
  peers::shared_barrier barrier_;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier() { barrier_.wait(); }
  buffer make_buffer(std::size_t count) {
    return {count, new_pages(count * sizeof(float)), new_pages(count * sizeof(float))};
  }
  void call(buffer& data) {
    const std::size_t bytes = data.count * sizeof(float), n = static_cast<std::size_t>(size_);
    cursor out{data.out.get(), bytes, bytes * 2 * (n - 1) / n}, in{data.in.get(), bytes, out.left};
    for (int idle = 0; out.left != 0 || in.left != 0;) {
      bool moved = false;
      if (const auto part = out.next(); !part.empty())
        moved |= out.advance(::send(to_right, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
      if (const auto part = in.next(); !part.empty())
        moved |= in.advance(::recv(from_left, part.data(), part.size(), MSG_DONTWAIT));
      idle = moved ? 0 : idle + 1;
      if (idle > tries_before_poll) wait(out.left != 0, in.left != 0);
    }
  }
  std::size_t wrong_after(int calls, buffer& data, const peers::values&) {
    const std::span in(reinterpret_cast<float*>(data.in.get()), data.count);
    return calls == 0 ? 0 : peers::values::not_of_rank((rank_ + size_ - 1) % size_, in);
  }

 private:
  void wait(bool to_send, bool to_receive) const {
    const auto events = [](bool wanted, int event) { return static_cast<short>(wanted ? event : 0); };
    pollfd both[] = {{to_right, events(to_send, POLLOUT), 0}, {from_left, events(to_receive, POLLIN), 0}};
    ::poll(both, 2, -1);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  const peers::arguments given(argc, argv);
  const auto n = static_cast<std::size_t>(given.ranks);
  if (n < 2) throw std::invalid_argument("at least 2 ranks");
  std::vector<int> to_right(n), from_left(n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    const auto [here, there] = connected_pair();
    to_right[rank] = here, from_left[(rank + 1) % n] = there;
    if (n == 2) {  // one connection, both ways
      to_right[1] = there, from_left[0] = here;
      break;
    }
  }
  const peers::shared_barrier barrier(given.ranks);
  return peers::on_forked_ranks(given.ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    socket_rank self{rank, given.ranks, to_right[at], from_left[at], barrier};
    peers::obey(given.path, given.name, self);
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
