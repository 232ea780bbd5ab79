// SPDX-License-Identifier: BSL-1.0
// IDX files, the format of MNIST and its successors: a magic number with the number of dimensions, the
// extents as 32-bit big-endian numbers, then bytes. Compressed with gzip or not; where there is no zlib.h,
// not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
#if __has_include(<zlib.h>)
#include <zlib.h>
#else
#include <cstdio>
#endif

#if __has_include(<zlib.h>)
using unpacked_file = std::unique_ptr<gzFile_s, int (*)(gzFile)>;
inline unpacked_file open_unpacked(const std::string& path) { return {gzopen(path.c_str(), "rb"), gzclose}; }
/// How many bytes were read: at least 1, or the file has ended or is damaged.
inline int read_unpacked(const unpacked_file& file, void* to, unsigned most) {
  return gzread(file.get(), to, most);
}
#else
using unpacked_file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
inline unpacked_file open_unpacked(const std::string& path) {
  return {std::fopen(path.c_str(), "rb"), std::fclose};
}
inline int read_unpacked(const unpacked_file& file, void* to, unsigned most) {
  return static_cast<int>(std::fread(to, 1, most, file.get()));
}
#endif

struct idx_file {
  std::vector<std::size_t> extents;
  std::vector<std::uint8_t> bytes;
};

/// Throws std::runtime_error naming the file when it is missing, damaged, or not one of bytes in so many
/// dimensions.
inline idx_file read_idx(const std::string& path, std::size_t dimensions) {
  const unpacked_file file = open_unpacked(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  const auto read = [&](void* to, std::size_t count) {
    constexpr std::size_t most = 1u << 30;
    auto* at = static_cast<std::uint8_t*>(to);
    while (count > 0) {
      const int got = read_unpacked(file, at, static_cast<unsigned>(count < most ? count : most));
      if (got <= 0) throw std::runtime_error(path + " is damaged or ends early");
      at += got;
      count -= static_cast<std::size_t>(got);
    }
  };
  std::uint8_t magic[4];
  read(magic, sizeof magic);
  constexpr std::uint8_t type_byte = 8;
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != type_byte || magic[3] != dimensions) {
    throw std::runtime_error(path + " is not an IDX file of bytes in " + std::to_string(dimensions) +
                             " dimensions");
  }
  idx_file data;
  std::size_t total = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    std::uint8_t b[4];
    read(b, sizeof b);
    const std::size_t extent =
        std::size_t{b[0]} << 24 | std::size_t{b[1]} << 16 | std::size_t{b[2]} << 8 | b[3];
    constexpr std::size_t limit = std::size_t{1} << 32;
    if (extent > 0 && total > limit / extent)
      throw std::runtime_error(path + " claims to hold more than 4 GiB");
    total *= extent;
    data.extents.push_back(extent);
  }
  data.bytes.resize(total);
  read(data.bytes.data(), total);
  return data;
}
