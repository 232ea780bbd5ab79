// SPDX-License-Identifier: BSL-1.0
// A store for the processes that share a file system.
#pragma once

#include <ddpp/detail/log_store.hpp>

#include <chrono>
#include <string>

namespace ddpp {

/// All who open the same path share a store; the last to leave removes the file. A process that dies takes
/// nothing with it but a change it was in the midst of; if it was the last, the file stays, with its
/// contents. Waiting looks at the file every 10 ms at least. A forked child opens the file anew when it first
/// uses the store.
class file_store final : public detail::log_store {
 public:
  /// Creates the file (mode 0600) if it is missing. Throws `init_error` when it cannot be used: it is a
  /// symbolic link, another user's, writable for others, no store, on a file system without locks.
  explicit file_store(const std::string& path, std::chrono::milliseconds timeout = std::chrono::minutes(5))
      : log_store({path}, timeout) {}
};

}  // namespace ddpp
