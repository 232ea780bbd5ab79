// SPDX-License-Identifier: BSL-1.0
// A store for the threads of one process.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddpp {

/// Lives in this process's memory. After a fork the child has a copy of its own, which the parent does not
/// see.
class hash_store final : public store {
 public:
  explicit hash_store(std::chrono::milliseconds timeout = std::chrono::minutes(5)) : timeout_(timeout) {}
  hash_store(const hash_store&) = delete;
  hash_store& operator=(const hash_store&) = delete;

  using store::wait;

  void set(const std::string& key, std::string_view value) override {
    change([&] { table_.set(key, value); });
  }

  std::string get(const std::string& key) override {
    auto lock = acquire();
    wait_for(lock, {key}, timeout_);
    return *table_.find(key);
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return change([&] { return table_.add(key, amount); });
  }

  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired) override {
    return change([&] { return table_.compare_set(key, expected, desired); });
  }

  void append(const std::string& key, std::string_view tail) override {
    change([&] { table_.append(key, tail); });
  }

  bool check(const std::vector<std::string>& keys) override {
    const auto lock = acquire();
    return table_.has_all(keys);
  }

  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    auto lock = acquire();
    wait_for(lock, keys, timeout);
  }

  bool delete_key(const std::string& key) override {
    return change([&] { return table_.erase(key); });
  }

  std::int64_t num_keys() override {
    const auto lock = acquire();
    return table_.size();
  }

  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    auto lock = acquire();
    wait_for(lock, keys, timeout_);
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(*table_.find(key));
    return values;
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    detail::check_multi_set(keys, values);
    change([&] {
      for (std::size_t i = 0; i < keys.size(); ++i) table_.set(keys[i], values[i]);
    });
  }

  void queue_push(const std::string& key, std::string_view value) override {
    change([&] { table_.push(key, value); });
  }

  std::string queue_pop(const std::string& key) override {
    auto lock = acquire();
    std::optional<std::string> value;
    wait_until_true(lock, timeout_, {key}, [&] { return (value = table_.pop(key)).has_value(); });
    return *std::move(value);
  }

  std::int64_t queue_length(const std::string& key) override {
    const auto lock = acquire();
    return table_.length(key);
  }

  std::chrono::milliseconds timeout() const override {
    const std::lock_guard lock(mutex_);
    return timeout_;
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }

  /// Ends every present and later wait and call with `init_error(why)`: for a rank that will not come any
  /// more.
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = why;
    changed_.notify_all();
  }

 private:
  std::unique_lock<std::mutex> acquire() const {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    return lock;
  }

  void throw_if_failed() const {
    if (failed_) throw init_error(*failed_);
  }

  template <class F>
  std::invoke_result_t<F&> change(F&& f) {
    const auto lock = acquire();
    changed_.notify_all();  // the waiters look only once this function has let go of the mutex
    return f();
  }

  void wait_for(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                std::chrono::milliseconds timeout) {
    wait_until_true(lock, timeout, keys, [&] { return table_.has_all(keys); });
  }

  template <class Condition>
  void wait_until_true(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout,
                       const std::vector<std::string>& keys, Condition&& condition) {
    const deadline until = detail::deadline_after(timeout);
    const bool came = changed_.wait_until(lock, until, [&] { return failed_ || condition(); });
    throw_if_failed();
    if (!came) {
      throw timeout_error("hash_store: " + detail::quoted_keys(keys) + " did not come within " +
                          detail::text_of(timeout));
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  detail::store_table table_;
  std::optional<std::string> failed_;
  std::chrono::milliseconds timeout_;
};

}  // namespace ddpp
