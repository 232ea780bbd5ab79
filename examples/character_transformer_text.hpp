// SPDX-License-Identifier: BSL-1.0
// A text as numbers of its characters, and batches of windows of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "character_transformer_model.hpp"

class character_text {
 public:
  /// All files of a directory, one after the other by name, without links. Throws std::runtime_error if there
  /// is no text.
  explicit character_text(const std::string& directory) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::string text;
    for (const auto& file : files) {
      std::ifstream in(file, std::ios::binary);
      text.append(std::istreambuf_iterator<char>(in), {});
    }
    if (text.empty()) throw std::runtime_error("there is no text in " + directory);
    alphabet_ = text;
    std::sort(alphabet_.begin(), alphabet_.end());
    alphabet_.erase(std::unique(alphabet_.begin(), alphabet_.end()), alphabet_.end());
    numbers_ = encode(text);
  }

  std::size_t size() const { return numbers_.size(); }
  std::size_t vocabulary() const { return alphabet_.size(); }

  /// Step `step`'s windows, the same whatever the number of ranks: this is the rank's part of them.
  character_batch batch(int step, std::size_t windows, std::size_t length, int rank = 0,
                        int ranks = 1) const {
    std::mt19937 random(static_cast<std::uint32_t>(step));
    std::uniform_int_distribution<std::size_t> begin(0, size() - length - 1);
    const std::size_t share = windows / static_cast<std::size_t>(ranks);
    const std::size_t first = share * static_cast<std::size_t>(rank);
    character_batch mine{share, length};
    for (std::size_t window = 0; window < first + share; ++window) {
      const auto at = numbers_.begin() + static_cast<std::ptrdiff_t>(begin(random));
      if (window < first) continue;
      const auto end = at + static_cast<std::ptrdiff_t>(length);
      mine.characters.insert(mine.characters.end(), at, end);
      mine.following.insert(mine.following.end(), at + 1, end + 1);
    }
    return mine;
  }

  std::vector<std::uint8_t> encode(const std::string& text) const {
    std::vector<std::uint8_t> numbers;
    for (const char c : text)
      numbers.push_back(static_cast<std::uint8_t>(std::lower_bound(alphabet_.begin(), alphabet_.end(), c) -
                                                  alphabet_.begin()));
    return numbers;
  }
  std::string decode(const std::vector<std::uint8_t>& numbers) const {
    std::string text;
    for (const std::uint8_t number : numbers) text += alphabet_[number];
    return text;
  }

 private:
  std::string alphabet_;
  std::vector<std::uint8_t> numbers_;
};
