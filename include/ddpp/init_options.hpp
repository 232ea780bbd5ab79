// SPDX-License-Identifier: BSL-1.0
// What `init` and `launch` are told.
#pragma once

#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace ddpp {

struct init_options {
  /// "env://" (when empty; DDPP_INIT_METHOD replaces that), "tcp://host:port", "file:///path"; the last two
  /// may end in "?rank=0&world_size=2".
  std::string init_method = {};
  int rank = -1;  ///< -1: from the init method or the environment; both or neither of rank and world_size
  int world_size = -1;
  /// For every operation of the communicator.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// For coming together, when it should differ from `timeout`.
  std::optional<std::chrono::milliseconds> init_timeout = {};
  /// Where the ranks meet, instead of an init method.
  std::shared_ptr<ddpp::store> store = {};
  /// Tells groups apart that the ranks make in different order, or at the same time. Those without a name are
  /// told apart by their order.
  std::string group_name = {};
  /// Keep a record of the latest operations and write it to "<this>.<group>.rank<n>.json" when the group
  /// fails, and whenever the process gets SIGUSR2 (unless the program handles that itself). `ddpp-explain`
  /// reads the files of all ranks. Empty: DDPP_FLIGHT_RECORDER, if that is set. Costs a lock and two looks at
  /// the clock per operation.
  std::string flight_recorder = {};
};

namespace detail {

inline void check_timeouts(const init_options& options) {
  if (options.timeout.count() <= 0 || (options.init_timeout && options.init_timeout->count() <= 0)) {
    throw usage_error("init: timeouts must be longer than 0 ms");
  }
}

}  // namespace detail
}  // namespace ddpp
