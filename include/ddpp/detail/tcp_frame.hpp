// SPDX-License-Identifier: BSL-1.0
// What precedes each message on a data connection.
#pragma once

#include <ddpp/fingerprint.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace ddpp::detail {

enum class frame_kind : std::uint32_t { message = 0x4D504444, goodbye = 0x47504444 };  // "DDPM", "DDPG"

/// As long as a cache line, so that what follows it is as aligned as the stream was before.
struct frame_header {
  frame_kind kind = frame_kind::message;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
  fingerprint print = {};  ///< the message's, or in a goodbye the last collective's
  std::uint64_t reserved = 0;
};
static_assert(sizeof(frame_header) == 64 && std::is_trivially_copyable_v<frame_header>);

/// Whether a header can be one of ours. Nothing is allocated for it before a receive of the same size is
/// there, or it has to be passed over.
inline bool plausible(const frame_header& header) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::size_t>::max() / 4;
  return header.kind == frame_kind::goodbye || (header.kind == frame_kind::message && header.bytes <= most);
}

}  // namespace ddpp::detail
