// SPDX-License-Identifier: BSL-1.0
#include "comparison.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace perf {
namespace {

constexpr std::size_t longest_line = 120, size_width = 12;

/// The words of an algorithm's name, one above the other.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '_')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

std::size_t width_of(const table& table) {
  std::size_t width = 9;
  for (const std::string& word : words_of(table.algorithm)) width = std::max(width, word.size());
  return width + 3;
}

/// The tables first, ..., last - 1 stand beside each other.
struct block {
  std::size_t first, last;
};

std::vector<block> blocks_of(const std::vector<table>& tables) {
  std::vector<block> blocks;
  std::size_t line = 0;
  for (std::size_t first = 0, last = 0; first < tables.size(); first = last) {
    std::size_t width = 0;
    while (last < tables.size() && tables[last].transport == tables[first].transport) {
      width += width_of(tables[last++]);
    }
    if (blocks.empty() || line + width > longest_line) {
      blocks.push_back({first, last});
      line = size_width + width;
    } else {
      blocks.back().last = last;
      line += width;
    }
  }
  return blocks;
}

void print_right(std::string_view text, std::size_t width) {
  std::printf("%*.*s", static_cast<int>(width), static_cast<int>(text.size()), text.data());
}

void print_heads(const std::vector<table>& tables, block part) {
  print_right("#       size", size_width);
  for (std::size_t i = part.first; i < part.last; ++i) {
    const bool begins = i == part.first || tables[i].transport != tables[i - 1].transport;
    print_right(begins ? tables[i].transport + " " : std::string(), width_of(tables[i]));
  }
  std::size_t lines = 0;
  for (std::size_t i = part.first; i < part.last; ++i) {
    lines = std::max(lines, words_of(tables[i].algorithm).size());
  }
  for (std::size_t line = 0; line < lines; ++line) {
    std::printf("\n");
    print_right(line == 0 ? "#        (B)" : "#           ", size_width);
    for (std::size_t i = part.first; i < part.last; ++i) {
      const auto words = words_of(tables[i].algorithm);
      print_right(line < words.size() ? words[line] + " " : std::string(), width_of(tables[i]));
    }
  }
  std::printf("\n");
}

std::string microseconds_text(double time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", time < 100 ? 2 : time < 10000 ? 1 : 0, time);
  return text;
}

}  // namespace

const result& representative(const row& row) {
  return row.out_of_place.measured ? row.out_of_place : row.in_place;
}

std::size_t fastest(const std::vector<table>& tables, std::size_t row) {
  const auto time = [&](const table& table) { return representative(table.rows[row]).microseconds; };
  const auto least = std::min_element(tables.begin(), tables.end(),
                                      [&](const table& a, const table& b) { return time(a) < time(b); });
  return static_cast<std::size_t>(least - tables.begin());
}

void print_comparison(const plan& todo, const std::vector<table>& tables) {
  std::printf("# %s on %d ranks, comparison: time (us) by transport and algorithm, * the fastest\n",
              todo.collective.c_str(), todo.ranks);
  for (const block part : blocks_of(tables)) {
    std::printf("#\n");
    print_heads(tables, part);
    for (std::size_t row = 0; row < tables[0].rows.size(); ++row) {
      std::printf("%*zu", static_cast<int>(size_width), tables[0].rows[row].bytes);
      const std::size_t best = fastest(tables, row);
      for (std::size_t i = part.first; i < part.last; ++i) {
        const double time = representative(tables[i].rows[row]).microseconds;
        print_right(microseconds_text(time) + (i == best ? "*" : " "), width_of(tables[i]));
      }
      std::printf("\n");
    }
  }
  std::fflush(stdout);
}

}  // namespace perf
