// SPDX-License-Identifier: BSL-1.0
// What a store holds, without its locks and waits: one dictionary and a set of queues, shared by the stores
// of this library so that they cannot differ in what a function means.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <charconv>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// `"a", "b" and 3 more`, with bytes that do not print as dots: keys in error texts.
[[gnu::cold]] inline std::string quoted_keys(const std::vector<std::string>& keys) {
  constexpr std::size_t most_keys = 8, most_bytes = 120;
  std::string list;
  for (std::size_t i = 0; i < keys.size() && i < most_keys; ++i) {
    std::string shown = keys[i].substr(0, most_bytes);
    for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '.';
    append_text(list, i > 0 ? ", \"" : "\"", shown, keys[i].size() > most_bytes ? "...\"" : "\"");
  }
  if (keys.size() > most_keys) append_text(list, " and ", keys.size() - most_keys, " more");
  return list;
}

inline void check_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  if (keys.size() == values.size()) return;
  throw usage_error(text("multi_set was given ", keys.size(), " keys and ", values.size(), " values"));
}

/// Not thread-safe, never waits. Queues have names of their own and are no keys.
class store_table {
 public:
  void set(const std::string& key, std::string_view value) { value_of(key) = value; }

  /// Null when the key is missing. Valid until the next change.
  const std::string* find(const std::string& key) const {
    const auto at = entries_.find(key);
    return at != entries_.end() && at->second.is_key ? &at->second.value : nullptr;
  }

  bool has_all(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      if (!find(key)) return false;
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
      if (problem != std::errc() || stop != end) refuse_sum(key, "is not a 64-bit decimal number");
    }
    if (__builtin_add_overflow(old, amount, &result)) refuse_sum(key, "would overflow 64 bits");
    return result;
  }

  std::int64_t add(const std::string& key, std::int64_t amount) {
    const std::int64_t result = sum(key, amount);
    if (amount != 0 || !find(key)) set(key, text(result));
    return result;
  }

  /// Whether `compare_set` would set.
  bool matches(const std::string& key, std::string_view expected) const {
    const std::string* const value = find(key);
    return value ? *value == expected : expected.empty();
  }

  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
    if (matches(key, expected)) set(key, desired);
    return value_or_empty(key);
  }

  std::string value_or_empty(const std::string& key) const {
    const std::string* const value = find(key);
    return value ? *value : std::string();
  }

  void append(const std::string& key, std::string_view tail) { value_of(key) += tail; }

  bool erase(const std::string& key) {
    const auto at = entries_.find(key);
    if (at == entries_.end() || !at->second.is_key) return false;
    at->second.is_key = false;
    at->second.value.clear();
    --keys_;
    drop_if_unused(at);
    return true;
  }

  std::int64_t size() const { return keys_; }

  void push(const std::string& key, std::string_view value) { entries_[key].queue.emplace_back(value); }

  /// Null when the queue is empty. Valid until the next change.
  const std::string* front(const std::string& key) const {
    const auto at = entries_.find(key);
    return at == entries_.end() || at->second.queue.empty() ? nullptr : &at->second.queue.front();
  }

  std::optional<std::string> pop(const std::string& key) {
    const auto at = entries_.find(key);
    if (at == entries_.end() || at->second.queue.empty()) return std::nullopt;
    std::string value = std::move(at->second.queue.front());
    at->second.queue.pop_front();
    drop_if_unused(at);
    return value;
  }

  std::int64_t length(const std::string& key) const {
    const auto at = entries_.find(key);
    return at == entries_.end() ? 0 : static_cast<std::int64_t>(at->second.queue.size());
  }

 private:
  /// The key and the queue of one name.
  struct entry {
    bool is_key = false;
    std::string value = {};
    std::list<std::string> queue = {};
  };
  using entries = std::unordered_map<std::string, entry>;

  std::string& value_of(const std::string& key) {
    entry& found = entries_[key];
    keys_ += found.is_key ? 0 : 1;
    found.is_key = true;
    return found.value;
  }

  void drop_if_unused(entries::iterator at) {
    if (!at->second.is_key && at->second.queue.empty()) entries_.erase(at);
  }

  [[noreturn, gnu::cold]] static void refuse_sum(const std::string& key, const char* why) {
    throw usage_error(text("add: the value of ", quoted_keys({key}), " ", why));
  }

  entries entries_;
  std::int64_t keys_ = 0;
};

}  // namespace ddpp::detail
