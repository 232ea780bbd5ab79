// SPDX-License-Identifier: BSL-1.0
// Names of blocks of shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <sys/random.h>
#include <sys/types.h>

namespace ddpp::detail {

/// Random, so that no two blocks are ever taken for each other.
using block_name = std::array<char, 32>;

inline block_name random_block_name() {
  std::array<unsigned char, 16> bytes{};
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  block_name name{};
  for (std::size_t i = 0; i < name.size(); ++i)
    name[i] = "0123456789abcdef"[bytes[i / 2] >> (i % 2 * 4) & 15];
  return name;
}

}  // namespace ddpp::detail
