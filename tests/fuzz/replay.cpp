// SPDX-License-Identifier: BSL-1.0
// The corpus of each target again, and inputs made of it: what a fuzzer has once found stays found, also
// where there is no fuzzer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "targets.hpp"

namespace {

using text = std::vector<std::uint8_t>;

std::vector<text> corpus_of(const char* target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& each : std::filesystem::directory_iterator(std::filesystem::path(FUZZ_CORPUS) / target)) {
    paths.push_back(each.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<text> inputs;
  for (const auto& each : paths) {
    std::ifstream file(each, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// The same ones in each run.
class mutator {
 public:
  text mutate(text input, const std::vector<text>& others) {
    for (std::size_t left = 1 + below(4); left > 0; --left) change(input, others);
    return input;
  }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_()) % end; }

  void change(text& input, const std::vector<text>& others) {
    static constexpr std::uint64_t edges[] = {0,
                                              1,
                                              0x7f,
                                              0x80,
                                              0xff,
                                              0xffff,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              std::uint64_t{1} << 62,
                                              ~std::uint64_t{0}};
    const std::size_t at = below(input.size() + 1);
    const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t left = input.size() - at;
    switch (left > 0 ? below(6) : 3) {
      case 0:  // a bit
        input[at] = static_cast<std::uint8_t>(input[at] ^ (1u << below(8)));
        break;
      case 1:  // a number at the edge of its type
        std::memcpy(input.data() + at, &edges[below(std::size(edges))],
                    std::min<std::size_t>(left, 1u << below(4)));
        break;
      case 2:  // less
        input.erase(here, here + static_cast<std::ptrdiff_t>(below(left + 1)));
        break;
      case 3:  // more
        input.insert(here, 1 + below(40), static_cast<std::uint8_t>(random_()));
        break;
      case 4: {  // twice
        const text again(here, here + static_cast<std::ptrdiff_t>(below(left + 1)));
        input.insert(here, again.begin(), again.end());
        break;
      }
      case 5: {  // the end of another
        const text& other = others[below(others.size())];
        const auto from = other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1));
        input.resize(at);
        input.insert(input.end(), from, other.end());
        break;
      }
    }
  }

  std::minstd_rand random_{20'240'601};
};

}  // namespace

TEST_CASE("what parses bytes from outside survives all bytes") {
  for (const fuzz::target& each : fuzz::targets) {
    const std::vector<text> corpus = corpus_of(each.name);
    REQUIRE(corpus.size() >= 5);
    mutator mutations;
    int runs = 0;
    const auto run = [&](const text& input) {
      each.run(fuzz::bytes(input));
      ++runs;
    };
    for (const text& input : corpus) run(input);
    for (int i = 0; i < each.mutations; ++i) {
      run(mutations.mutate(corpus[static_cast<std::size_t>(i) % corpus.size()], corpus));
    }
    std::printf("%s: %zu inputs in the corpus, %d runs\n", each.name, corpus.size(), runs);
    std::fflush(stdout);
    CHECK(runs >= each.mutations);
  }
}
