// SPDX-License-Identifier: BSL-1.0
// Where the named points (DDPP_PROBE) of the running program are: read from the notes in its own file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <iterator>
#include <link.h>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace support {

/// Addresses by name. A point in an inline function may be in several places.
using named_points = std::map<std::string, std::vector<std::uintptr_t>>;

namespace detail {

/// How far the program was moved when it was loaded.
inline std::uintptr_t load_bias() {
  std::uintptr_t bias = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = program->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &bias);
  return bias;
}

template <class T>
T read_at(std::string_view bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

inline constexpr std::size_t aligned(std::size_t size) { return (size + 3) / 4 * 4; }

}  // namespace detail

/// See probe.hpp for what the notes look like.
inline named_points points_of_this_program() {
  using detail::read_at;
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  const std::uintptr_t bias = detail::load_bias();
  named_points points;
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(file, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOTE) continue;
    const std::string_view notes = std::string_view(file).substr(section.sh_offset, section.sh_size);
    for (std::size_t at = 0; at < notes.size();) {
      const auto note = read_at<Elf64_Nhdr>(notes, at);
      const std::size_t owner = at + sizeof note, described = owner + detail::aligned(note.n_namesz);
      at = described + detail::aligned(note.n_descsz);
      if (note.n_type != 3 || std::string_view(notes.data() + owner) != "stapsdt") continue;
      const char* const provider = notes.data() + described + 3 * sizeof(std::uint64_t);
      const char* const name = provider + std::strlen(provider) + 1;
      const auto address = read_at<std::uint64_t>(notes, described);
      if (std::string_view(provider) == "ddpp" && address != 0) points[name].push_back(address + bias);
    }
  }
  return points;
}

}  // namespace support
