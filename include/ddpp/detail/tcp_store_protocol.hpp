// SPDX-License-Identifier: BSL-1.0
// What a tcp_store's client and server say to each other after the handshake: messages of a code and a list
// of byte strings.
//
//   header:  code (4 bytes), number of strings (4), bytes that follow (8)
//   then each string: its length (4), its bytes
//
// One request gets one reply. A request that has to wait for keys may be taken back with `cancel`, which has
// no reply of its own: the request is answered with `cancelled`, or with its result if that was on its way
// already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddpp::detail::store_wire {

enum class request : std::uint32_t {
  set = 1,
  get,
  add,
  compare_set,
  append,
  check,
  wait,
  delete_key,
  num_keys,
  multi_set,
  queue_push,
  queue_pop,
  queue_length,
  hold,  ///< the key is held until the connection ends
  is_held,
  cancel
};

/// `invalid` carries the text of a usage_error, `cancelled` the keys that were not there.
enum class reply : std::uint32_t { ok = 1, invalid, cancelled };

inline constexpr std::size_t longest_key = 4096;
inline constexpr std::size_t longest_value = std::size_t{64} << 20;
/// What one message may hold in all: one of the longest values with its key, or very many small ones.
inline constexpr std::size_t longest_body = longest_value + (std::size_t{1} << 20);

struct header {
  std::uint32_t code = 0;
  std::uint32_t strings = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(header) == 16);

/// Whether a header may be believed, before anything is allocated for it.
inline bool plausible(const header& head, std::uint32_t highest_code) {
  return head.code >= 1 && head.code <= highest_code && head.bytes <= longest_body &&
         head.strings <= head.bytes / sizeof(std::uint32_t);
}

/// The bytes that `encode` appends beyond the header.
template <class Strings>
std::size_t body_bytes(const Strings& strings) {
  std::size_t bytes = 0;
  for (const auto& each : strings) bytes += sizeof(std::uint32_t) + each.size();
  return bytes;
}

/// Appends a message to `out`. No string may be longer than longest_value.
template <class Code, class Strings>
void encode(std::string& out, Code code, const Strings& strings) {
  const header head{static_cast<std::uint32_t>(code), static_cast<std::uint32_t>(strings.size()),
                    body_bytes(strings)};
  out.append(reinterpret_cast<const char*>(&head), sizeof(head));
  for (const auto& each : strings) {
    const auto length = static_cast<std::uint32_t>(each.size());
    out.append(reinterpret_cast<const char*>(&length), sizeof(length));
    out.append(each.data(), each.size());
  }
}

/// The strings of a body, pointing into it. Nothing when it is not exactly `count` strings.
inline std::optional<std::vector<std::string_view>> decode(std::string_view body, std::uint32_t count) {
  std::vector<std::string_view> strings;
  if (count > body.size() / sizeof(std::uint32_t)) return std::nullopt;
  strings.reserve(count);
  for (; count > 0; --count) {
    std::uint32_t length = 0;
    if (body.size() < sizeof(length)) return std::nullopt;
    std::memcpy(&length, body.data(), sizeof(length));
    body.remove_prefix(sizeof(length));
    if (body.size() < length) return std::nullopt;
    strings.push_back(body.substr(0, length));
    body.remove_prefix(length);
  }
  if (!body.empty()) return std::nullopt;
  return strings;
}

}  // namespace ddpp::detail::store_wire
