// SPDX-License-Identifier: BSL-1.0
// Those who connect to a rank and do not belong to its job: what they do, and where they find the ports.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace support {

/// Where this process listens, as a port scanner would find it.
inline std::vector<std::uint16_t> listening_ports() {
  std::vector<std::uint16_t> ports;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(each.path().filename().string());
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0) {
      ports.push_back(ddpp::detail::address::local_of(fd).port());
    }
  }
  return ports;
}

/// `silent`: connect and say nothing. `slow`: a byte of a plausible introduction every 100 ms. `random`: 4
/// KiB of it. `gone`: connect, close at once. `half`: half an introduction, and no end of it. `huge`: a whole
/// introduction without the secret, then the largest lengths of all protocols.
enum class stranger_kind : std::uint8_t { silent, slow, random, gone, half, huge };
inline constexpr std::array<std::pair<stranger_kind, const char*>, 6> all_strangers = {{
    {stranger_kind::silent, "say nothing"},
    {stranger_kind::slow, "send a byte every 100 ms"},
    {stranger_kind::random, "send random bytes"},
    {stranger_kind::gone, "connect and close"},
    {stranger_kind::half, "send half an introduction"},
    {stranger_kind::huge, "send no proof, and huge lengths"},
}};

/// A thread that keeps up to `most` connections to 127.0.0.1, spread over the ports, until it is destroyed.
/// Those that are closed are made anew, at once.
class strangers {
 public:
  strangers(stranger_kind kind, std::vector<std::uint16_t> ports, std::size_t most)
      : kind_(kind), ports_(std::move(ports)), open_(most), thread_([this] { run(); }) {}
  ~strangers() {
    stop_ = true;
    thread_.join();
  }
  strangers(const strangers&) = delete;
  strangers& operator=(const strangers&) = delete;

  std::uint64_t connections() const noexcept { return connections_; }

 private:
  struct visit {
    ddpp::detail::descriptor socket = {};
    std::size_t said = 0;
  };

  void run() {
    auto next_word = std::chrono::steady_clock::now();
    while (!stop_) {
      const auto now = std::chrono::steady_clock::now();
      const bool may_speak = now >= next_word;
      if (may_speak) next_word = now + std::chrono::milliseconds(100);
      bool is_idle = true;
      for (visit& each : open_) {
        if (!each.socket) is_idle = !connect(each) && is_idle;
        if (each.socket && kind_ == stranger_kind::slow && may_speak) say(each, 1);
        if (each.socket && has_ended(each)) each = {};
      }
      if (is_idle) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool connect(visit& one) {
    const std::uint16_t port = ports_[connections_ % ports_.size()];
    std::string unused;
    int code = 0;
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    try {
      one.socket =
          ddpp::detail::connect_once(ddpp::detail::resolve("127.0.0.1", port, unused).front(), soon, code);
    } catch (const ddpp::error&) {  // no descriptor left
    }
    if (!one.socket) return false;
    one.said = 0;
    ++connections_;
    if (kind_ == stranger_kind::random || kind_ == stranger_kind::huge) say(one, 4096);
    if (kind_ == stranger_kind::half) say(one, 40);
    if (kind_ == stranger_kind::gone) one = {};
    return true;
  }

  void say(visit& one, std::size_t most) {
    std::array<std::byte, 4096> words{};
    if (kind_ == stranger_kind::random) {
      std::uint32_t state = static_cast<std::uint32_t>(connections_) * 2654435761u + 1;
      for (std::byte& each : words) each = std::byte((state = state * 1664525u + 1013904223u) >> 24);
    } else {
      ddpp::detail::handshake_wire::proven_introduction said;
      said.what.mode = ddpp::detail::handshake_wire::mode::proven;
      said.what.purpose = ddpp::detail::purpose::data;
      words.fill(std::byte(0xff));
      std::memcpy(words.data(), &said, sizeof(said));
    }
    const std::size_t part = std::min(most, words.size() - one.said);
    const ssize_t sent = ::send(one.socket.get(), words.data() + one.said, part, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) one.said += static_cast<std::size_t>(sent);
  }

  static bool has_ended(const visit& one) {
    std::array<std::byte, 256> answer;
    const ssize_t got = ::recv(one.socket.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  const stranger_kind kind_;
  const std::vector<std::uint16_t> ports_;
  std::vector<visit> open_;
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace support
