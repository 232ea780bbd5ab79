// SPDX-License-Identifier: BSL-1.0
// A store that nobody serves: processes that can open one file share the log in it.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/store_log.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// A process that dies takes nothing with it but a change it was in the midst of. Waiting looks at the file
/// every 10 ms at least. A forked child opens the file anew when it first uses the store.
class log_store : public store {
 public:
  /// Throws `init_error` when the file cannot be used.
  [[gnu::cold]] log_store(log_place place, std::chrono::milliseconds timeout)
      : place_(std::move(place)),
        timeout_(timeout.count()),
        opened_(new opened(place_, deadline_after(timeout))) {}
  log_store(const log_store&) = delete;
  log_store& operator=(const log_store&) = delete;
  [[gnu::cold]] ~log_store() override {
    for (opened* each = opened_.load(); each != nullptr;) {
      const std::unique_ptr<opened> owned(std::exchange(each, each->before));
    }
  }

  using store::wait;

  void set(const std::string& key, std::string_view value) override {
    change(*this).write(log_record::set, key, value);
  }

  std::string get(const std::string& key) override { return multi_get({key}).front(); }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    change adding(*this);
    const std::int64_t total = adding.now().sum(key, amount);
    if (amount != 0 || !adding.now().find(key)) adding.write(log_record::set, key, text(total));
    return total;
  }

  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired) override {
    change setting(*this);
    if (setting.now().matches(key, expected)) setting.write(log_record::set, key, desired);
    return setting.now().value_or_empty(key);
  }

  void append(const std::string& key, std::string_view tail) override {
    change(*this).write(log_record::append, key, tail);
  }

  bool check(const std::vector<std::string>& keys) override { return look(*this).now().has_all(keys); }

  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    await(has_keys, keys, timeout);
  }

  bool delete_key(const std::string& key) override {
    change deleting(*this);
    if (!deleting.now().find(key)) return false;
    deleting.write(log_record::erase, key, {});
    return true;
  }

  std::int64_t num_keys() override { return look(*this).now().size(); }

  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    const look all_there = await(has_keys, keys, timeout());
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(*all_there.now().find(key));
    return values;
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    check_multi_set(keys, values);
    change setting(*this);
    for (std::size_t i = 0; i < keys.size(); ++i) setting.write(log_record::set, keys[i], values[i]);
  }

  void queue_push(const std::string& key, std::string_view value) override {
    change(*this).write(log_record::push, key, value);
  }

  std::string queue_pop(const std::string& key) override {
    const deadline until = deadline_after(timeout());
    for (;;) {
      await(has_element, {key}, time_left(until));
      change popping(*this);
      const std::string* const front = popping.now().front(key);
      if (front == nullptr) continue;  // another was quicker
      std::string value = *front;
      popping.write(log_record::pop, key, {});
      return value;
    }
  }

  std::int64_t queue_length(const std::string& key) override { return look(*this).now().length(key); }

  std::shared_ptr<void> hold(const std::string& key) override {
    opened& at = file(deadline_after(timeout()));
    const std::lock_guard lock(at.mutex);
    return at.log.hold(key);
  }
  bool is_held(const std::string& key) override {
    opened& at = file(deadline_after(timeout()));
    const std::lock_guard lock(at.mutex);
    return at.log.is_held(key);
  }

  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds(timeout_.load()); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_.store(timeout.count()); }

 private:
  /// The file as one process has it open, its threads taking turns. After a fork the child has one of its own
  /// (the parent's mutex may have been held by a thread that does not exist there).
  struct opened {
    opened(const log_place& place, deadline until) : log(place, until) {}
    fork_guard guard = {};
    std::mutex mutex = {};
    store_log log;
    opened* before = nullptr;
  };

  opened& file(deadline until) {
    opened* const now = opened_.load();
    return now->guard.in_child() ? open_in_child(now, until) : *now;
  }

  [[gnu::cold]] opened& open_in_child(opened* now, deadline until) {
    while (now->guard.in_child()) {
      auto fresh = std::make_unique<opened>(place_, until);
      fresh->before = now;
      if (opened_.compare_exchange_strong(now, fresh.get())) return *fresh.release();
    }
    return *now;
  }

  /// The contents, which do not change in this process while it is there.
  class look {
   public:
    explicit look(log_store& of) : look(of, deadline_after(of.timeout())) {}
    [[gnu::noinline]] look(log_store& of, deadline until)
        : file_(of.file(until)), lock_(file_.mutex), now_(file_.log.read(until)) {}
    const store_table& now() const noexcept { return now_; }

   private:
    opened& file_;
    std::unique_lock<std::mutex> lock_;
    const store_table& now_;
  };

  /// Nobody else writes while it is there.
  class change {
   public:
    explicit change(log_store& of) : change(of, deadline_after(of.timeout())) {}
    [[gnu::noinline]] ~change() = default;
    const store_table& now() const noexcept { return change_.now(); }
    void write(log_record kind, const std::string& key, std::string_view value) {
      change_.write(kind, key, value);
    }

   private:
    [[gnu::noinline]] change(log_store& of, deadline until)
        : file_(of.file(until)), lock_(file_.mutex), change_(file_.log, until) {}
    opened& file_;
    std::unique_lock<std::mutex> lock_;
    store_log::change change_;
  };

  using condition = bool (*)(const store_table&, const std::vector<std::string>& keys);
  static bool has_keys(const store_table& now, const std::vector<std::string>& keys) {
    return now.has_all(keys);
  }
  static bool has_element(const store_table& now, const std::vector<std::string>& keys) {
    return now.length(keys.front()) > 0;
  }

  /// Returns the contents once they are as wanted.
  look await(condition wanted, const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
    const deadline until = deadline_after(timeout);
    for (poll_pause pause;; pause.sleep(until)) {
      look at(*this, until);
      if (wanted(at.now(), keys)) return at;
      if (time_left(until).count() > 0) continue;
      throw timeout_error(text("the store ", place_.name, ": ", quoted_keys(keys), " did not come within ",
                               text_of(timeout)));
    }
  }

  log_place place_;
  std::atomic<std::chrono::milliseconds::rep> timeout_;
  std::atomic<opened*> opened_;
};

}  // namespace ddpp::detail
