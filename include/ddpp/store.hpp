// SPDX-License-Identifier: BSL-1.0
// A small shared dictionary through which ranks find each other, with the names of PyTorch's c10d stores:
// hash_store (one process), file_store (one file system), tcp_store (one server), prefix_store (a name
// space).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp {

/// Keys and values are any bytes. Every function is thread-safe and throws `timeout_error` (naming the keys
/// and the store) when its time is up; those without a timeout argument use `timeout()`.
class store {
 public:
  virtual ~store() = default;

  virtual void set(const std::string& key, std::string_view value) = 0;
  /// Waits until the key is there.
  virtual std::string get(const std::string& key) = 0;
  /// Adds to a decimal counter (0 when missing) and returns the new value. Adding 0 reads it.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Sets `desired` when the value equals `expected`, or when the key is missing and `expected` is empty.
  /// Returns what the value is afterwards (empty when the key is still missing).
  virtual std::string compare_set(const std::string& key, std::string_view expected,
                                  std::string_view desired) = 0;
  /// Appends to the value (empty when missing).
  virtual void append(const std::string& key, std::string_view tail) = 0;
  /// Whether all the keys are there now.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  /// Waits until all the keys are there.
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  /// Whether the key was there.
  virtual bool delete_key(const std::string& key) = 0;
  virtual std::int64_t num_keys() = 0;
  /// Waits for all; in the order of `keys`.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys) = 0;
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) = 0;
  /// First-in first-out queues; `queue_pop` waits for an element.
  virtual void queue_push(const std::string& key, std::string_view value) = 0;
  virtual std::string queue_pop(const std::string& key) = 0;
  virtual std::int64_t queue_length(const std::string& key) = 0;

  /// Says `key`, which nobody else uses, until the result goes or this process ends, however it ends. It is
  /// no key of the functions above. Null: this store cannot tell who ends.
  virtual std::shared_ptr<void> hold(const std::string& key) {
    (void)key;
    return nullptr;
  }
  /// Whether somebody says it now. True where this store cannot tell.
  virtual bool is_held(const std::string& key) {
    (void)key;
    return true;
  }

  virtual std::chrono::milliseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Whether it is there as long as anybody uses it. False: it may go with a rank, whose process serves it.
  virtual bool outlives_ranks() const { return true; }
};

}  // namespace ddpp
