// SPDX-License-Identifier: BSL-1.0
// Images of clothes, 28 by 28 grey values each, in ten classes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "idx_file.hpp"

struct image_set {
  std::size_t pixels = 0;  // of an image
  std::vector<std::uint8_t> images, labels;

  std::size_t size() const { return labels.size(); }
  const std::uint8_t* image(std::size_t i) const { return images.data() + i * pixels; }
};

/// `which` is "train" or "t10k". Throws std::runtime_error as read_idx, and when images and labels do not
/// fit.
inline image_set read_image_set(const std::string& directory, const std::string& which) {
  constexpr std::uint8_t classes = 10;
  const std::string begin = directory + "/" + which;
  idx_file images = read_idx(begin + "-images-idx3-ubyte.gz", 3);
  idx_file labels = read_idx(begin + "-labels-idx1-ubyte.gz", 1);
  if (images.extents[0] != labels.extents[0] || labels.bytes.empty()) {
    throw std::runtime_error(begin + "-*: " + std::to_string(images.extents[0]) + " images but " +
                             std::to_string(labels.extents[0]) + " labels");
  }
  if (*std::max_element(labels.bytes.begin(), labels.bytes.end()) >= classes) {
    throw std::runtime_error(begin + "-labels-idx1-ubyte.gz: a label is not one of 0 to 9");
  }
  return {images.extents[1] * images.extents[2], std::move(images.bytes), std::move(labels.bytes)};
}
