// SPDX-License-Identifier: BSL-1.0
// A store for the processes that share a file system.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/store_log.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp {

/// All who open the same path share a store; the last to leave removes the file. A process that dies takes
/// nothing with it but a change it was in the midst of; if it was the last, the file stays, with its
/// contents. Waiting looks at the file every 10 ms at least. A forked child opens the file anew when it first
/// uses the store.
class file_store final : public store {
 private:
  using record = detail::log_record;

  /// The file as one process has it open, its threads taking turns. After a fork the child has one of its own
  /// (the parent's mutex may have been held by a thread that does not exist there).
  struct opened {
    opened(const std::string& path, deadline until) : log(path, until) {}
    detail::fork_guard guard = {};
    std::mutex mutex = {};
    detail::store_log log;
    opened* before = nullptr;
  };

  opened& file(deadline until) {
    opened* now = opened_.load();
    while (now->guard.in_child()) {
      auto fresh = std::make_unique<opened>(path_, until);
      fresh->before = now;
      if (opened_.compare_exchange_strong(now, fresh.get())) return *fresh.release();
    }
    return *now;
  }

  template <class F>
  auto change(F&& f) {
    const deadline until = detail::deadline_after(timeout());
    opened& mine = file(until);
    const std::lock_guard lock(mine.mutex);
    return mine.log.change(until, f);
  }

  template <class F>
  auto read(F&& f) {
    const deadline until = detail::deadline_after(timeout());
    opened& mine = file(until);
    const std::lock_guard lock(mine.mutex);
    return f(mine.log.read(until));
  }

  template <class Condition>
  void poll_until_true(const std::vector<std::string>& keys, std::chrono::milliseconds timeout,
                       Condition&& condition) {
    const deadline until = detail::deadline_after(timeout);
    opened& mine = file(until);
    for (detail::poll_pause pause;; pause.sleep(until)) {
      {
        const std::lock_guard lock(mine.mutex);
        if (condition(mine, until)) return;
      }
      if (detail::time_left(until).count() > 0) continue;
      throw timeout_error("the store " + path_ + ": " + detail::quoted_keys(keys) + " did not come within " +
                          detail::text_of(timeout));
    }
  }

 public:
  /// Creates the file (mode 0600) if it is missing. Throws `init_error` when it cannot be used: it is a
  /// symbolic link, another user's, writable for others, no store, on a file system without locks.
  explicit file_store(const std::string& path, std::chrono::milliseconds timeout = std::chrono::minutes(5))
      : path_(path), timeout_(timeout.count()), opened_(new opened(path, detail::deadline_after(timeout))) {}
  file_store(const file_store&) = delete;
  file_store& operator=(const file_store&) = delete;
  ~file_store() override {
    for (opened* each = opened_.load(); each != nullptr;) {
      const std::unique_ptr<opened> owned(std::exchange(each, each->before));
    }
  }

  using store::wait;

  void set(const std::string& key, std::string_view value) override {
    change([&](const auto&, const auto& write) { write(record::set, key, value); });
  }

  std::string get(const std::string& key) override { return multi_get({key}).front(); }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return change([&](const detail::store_table& now, const auto& write) {
      const std::int64_t total = now.sum(key, amount);
      if (amount != 0 || !now.find(key)) write(record::set, key, std::to_string(total));
      return total;
    });
  }

  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired) override {
    return change([&](const detail::store_table& now, const auto& write) {
      if (now.matches(key, expected)) write(record::set, key, desired);
      const std::string* const value = now.find(key);
      return value ? *value : std::string();
    });
  }

  void append(const std::string& key, std::string_view tail) override {
    change([&](const auto&, const auto& write) { write(record::append, key, tail); });
  }

  bool check(const std::vector<std::string>& keys) override {
    return read([&](const detail::store_table& now) { return now.has_all(keys); });
  }

  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    poll_until_true(keys, timeout,
                    [&](opened& file, deadline until) { return file.log.read(until).has_all(keys); });
  }

  bool delete_key(const std::string& key) override {
    return change([&](const detail::store_table& now, const auto& write) {
      if (!now.find(key)) return false;
      write(record::erase, key, {});
      return true;
    });
  }

  std::int64_t num_keys() override {
    return read([](const detail::store_table& now) { return now.size(); });
  }

  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    poll_until_true(keys, timeout(), [&](opened& file, deadline until) {
      const detail::store_table& now = file.log.read(until);
      if (!now.has_all(keys)) return false;
      for (const std::string& key : keys) values.push_back(*now.find(key));
      return true;
    });
    return values;
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    detail::check_multi_set(keys, values);
    change([&](const auto&, const auto& write) {
      for (std::size_t i = 0; i < keys.size(); ++i) write(record::set, keys[i], values[i]);
    });
  }

  void queue_push(const std::string& key, std::string_view value) override {
    change([&](const auto&, const auto& write) { write(record::push, key, value); });
  }

  std::string queue_pop(const std::string& key) override {
    std::optional<std::string> value;
    poll_until_true({key}, timeout(), [&](opened& file, deadline until) {
      if (file.log.read(until).length(key) == 0) return false;
      file.log.change(until, [&](const detail::store_table& now, const auto& write) {
        if (const std::string* const front = now.front(key)) {
          value = *front;
          write(record::pop, key, {});
        }
      });
      return value.has_value();
    });
    return *std::move(value);
  }

  std::int64_t queue_length(const std::string& key) override {
    return read([&](const detail::store_table& now) { return now.length(key); });
  }

  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds(timeout_.load()); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_.store(timeout.count()); }

 private:
  std::string path_;
  std::atomic<std::chrono::milliseconds::rep> timeout_;
  std::atomic<opened*> opened_;
};

}  // namespace ddpp
