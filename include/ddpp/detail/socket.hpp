// SPDX-License-Identifier: BSL-1.0
// Stream sockets with deadlines: listening on a named address, connecting with retries, whole transfers.
// Every descriptor is close-on-exec and closed in a forked child; every call survives EINTR; no SIGPIPE.
#pragma once

#include <ddpp/detail/address.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/resolve.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <netinet/tcp.h>
#include <new>
#include <poll.h>
#include <span>
#include <string>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// Owns a descriptor. In a forked child it owns nothing: fork_registry has closed the descriptor there.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {
    if (fd_ >= 0) fork_registry::instance().add(fd_);
  }
  /// Owns what `open_one()` returns. Even a fork by another thread meanwhile leaves none open in the child.
  template <class F>
  static descriptor open(F&& open_one) {
    descriptor result;
    result.fd_ = fork_registry::instance().open(std::forward<F>(open_one));
    return result;
  }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), guard_(other.guard_) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      guard_ = other.guard_;
    }
    return *this;
  }
  ~descriptor() { reset(); }

  void reset() noexcept {
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || guard_.in_child()) return;
    fork_registry::instance().close(fd);
  }

  /// -1 when there is none, or none any more.
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
  fork_guard guard_;
};

inline std::string system_text(int code) { return std::generic_category().message(code); }

[[noreturn, gnu::cold]] inline void throw_out_of_descriptors(const std::string& what, int code) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  throw resource_error(text(what, ": ", system_text(code), " (this process may open ", limit.rlim_cur,
                            " descriptors: see ulimit -n)"));
}

/// What poll(2) takes, rounded up so that a woken waiter finds its deadline passed; at most a minute.
inline int poll_timeout(deadline until) {
  return static_cast<int>(std::min(time_left(until), std::chrono::milliseconds(60'000)).count());
}

/// Waits for one descriptor. False when the deadline has passed.
inline bool poll_until(int fd, short events, deadline until) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, poll_timeout(until));
    if (ready > 0) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
  }
}

/// Random bytes of the system, fit for keys.
inline void fill_random(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got > 0)
      out = out.subspan(static_cast<std::size_t>(got));
    else if (got < 0 && errno != EINTR)
      throw resource_error(text("getrandom: ", system_text(errno)));
  }
}

/// A descriptor that poll(2) can wait for and any thread can make ready.
class wake_event {
 public:
  wake_event() : fd_(descriptor::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
    if (!fd_) throw_out_of_descriptors("could not make an eventfd", errno);
  }
  int get() const noexcept { return fd_.get(); }
  void set() const noexcept {
    const std::uint64_t one = 1;
    while (::write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  void clear() const noexcept {
    std::uint64_t count = 0;
    while (::read(fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
    }
  }

 private:
  descriptor fd_;
};

inline void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

/// After this time a peer whose host (or the cable to it) is gone counts as gone.
inline constexpr std::chrono::seconds longest_silence{30};

/// For a connection within a host, where nothing is lost and no queue builds up: there a congestion control
/// that paces, as BBR does, only costs. Where "reno" is not to be had all stays as it is.
inline void prefer_local_speed(int fd) noexcept {
  constexpr std::string_view reno = "reno";
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno.data(), reno.size()));
}

/// For every connection: no delay for small messages; an idle one notices within longest_silence that nobody
/// answers for the other end.
inline void set_connection_options(int fd) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

/// For connections whose other end always reads: one that is sending notices it in the same time. (Not for
/// data: the kernel would count a peer that is alive and does not read for that long as gone. See is_silent.)
inline void expect_prompt_reader(int fd) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::chrono::milliseconds(longest_silence).count()));
}

/// What the end of a connection says of its other end; `code` is errno after a call that failed, else 0.
inline const char* end_without_goodbye(int code) noexcept {
  const bool is_silent = code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH;
  return is_silent ? "its host does not answer any more" : "its connection closed without a goodbye";
}

/// Whether nothing has come from the other end's system for longest_silence although something on its way
/// there was sent again and again. Who is alive and does not read acknowledges all the same. (Where nothing
/// is on its way, keep-alive finds out.)
inline bool is_silent(int fd) noexcept {
  constexpr unsigned fruitless = 3;
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return (info.tcpi_retransmits >= fruitless || info.tcpi_probes >= fruitless) &&
         std::chrono::milliseconds(info.tcpi_last_ack_recv) >= longest_silence;
}

inline descriptor open_socket(int family) {
  descriptor result =
      descriptor::open([=] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!result && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    throw_out_of_descriptors("could not open a socket", errno);
  }
  return result;
}

/// Listens on the first address of `host` that can be bound; port 0 takes any free one. Throws init_error
/// that lists what was tried; `in_use` (where given) is set when another socket listens there. All addresses
/// at once (0.0.0.0, ::) are refused: a listener is reachable by its name only.
inline descriptor listen_on(const std::string& host, std::uint16_t port, bool* in_use = nullptr) {
  if (in_use != nullptr) *in_use = false;
  std::string tried;
  const std::vector<address> addresses = resolve(host, port, tried);
  for (const address& each : addresses) {
    if (each.is_wildcard()) {
      throw init_error("will not listen on all addresses (" + each.text() +
                       "): name the address that the other ranks use");
    }
    descriptor fd = open_socket(each.family());
    if (fd) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (fd && ::bind(fd.get(), each.data(), each.length()) == 0 && ::listen(fd.get(), SOMAXCONN) == 0)
      return fd;
    if (errno == EADDRINUSE && in_use != nullptr) *in_use = true;
    append_text(tried, tried.empty() ? "" : ", ", each.text(), " (", system_text(errno), ")");
  }
  throw init_error(text("could not listen on ", host_and_port(host, port), "; tried: ", tried));
}

/// Accepts without blocking. An empty result leaves the reason in errno.
inline descriptor accept_on(int listener) {
  descriptor result;
  do {
    result =
        descriptor::open([=] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  } while (!result && errno == EINTR);
  if (result) set_connection_options(result.get());
  return result;
}

/// What is wrong with a socket that says it is connected, or 0. A port from the ephemeral range that nobody
/// listens on can be met by the connecting socket itself.
inline int connection_problem(int fd) {
  const address local = address::local_of(fd), peer = address::peer_of(fd);
  if (peer.length() == 0) return ECONNRESET;
  return local.same_host(peer) && local.port() == peer.port() ? ECONNREFUSED : 0;
}

/// A socket that will call from `from`, if that is given and of `to`'s kind. An empty result leaves the
/// reason in errno. Throws resource_error when there is no descriptor left.
inline descriptor open_caller(const address& to, const address& from) {
  descriptor fd = open_socket(to.family());
  if (!fd) return fd;
  set_connection_options(fd.get());
  if (from.family() != to.family()) return fd;
  set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT,
             1);  // the port is chosen with the other end in view
  if (::bind(fd.get(), from.data(), from.length()) == 0) return fd;
  const int code = errno;
  fd.reset();
  errno = code;
  return fd;
}

/// One attempt at one address. An empty result leaves the reason in `code` (ETIMEDOUT at the deadline).
inline descriptor connect_once(const address& to, deadline until, int& code, const address& from = {}) {
  descriptor fd = open_caller(to, from);
  if (!fd) return code = errno, descriptor();
  if (::connect(fd.get(), to.data(), to.length()) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return code = errno, descriptor();
    if (!poll_until(fd.get(), POLLOUT, until)) return code = ETIMEDOUT, descriptor();
    socklen_t length = sizeof(code);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
    if (code != 0) return descriptor();
  }
  code = connection_problem(fd.get());
  return code == 0 ? std::move(fd) : descriptor();
}

/// How long to wait between attempts: 1 ms doubling to 250 ms, with jitter so that many who were refused
/// together do not come back together.
class retry_pause {
 public:
  std::chrono::microseconds next() {
    std::uint32_t random = 0;
    fill_random(std::as_writable_bytes(std::span(&random, 1)));
    const auto pause = std::chrono::microseconds(longest_ / 2 + random % (longest_ / 2));
    longest_ = std::min(longest_ * 2, 250'000u);
    return pause;
  }
  /// Ends at the deadline.
  void sleep(deadline until) {
    std::this_thread::sleep_until(std::min(until, std::chrono::steady_clock::now() + next()));
  }

 private:
  std::uint32_t longest_ = 1'000;
};

enum class when_refused { retry, give_up };

/// One address of several that does not answer has this time before the next one is tried.
inline constexpr std::chrono::seconds longest_attempt{10};

/// Connects to the first address of `host` that answers, from `from` where that is given; tries all of them
/// again and again until the deadline (`give_up`: throws init_error once all have refused). Throws
/// timeout_error that lists what was tried.
inline descriptor connect_to(const std::string& host, std::uint16_t port, deadline until,
                             when_refused refused = when_refused::retry, const address& from = {}) {
  const auto begin = std::chrono::steady_clock::now();
  retry_pause pause;
  for (;;) {
    std::string tried;
    const std::vector<address> addresses = resolve(host, port, tried);
    bool all_refused = !addresses.empty();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const auto now = std::chrono::steady_clock::now();
      const auto share = (until - now) / static_cast<std::int64_t>(addresses.size() - i);
      const bool has_others = addresses.size() > 1;
      int code = 0;
      if (descriptor fd = connect_once(
              addresses[i], has_others ? now + std::min<deadline::duration>(share, longest_attempt) : until,
              code, from))
        return fd;
      all_refused = all_refused && code == ECONNREFUSED;
      append_text(tried, tried.empty() ? "" : ", ", addresses[i].text(), " (", system_text(code), ")");
    }
    if (refused == when_refused::give_up && all_refused) {
      throw init_error(text("nobody listens on ", host_and_port(host, port), " any more; tried: ", tried));
    }
    if (std::chrono::steady_clock::now() >= until) {
      const auto spent =
          std::chrono::round<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      throw timeout_error(text("could not connect to ", host_and_port(host, port), " within ", text_of(spent),
                               "; tried: ", tried));
    }
    pause.sleep(until);
  }
}

enum class transfer : std::uint8_t { done, closed, timed_out };

/// Sends all of it, or says why not.
inline transfer send_all(int fd, std::span<const std::byte> bytes, deadline until) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!poll_until(fd, POLLOUT, until)) return transfer::timed_out;
    } else if (errno != EINTR) {
      return transfer::closed;
    }
  }
  return transfer::done;
}

/// Receives until `bytes` is full, or says why not.
inline transfer receive_all(int fd, std::span<std::byte> bytes, deadline until) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return transfer::closed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!poll_until(fd, POLLIN, until)) return transfer::timed_out;
    } else if (errno != EINTR) {
      return transfer::closed;
    }
  }
  return transfer::done;
}

}  // namespace ddpp::detail
