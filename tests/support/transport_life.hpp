// SPDX-License-Identifier: BSL-1.0
// What tests of the life and death of transports share: sending and receiving with a limit, what went wrong,
// and a rank that is killed while the others do something.
#pragma once

#include <ddpp/failure.hpp>
#include <ddpp/file_store.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <doctest/doctest.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "ranks.hpp"

namespace support {

inline std::shared_ptr<ddpp::store> store_in(const scratch_directory& directory) {
  return std::make_shared<ddpp::file_store>(directory.file("store"));
}

template <class T>
void send(T& t, std::size_t size, int peer, int tag) {
  const std::vector<std::byte> data(size);
  t.isend(data, peer, tag).wait(soon());
}

template <class T>
void receive(T& t, std::size_t size, int peer, int tag) {
  std::vector<std::byte> data(size);
  t.irecv(data, peer, tag).wait(soon());
}

/// Everyone hears from everyone.
template <class T>
void meet(T& t) {
  for (int peer = 0; peer < t.size(); ++peer) send(t, 1, peer, 9);
  for (int peer = 0; peer < t.size(); ++peer) receive(t, 1, peer, 9);
}

template <class Exception, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::size_t files_in(const char* directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

/// `size` processes; the one at `victim_rank` runs `victim` and is killed when it has said that it is ready.
/// The others, who run `survivor`, must hear of it with `text`.
template <class T>
void kill_one(int size, int victim_rank, const std::string& text,
              const std::function<void(T&, const std::function<void()>&)>& victim,
              const std::function<void(T&)>& survivor) {
  const scratch_directory directory;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(fork_child([&] {
      T t(bootstrap_of(rank, size, store_in(directory)), {});
      if (rank == victim_rank) {
        victim(t, [&] { (void)!::write(ready[1], "x", 1); });
        ::pause();
      }
      const auto begin = std::chrono::steady_clock::now();
      const ddpp::failure cause = cause_of([&] { survivor(t); });
      expect(cause.kind == ddpp::failure_kind::peer_lost && cause.rank == victim_rank, "the victim is lost");
      expect(contains(cause.text, text), cause.text + " says: " + text);
      expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "the news come soon");
    }));
  }
  char x = 0;
  REQUIRE(::read(ready[0], &x, 1) == 1);
  ::kill(children[static_cast<std::size_t>(victim_rank)], SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    CHECK(status_of(children[static_cast<std::size_t>(rank)]) == (rank == victim_rank ? SIGKILL : 0));
  }
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace support
