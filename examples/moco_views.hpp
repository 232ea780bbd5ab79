// SPDX-License-Identifier: BSL-1.0
// Different looks at one image of clothes, as a network is to find them alike.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

#include "fashion_mnist.hpp"

/// Moved by up to three pixels, mirrored or not, lighter or darker, and with a part covered. The same numbers
/// give the same view.
template <class Column>
void random_view(const std::uint8_t* image, std::uint32_t seed, Column&& view) {
  constexpr int side = 28, furthest = 3;
  std::mt19937 random(seed);
  const auto number = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint32_t>(most - least + 1));
  };
  const int down = number(-furthest, furthest), right = number(-furthest, furthest);
  const bool mirrored = number(0, 1) == 1;
  const float brightness = static_cast<float>(number(60, 140)) / 100;
  const int top = number(0, side - 1), left = number(0, side - 1), height = number(0, 10),
            width = number(0, 10);
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const int from_y = y - down, from_x = (mirrored ? side - 1 - x : x) - right;
      const bool outside = from_y < 0 || from_y >= side || from_x < 0 || from_x >= side;
      const bool covered = y >= top && y < top + height && x >= left && x < left + width;
      view[y * side + x] =
          outside || covered ? 0.0f : brightness * static_cast<float>(image[from_y * side + from_x]) / 255;
    }
  }
}

/// Images as they are, or views of them, as columns.
inline Eigen::MatrixXf load_images(const image_set& images, std::span<const std::size_t> indices) {
  Eigen::MatrixXf columns(static_cast<Eigen::Index>(images.pixels),
                          static_cast<Eigen::Index>(indices.size()));
  for (std::size_t k = 0; k < indices.size(); ++k) {
    for (std::size_t p = 0; p < images.pixels; ++p)
      columns(static_cast<Eigen::Index>(p), static_cast<Eigen::Index>(k)) =
          static_cast<float>(images.image(indices[k])[p]) / 255;
  }
  return columns;
}
inline Eigen::MatrixXf load_views(const image_set& images, std::span<const std::size_t> indices,
                                  std::uint32_t which) {
  Eigen::MatrixXf columns(static_cast<Eigen::Index>(images.pixels),
                          static_cast<Eigen::Index>(indices.size()));
  for (std::size_t k = 0; k < indices.size(); ++k)
    random_view(images.image(indices[k]), static_cast<std::uint32_t>(indices[k]) * 1009 + which,
                columns.col(static_cast<Eigen::Index>(k)));
  return columns;
}
