// SPDX-License-Identifier: BSL-1.0
// How a transport waits in the store for what another rank will publish.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <string>

namespace ddpp::detail {

/// How often those who wait for others check whether they will come.
inline constexpr std::chrono::milliseconds peer_check_interval{50};

/// Waits for `key`, until boot.deadline at most, and returns whether it is there. Throws what
/// boot.check_peers does.
inline bool await_key(const bootstrap& boot, const std::string& key) {
  for (;;) {
    const auto slice = std::min(time_left(boot.deadline), peer_check_interval);
    try {
      boot.store->wait({key}, slice);
      return true;
    } catch (const timeout_error&) {
      if (slice.count() == 0) return false;
    }
    try {
      boot.check_peers();
    } catch (const peer_lost&) {
      if (!boot.store->check({key})) throw;  // else it was its last word
    }
  }
}

/// All have come, and nobody looks at these keys any more: a store that lives long need not keep them.
inline void forget_keys(const bootstrap& boot, std::initializer_list<std::string> keys) {
  try {
    for (const std::string& key : keys) boot.store->delete_key(key);
  } catch (const error&) {  // the store has gone, and the keys with it
  }
}

}  // namespace ddpp::detail
