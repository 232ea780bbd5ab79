// SPDX-License-Identifier: BSL-1.0
// Everything ddpp throws derives from ddpp::error. Its text says what happened, on which rank, in which
// operation, and what to do; `usage_error` never harms a communicator, the errors under `group_error` fail it
// for all its ranks.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddpp {

/// The root of the hierarchy.
class error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The call itself was wrong. Nothing was sent, no sequence number was taken, the communicator works on.
class usage_error : public error {
  using error::error;
};

/// Ranks could not come together: a bad address, half an environment, a rank number taken twice.
class init_error : public error {
  using error::error;
};

/// A peer does not know the job's secret, or there is none where one is needed.
class authentication_error : public init_error {
  using init_error::init_error;
};

/// The system refused something: memory, descriptors, threads. The text has what was asked and what there is.
class resource_error : public error {
  using error::error;
};

/// The reducer was used against its protocol. The text names the parameter.
class reducer_error : public error {
  using error::error;
};

/// Something did not come in time: a store's key, a connection, ranks in a collective (their names are
/// listed). In a collective it fails the communicator for all its ranks.
class timeout_error : public error {
  using error::error;
};

/// What fails a whole group: all ranks throw the same type, with the same cause.
class group_error : public error {
 public:
  group_error(const std::string& text, int rank, std::string operation, std::uint64_t sequence)
      : error(text), rank_(rank), operation_(std::move(operation)), sequence_(sequence) {}

  /// The rank that the error is about: who was lost, who differed, who revoked.
  int rank() const noexcept { return rank_; }
  /// What this rank was doing when it heard, and that operation's sequence number.
  const std::string& operation() const noexcept { return operation_; }
  std::uint64_t sequence() const noexcept { return sequence_; }

 private:
  int rank_;
  std::string operation_;
  std::uint64_t sequence_;
};

/// A rank died or left while others still needed it.
class peer_lost : public group_error {
  using group_error::group_error;
};

/// Ranks called different operations, or the same with other counts, types, reductions or roots.
class mismatch_error : public group_error {
  using group_error::group_error;
};

/// `revoke` was called, or an exception left an algorithm, a hook or a reduction on rank().
class revoked_error : public group_error {
  using group_error::group_error;
};

/// A rank started by `spawn` or `launch` failed. The first failure is the one reported.
class spawn_error : public error {
 public:
  spawn_error(const std::string& text, int rank, int exit_code, int signal)
      : error(text), rank_(rank), exit_code_(exit_code), signal_(signal) {}

  int rank() const noexcept { return rank_; }
  /// The exit status, or 0 when a signal ended the rank.
  int exit_code() const noexcept { return exit_code_; }
  /// The signal that ended the rank, or 0.
  int signal() const noexcept { return signal_; }

 private:
  int rank_, exit_code_, signal_;
};

}  // namespace ddpp
