// SPDX-License-Identifier: BSL-1.0
// A tcp_store's server: one thread, any number of clients, a client that waits costs nothing but its entry.
#pragma once

#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_listener.hpp>
#include <ddpp/detail/tcp_store_contents.hpp>
#include <ddpp/detail/tcp_store_protocol.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <sys/epoll.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// A socket on which a store will be served. Clients that connect before that wait in the kernel.
class store_listener {
 public:
  /// Listens on this address only; port 0: any free one. Throws init_error.
  store_listener(const std::string& host, std::uint16_t port, bool* in_use = nullptr)
      : host_(host), socket_(listen_on(host, port, in_use)), port_(address::local_of(socket_.get()).port()) {}

  const std::string& host() const noexcept { return host_; }
  /// Numeric: which of the host's it is.
  std::string address() const { return detail::address::local_of(socket_.get()).host(); }
  std::uint16_t port() const noexcept { return port_; }
  descriptor release() { return std::move(socket_); }

 private:
  std::string host_;
  descriptor socket_;
  std::uint16_t port_;
};

class store_server {
 public:
  store_server(store_listener listener, const credentials& known)
      : listener_(listener.release(), known),
        epoll_(descriptor::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })) {
    if (!epoll_) throw_out_of_descriptors("could not make an epoll descriptor", errno);
    thread_ = std::make_unique<joining_thread>([this] { run(); });
  }
  ~store_server() {
    stop_.store(true);
    if (!guard_.in_child()) wake_.set();
    thread_.reset();
  }
  store_server(const store_server&) = delete;
  store_server& operator=(const store_server&) = delete;

 private:
  using contents = store_contents;

  struct client {
    descriptor socket;
    std::string in = {};   // what has come and is not done
    std::string out = {};  // what is to be sent from `sent` on; nothing is read meanwhile
    std::size_t sent = 0;
    bool sending = false;  // what epoll was told to wait for
    bool parked = false;
    store_wire::request request = {};  // while parked, with its strings and what it waits for
    std::vector<std::string> strings = {};
    contents::topic topic = {};
    std::vector<std::string> held = {};  // keys, until the connection ends
  };

  void run() {
    std::vector<pollfd> entries;
    while (!stop_.load()) {
      entries.assign({{wake_.get(), POLLIN, 0}, {epoll_.get(), POLLIN, 0}});
      listener_.add_to(entries);
      const int ready = ::poll(entries.data(), entries.size(), poll_timeout(listener_.next_due()));
      if (ready > 0 && entries[1].revents != 0) serve_clients();
      // Last, so that a descriptor closed above cannot come back under an event of its predecessor.
      listener_.serve(
          [](const introduction& who) {
            return who.what == purpose::store ? admission::welcome : admission::not_expected;
          },
          [this](descriptor socket, const introduction&) { welcome(std::move(socket)); });
    }
  }

  void welcome(descriptor socket) {
    const int fd = socket.get();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
    const auto place = static_cast<std::size_t>(fd);
    if (clients_.size() <= place) clients_.resize(place + 1);
    clients_[place] = std::make_unique<client>(client{std::move(socket)});
  }

  void serve_clients() {
    std::array<epoll_event, 256> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.fd);
      if (clients_[place] == nullptr) continue;
      client& one = *clients_[place];
      bool keep = false;
      try {
        keep = serve(one);
      } catch (const std::exception&) {  // out of memory for this request: its client loses its connection
      }
      if (!keep) dismiss(one);
    }
  }

  void dismiss(client& one) {
    unpark(one);
    for (const std::string& key : one.held) contents_.let_go(key);
    clients_[static_cast<std::size_t>(one.socket.get())].reset();  // closing takes it out of the epoll set
  }

  /// False: the connection has ended, or is to be.
  bool serve(client& one) {
    if (one.out.empty()) {
      std::array<char, 65536> buffer;
      const ssize_t got = ::recv(one.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      if (got == 0) return false;
      one.in.append(buffer.data(), static_cast<std::size_t>(got));
    } else if (!send_out(one)) {
      return false;
    }
    if (!work(one)) return false;
    watch(one);
    return true;
  }

  /// Does the requests that have come in full, one reply at a time.
  bool work(client& one) {
    store_wire::header head;
    while (one.out.empty() && one.in.size() >= sizeof(head)) {
      std::memcpy(&head, one.in.data(), sizeof(head));
      if (!plausible(head, static_cast<std::uint32_t>(store_wire::request::cancel))) return false;
      if (one.in.size() - sizeof(head) < head.bytes) break;
      const std::string message = one.in.substr(0, sizeof(head) + head.bytes);
      one.in.erase(0, message.size());
      const auto strings = store_wire::decode(std::string_view(message).substr(sizeof(head)), head.strings);
      if (!strings) return false;
      const auto what = static_cast<store_wire::request>(head.code);
      if (what != store_wire::request::cancel) {
        if (one.parked) return false;  // one request at a time
        execute(one, what, {strings->begin(), strings->end()});
      } else if (one.parked) {
        cancel(one);
      }
      if (!send_out(one)) return false;
    }
    if (one.in.empty()) one.in.shrink_to_fit();
    return true;
  }

  void execute(client& one, store_wire::request what, std::vector<std::string> strings) {
    contents::outcome outcome = contents_.execute(what, strings);
    if (what == store_wire::request::hold && outcome.code == store_wire::reply::ok)
      one.held.push_back(strings[0]);
    if (outcome.must_wait) {
      one.parked = true;
      one.request = what;
      one.strings = std::move(strings);
      one.topic = std::move(outcome.missing);
      waiting_.push_back(&one);
      return;
    }
    encode(one.out, outcome.code, outcome.strings);
    for (const contents::topic& each : outcome.appeared) wake(each);
  }

  /// Tries again those who waited for this, first come first served.
  void wake(const contents::topic& topic) {
    for (std::size_t i = 0; i < waiting_.size() && contents_.is_there(topic);) {
      client& one = *waiting_[i];
      if (one.topic != topic) {
        ++i;
        continue;
      }
      unpark(one);
      try {
        execute(one, one.request, std::move(one.strings));
        if (!send_out(one)) ::shutdown(one.socket.get(), SHUT_RDWR);  // dismissed when epoll says so
        watch(one);
      } catch (const std::exception&) {
        ::shutdown(one.socket.get(), SHUT_RDWR);
      }
    }
  }

  void cancel(client& one) {
    unpark(one);
    encode(one.out, store_wire::reply::cancelled, contents_.missing(one.request, one.strings));
  }

  void unpark(client& one) {
    if (!one.parked) return;
    one.parked = false;
    std::erase(waiting_, &one);
  }

  /// Sends what the socket takes. False: the connection has ended.
  bool send_out(client& one) {
    while (one.sent < one.out.size()) {
      const ssize_t sent = ::send(one.socket.get(), one.out.data() + one.sent, one.out.size() - one.sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      one.sent += static_cast<std::size_t>(sent);
    }
    one.out.clear();
    one.sent = 0;
    if (one.out.capacity() > 65536) one.out.shrink_to_fit();
    return true;
  }

  /// Waits for the socket to take more while there is more to send, else for requests.
  void watch(client& one) {
    const bool sending = !one.out.empty();
    if (one.sending == sending) return;
    epoll_event event{};
    event.events = sending ? EPOLLOUT : EPOLLIN;
    event.data.fd = one.socket.get();
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, event.data.fd, &event);
    one.sending = sending;
  }

  tcp_listener listener_;
  descriptor epoll_;
  wake_event wake_;
  fork_guard guard_;
  std::atomic<bool> stop_{false};
  contents contents_;
  std::vector<std::unique_ptr<client>> clients_;  // by descriptor
  std::vector<client*> waiting_;                  // those parked, first come first
  std::unique_ptr<joining_thread> thread_;
};

}  // namespace ddpp::detail
