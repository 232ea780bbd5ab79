// SPDX-License-Identifier: BSL-1.0
// What a store holds, without its locks and waits: one dictionary and a set of queues, shared by the stores
// of this library so that they cannot differ in what a function means.
#pragma once

#include <ddpp/error.hpp>

#include <charconv>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// `"a", "b" and 3 more`, with bytes that do not print as dots: keys in error texts.
inline std::string quoted_keys(const std::vector<std::string>& keys) {
  constexpr std::size_t most_keys = 8, most_bytes = 120;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < most_keys; ++i) {
    if (i > 0) text += ", ";
    text += '"';
    for (const char c : std::string_view(keys[i]).substr(0, most_bytes))
      text += c >= ' ' && c <= '~' ? c : '.';
    text += keys[i].size() > most_bytes ? "...\"" : "\"";
  }
  if (keys.size() > most_keys) text += " and " + std::to_string(keys.size() - most_keys) + " more";
  return text;
}

inline void check_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  if (keys.size() == values.size()) return;
  throw usage_error("multi_set was given " + std::to_string(keys.size()) + " keys and " +
                    std::to_string(values.size()) + " values");
}

/// Not thread-safe, never waits. Queues have names of their own and are no keys.
class store_table {
 public:
  void set(const std::string& key, std::string_view value) { values_[key] = value; }

  /// Null when the key is missing. Valid until the next change.
  const std::string* find(const std::string& key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? nullptr : &at->second;
  }

  bool has_all(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      if (!values_.contains(key)) return false;
    }
    return true;
  }

  /// What `add` would make of the value. Throws `usage_error` when it is no decimal number or would overflow.
  std::int64_t sum(const std::string& key, std::int64_t amount) const {
    const std::string* const value = find(key);
    std::int64_t old = 0, result = 0;
    if (value) {
      const char* const end = value->data() + value->size();
      const auto [stop, problem] = std::from_chars(value->data(), end, old);
      if (problem != std::errc() || stop != end) {
        throw usage_error("add: the value of " + quoted_keys({key}) + " is not a 64-bit decimal number");
      }
    }
    if (__builtin_add_overflow(old, amount, &result)) {
      throw usage_error("add: the counter " + quoted_keys({key}) + " would overflow 64 bits");
    }
    return result;
  }

  std::int64_t add(const std::string& key, std::int64_t amount) {
    const std::int64_t result = sum(key, amount);
    if (amount != 0 || !values_.contains(key)) values_[key] = std::to_string(result);
    return result;
  }

  /// Whether `compare_set` would set.
  bool matches(const std::string& key, std::string_view expected) const {
    const std::string* const value = find(key);
    return value ? *value == expected : expected.empty();
  }

  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
    if (matches(key, expected)) set(key, desired);
    const std::string* const value = find(key);
    return value ? *value : std::string();
  }

  void append(const std::string& key, std::string_view tail) { values_[key] += tail; }
  bool erase(const std::string& key) { return values_.erase(key) > 0; }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }

  void push(const std::string& key, std::string_view value) { queues_[key].emplace_back(value); }

  /// Null when the queue is empty. Valid until the next change.
  const std::string* front(const std::string& key) const {
    const auto at = queues_.find(key);
    return at == queues_.end() ? nullptr : &at->second.front();
  }

  std::optional<std::string> pop(const std::string& key) {
    const auto at = queues_.find(key);
    if (at == queues_.end()) return std::nullopt;
    std::string value = std::move(at->second.front());
    at->second.pop_front();
    if (at->second.empty()) queues_.erase(at);
    return value;
  }

  std::int64_t length(const std::string& key) const {
    const auto at = queues_.find(key);
    return at == queues_.end() ? 0 : static_cast<std::int64_t>(at->second.size());
  }

 private:
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;  // an empty queue is not kept
};

}  // namespace ddpp::detail
