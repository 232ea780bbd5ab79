// SPDX-License-Identifier: BSL-1.0
// The one cause for which a group of ranks has failed, as it travels between ranks and through a backend's
// waits. The communicator turns it into the public exception of its kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace ddpp {

enum class failure_kind : std::uint8_t { none, peer_lost, timeout, mismatch, revoked };

/// The first cause wins and keeps its kind on every rank.
struct failure {
  failure_kind kind = failure_kind::none;
  int rank = -1;     ///< whom it is about: who was lost, was missing, differed, or revoked
  std::string text;  ///< the same on all ranks; backends may cut it at `longest_failure_text` bytes
};
inline constexpr std::size_t longest_failure_text = 1900;

/// Thrown by a backend's waits once the group has failed. Never leaves a public function.
class group_failed : public std::exception {
 public:
  explicit group_failed(failure cause) : cause_(std::move(cause)) {}
  const failure& cause() const noexcept { return cause_; }
  const char* what() const noexcept override { return cause_.text.c_str(); }

 private:
  failure cause_;
};

/// Thrown by a backend's waits when their deadline has passed. Never leaves a public function.
class deadline_passed : public std::exception {
 public:
  const char* what() const noexcept override { return "the deadline has passed"; }
};

using deadline = std::chrono::steady_clock::time_point;

}  // namespace ddpp
