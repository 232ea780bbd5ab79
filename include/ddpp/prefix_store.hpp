// SPDX-License-Identifier: BSL-1.0
// A name space inside another store.
#pragma once

#include <ddpp/store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp {

/// Puts "prefix/" before every key. `num_keys`, `timeout` and `set_timeout` are those of the store below,
/// which is kept alive.
class prefix_store final : public store {
 public:
  prefix_store(const std::string& prefix, std::shared_ptr<store> base)
      : prefix_(prefix + '/'), base_(std::move(base)) {}

  using store::wait;

  void set(const std::string& key, std::string_view value) override { base_->set(prefix_ + key, value); }
  std::string get(const std::string& key) override { return base_->get(prefix_ + key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return base_->add(prefix_ + key, amount);
  }
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired) override {
    return base_->compare_set(prefix_ + key, expected, desired);
  }
  void append(const std::string& key, std::string_view tail) override { base_->append(prefix_ + key, tail); }
  bool check(const std::vector<std::string>& keys) override { return base_->check(prefixed(keys)); }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    base_->wait(prefixed(keys), timeout);
  }
  bool delete_key(const std::string& key) override { return base_->delete_key(prefix_ + key); }
  std::int64_t num_keys() override { return base_->num_keys(); }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    return base_->multi_get(prefixed(keys));
  }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    base_->multi_set(prefixed(keys), values);
  }
  void queue_push(const std::string& key, std::string_view value) override {
    base_->queue_push(prefix_ + key, value);
  }
  std::string queue_pop(const std::string& key) override { return base_->queue_pop(prefix_ + key); }
  std::int64_t queue_length(const std::string& key) override { return base_->queue_length(prefix_ + key); }
  std::shared_ptr<void> hold(const std::string& key) override { return base_->hold(prefix_ + key); }
  bool is_held(const std::string& key) override { return base_->is_held(prefix_ + key); }
  std::chrono::milliseconds timeout() const override { return base_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { base_->set_timeout(timeout); }
  bool outlives_ranks() const override { return base_->outlives_ranks(); }

 private:
  std::vector<std::string> prefixed(std::vector<std::string> keys) const {
    for (std::string& key : keys) key.insert(0, prefix_);
    return keys;
  }

  std::string prefix_;
  std::shared_ptr<store> base_;
};

}  // namespace ddpp
