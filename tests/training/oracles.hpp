// SPDX-License-Identifier: BSL-1.0
// Made by generate_oracles.py; not to be edited.
// torch 1.13.0a0, scikit-learn 1.2.1
// clang-format off
#pragma once

#include <ddpp/bucket_assignment.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace oracles {

struct permutation { std::size_t count; std::uint64_t seed; std::vector<std::size_t> order; };
inline const std::vector<permutation> permutations = {
  {0, 0u, {}},
  {1, 5u, {0}},
  {2, 1u, {1, 0}},
  {10, 0u, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
  {17, 7u, {9, 5, 3, 11, 7, 8, 6, 16, 12, 10, 13, 1, 15, 14, 4, 2, 0}},
  {40, 4294967299u, {26, 33, 37, 20, 32, 25, 10, 21, 2, 1, 14, 35, 9, 12, 4, 39, 31, 38, 24, 18, 36, 19, 8, 22, 6, 13, 23, 28, 17, 29, 30, 7, 3, 27, 0, 34, 11, 5, 16, 15}},
  {25, 9223372036854775807u, {21, 19, 15, 10, 7, 5, 11, 1, 13, 9, 17, 18, 8, 24, 3, 23, 16, 22, 12, 6, 0, 2, 4, 14, 20}},
  {31, 4294967295u, {4, 19, 14, 6, 16, 11, 23, 25, 15, 29, 20, 18, 21, 30, 13, 7, 8, 2, 3, 17, 27, 9, 1, 28, 5, 22, 0, 10, 12, 24, 26}},
};

struct permutation_sum { std::size_t count; std::uint64_t seed, sum; };
inline const std::vector<permutation_sum> permutation_sums = {
  {60000, 1u, 54051541603727u},
  {1000003, 99u, 249920316205648190u},
};

struct sampling { std::size_t count; bool shuffle, drop_last; std::vector<std::vector<std::size_t>> ranks; };
inline const std::vector<sampling> samplings = {
  {0, false, true, {{}}},
  {0, true, true, {{}}},
  {0, false, true, {{}, {}}},
  {0, true, true, {{}, {}}},
  {0, false, true, {{}, {}, {}, {}}},
  {0, true, true, {{}, {}, {}, {}}},
  {0, false, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {0, true, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {1, false, false, {{0}}},
  {1, false, true, {{0}}},
  {1, true, false, {{0}}},
  {1, true, true, {{0}}},
  {1, false, false, {{0}, {0}}},
  {1, false, true, {{}, {}}},
  {1, true, false, {{0}, {0}}},
  {1, true, true, {{}, {}}},
  {1, false, false, {{0}, {0}, {0}, {0}}},
  {1, false, true, {{}, {}, {}, {}}},
  {1, true, false, {{0}, {0}, {0}, {0}}},
  {1, true, true, {{}, {}, {}, {}}},
  {1, false, false, {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}}},
  {1, false, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {1, true, false, {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}}},
  {1, true, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {4, false, false, {{0, 1, 2, 3}}},
  {4, false, true, {{0, 1, 2, 3}}},
  {4, true, false, {{3, 1, 0, 2}}},
  {4, true, true, {{3, 1, 0, 2}}},
  {4, false, false, {{0, 2}, {1, 3}}},
  {4, false, true, {{0, 2}, {1, 3}}},
  {4, true, false, {{3, 0}, {1, 2}}},
  {4, true, true, {{3, 0}, {1, 2}}},
  {4, false, false, {{0}, {1}, {2}, {3}}},
  {4, false, true, {{0}, {1}, {2}, {3}}},
  {4, true, false, {{3}, {1}, {0}, {2}}},
  {4, true, true, {{3}, {1}, {0}, {2}}},
  {4, false, false, {{0}, {1}, {2}, {3}, {0}, {1}, {2}, {3}, {0}}},
  {4, false, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {4, true, false, {{3}, {1}, {0}, {2}, {3}, {1}, {0}, {2}, {3}}},
  {4, true, true, {{}, {}, {}, {}, {}, {}, {}, {}, {}}},
  {10, false, false, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}},
  {10, false, true, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}},
  {10, true, false, {{1, 4, 9, 6, 3, 5, 0, 2, 8, 7}}},
  {10, true, true, {{1, 4, 9, 6, 3, 5, 0, 2, 8, 7}}},
  {10, false, false, {{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}}},
  {10, false, true, {{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}}},
  {10, true, false, {{1, 9, 3, 0, 8}, {4, 6, 5, 2, 7}}},
  {10, true, true, {{1, 9, 3, 0, 8}, {4, 6, 5, 2, 7}}},
  {10, false, false, {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}},
  {10, false, true, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
  {10, true, false, {{1, 3, 8}, {4, 5, 7}, {9, 0, 1}, {6, 2, 4}}},
  {10, true, true, {{1, 3}, {4, 5}, {9, 0}, {6, 2}}},
  {10, false, false, {{0, 9}, {1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 4}, {6, 5}, {7, 6}, {8, 7}}},
  {10, false, true, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}},
  {10, true, false, {{1, 7}, {4, 1}, {9, 4}, {6, 9}, {3, 6}, {5, 3}, {0, 5}, {2, 0}, {8, 2}}},
  {10, true, true, {{1}, {4}, {9}, {6}, {3}, {5}, {0}, {2}, {8}}},
  {23, false, false, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}}},
  {23, false, true, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}}},
  {23, true, false, {{3, 11, 18, 8, 22, 21, 6, 16, 1, 13, 7, 17, 15, 12, 14, 9, 20, 0, 10, 2, 19, 4, 5}}},
  {23, true, true, {{3, 11, 18, 8, 22, 21, 6, 16, 1, 13, 7, 17, 15, 12, 14, 9, 20, 0, 10, 2, 19, 4, 5}}},
  {23, false, false, {{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}, {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 0}}},
  {23, false, true, {{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20}, {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21}}},
  {23, true, false, {{3, 18, 22, 6, 1, 7, 15, 14, 20, 10, 19, 5}, {11, 8, 21, 16, 13, 17, 12, 9, 0, 2, 4, 3}}},
  {23, true, true, {{3, 18, 22, 6, 1, 7, 15, 14, 20, 10, 19}, {11, 8, 21, 16, 13, 17, 12, 9, 0, 2, 4}}},
  {23, false, false, {{0, 4, 8, 12, 16, 20}, {1, 5, 9, 13, 17, 21}, {2, 6, 10, 14, 18, 22}, {3, 7, 11, 15, 19, 0}}},
  {23, false, true, {{0, 4, 8, 12, 16}, {1, 5, 9, 13, 17}, {2, 6, 10, 14, 18}, {3, 7, 11, 15, 19}}},
  {23, true, false, {{3, 22, 1, 15, 20, 19}, {11, 21, 13, 12, 0, 4}, {18, 6, 7, 14, 10, 5}, {8, 16, 17, 9, 2, 3}}},
  {23, true, true, {{3, 22, 1, 15, 20}, {11, 21, 13, 12, 0}, {18, 6, 7, 14, 10}, {8, 16, 17, 9, 2}}},
  {23, false, false, {{0, 9, 18}, {1, 10, 19}, {2, 11, 20}, {3, 12, 21}, {4, 13, 22}, {5, 14, 0}, {6, 15, 1}, {7, 16, 2}, {8, 17, 3}}},
  {23, false, true, {{0, 9}, {1, 10}, {2, 11}, {3, 12}, {4, 13}, {5, 14}, {6, 15}, {7, 16}, {8, 17}}},
  {23, true, false, {{3, 13, 10}, {11, 7, 2}, {18, 17, 19}, {8, 15, 4}, {22, 12, 5}, {21, 14, 3}, {6, 9, 11}, {16, 20, 18}, {1, 0, 8}}},
  {23, true, true, {{3, 13}, {11, 7}, {18, 17}, {8, 15}, {22, 12}, {21, 14}, {6, 9}, {16, 20}, {1, 0}}},
};

struct bucketing { std::vector<ddpp::gradient_size> gradients; std::vector<std::size_t> limits; ddpp::bucket_layout buckets; };
inline const std::vector<bucketing> bucketings = {
  {{{ddpp::dtype::float32, 64}, {ddpp::dtype::float32, 520}, {ddpp::dtype::float32, 24}, {ddpp::dtype::float32, 4}, {ddpp::dtype::float32, 540}, {ddpp::dtype::float32, 232}, {ddpp::dtype::float32, 56}, {ddpp::dtype::float32, 1336}}, {100, 2000}, {{0, 1}, {2, 3, 4, 5, 6, 7}}},
  {{{ddpp::dtype::float16, 32}, {ddpp::dtype::float16, 82}, {ddpp::dtype::float32, 88}, {ddpp::dtype::float16, 56}, {ddpp::dtype::float64, 120}, {ddpp::dtype::float64, 416}, {ddpp::dtype::float32, 1260}, {ddpp::dtype::float16, 62}, {ddpp::dtype::float32, 140}}, {100, 2000}, {{0, 1}, {2, 6}, {3, 7}, {4}, {5}, {8}}},
  {{{ddpp::dtype::float32, 184}}, {100, 2000}, {{0}}},
  {{{ddpp::dtype::float16, 254}, {ddpp::dtype::float64, 296}, {ddpp::dtype::float32, 60}, {ddpp::dtype::float32, 48}, {ddpp::dtype::float16, 58}, {ddpp::dtype::float64, 344}, {ddpp::dtype::float64, 1152}, {ddpp::dtype::float32, 176}, {ddpp::dtype::float16, 52}, {ddpp::dtype::float16, 234}, {ddpp::dtype::float16, 74}, {ddpp::dtype::float64, 2560}, {ddpp::dtype::float64, 2496}, {ddpp::dtype::float32, 12}, {ddpp::dtype::float64, 144}, {ddpp::dtype::float64, 2520}, {ddpp::dtype::float16, 42}}, {100, 2000}, {{0}, {1}, {2, 3}, {4, 8, 9, 10, 16}, {5, 6, 11}, {7, 13}, {12}, {14, 15}}},
  {{{ddpp::dtype::float32, 8}, {ddpp::dtype::float32, 216}, {ddpp::dtype::float32, 72}, {ddpp::dtype::float32, 44}, {ddpp::dtype::float32, 112}, {ddpp::dtype::float32, 76}, {ddpp::dtype::float32, 556}, {ddpp::dtype::float32, 72}, {ddpp::dtype::float32, 1248}, {ddpp::dtype::float32, 472}, {ddpp::dtype::float32, 68}, {ddpp::dtype::float32, 552}, {ddpp::dtype::float32, 88}, {ddpp::dtype::float32, 1200}, {ddpp::dtype::float32, 48}}, {1, 500, 1000}, {{0}, {1, 2, 3, 4, 5}, {6, 7, 8}, {9, 10, 11}, {12, 13}, {14}}},
  {{{ddpp::dtype::float32, 112}, {ddpp::dtype::float64, 224}, {ddpp::dtype::float16, 226}, {ddpp::dtype::float16, 6}, {ddpp::dtype::float16, 78}, {ddpp::dtype::float64, 312}}, {400}, {{0}, {1, 5}, {2, 3, 4}}},
  {{{ddpp::dtype::float32, 548}, {ddpp::dtype::float32, 84}, {ddpp::dtype::float32, 28}, {ddpp::dtype::float32, 1272}, {ddpp::dtype::float32, 564}, {ddpp::dtype::float32, 124}, {ddpp::dtype::float32, 64}, {ddpp::dtype::float32, 504}, {ddpp::dtype::float32, 408}, {ddpp::dtype::float32, 108}, {ddpp::dtype::float32, 460}, {ddpp::dtype::float32, 452}, {ddpp::dtype::float32, 448}, {ddpp::dtype::float32, 8}, {ddpp::dtype::float32, 104}, {ddpp::dtype::float32, 136}, {ddpp::dtype::float32, 200}, {ddpp::dtype::float32, 108}}, {100, 2000}, {{0}, {1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11, 12}, {13, 14, 15, 16, 17}}},
  {{{ddpp::dtype::float32, 80}, {ddpp::dtype::float64, 288}, {ddpp::dtype::float32, 124}, {ddpp::dtype::float32, 108}, {ddpp::dtype::float16, 620}}, {100, 2000}, {{0, 2}, {1}, {3}, {4}}},
  {{{ddpp::dtype::float32, 564}, {ddpp::dtype::float32, 144}, {ddpp::dtype::float32, 1252}, {ddpp::dtype::float32, 124}, {ddpp::dtype::float32, 524}, {ddpp::dtype::float32, 68}, {ddpp::dtype::float32, 12}, {ddpp::dtype::float32, 556}, {ddpp::dtype::float32, 200}, {ddpp::dtype::float32, 208}}, {400}, {{0}, {1, 2}, {3, 4}, {5, 6, 7}, {8, 9}}},
  {{{ddpp::dtype::float64, 1088}, {ddpp::dtype::float32, 496}, {ddpp::dtype::float16, 26}, {ddpp::dtype::float16, 78}, {ddpp::dtype::float32, 100}, {ddpp::dtype::float32, 144}}, {400}, {{0}, {1}, {2, 3}, {4, 5}}},
  {{{ddpp::dtype::float32, 172}, {ddpp::dtype::float32, 1284}, {ddpp::dtype::float32, 1396}, {ddpp::dtype::float32, 532}, {ddpp::dtype::float32, 404}, {ddpp::dtype::float32, 8}, {ddpp::dtype::float32, 1228}}, {1, 500, 1000}, {{0}, {1}, {2}, {3, 4, 5, 6}}},
  {{{ddpp::dtype::float32, 1396}, {ddpp::dtype::float16, 46}, {ddpp::dtype::float16, 600}, {ddpp::dtype::float32, 56}, {ddpp::dtype::float16, 658}, {ddpp::dtype::float32, 204}, {ddpp::dtype::float32, 456}, {ddpp::dtype::float32, 424}, {ddpp::dtype::float16, 78}, {ddpp::dtype::float32, 1308}, {ddpp::dtype::float32, 416}, {ddpp::dtype::float64, 328}, {ddpp::dtype::float32, 508}, {ddpp::dtype::float16, 620}, {ddpp::dtype::float32, 48}, {ddpp::dtype::float64, 168}, {ddpp::dtype::float32, 104}, {ddpp::dtype::float64, 360}}, {1024}, {{0}, {1, 2, 4}, {3, 5, 6, 7}, {8, 13}, {9}, {10, 12, 14, 16}, {11, 15, 17}}},
  {{{ddpp::dtype::float32, 68}}, {1099511627776}, {{0}}},
  {{{ddpp::dtype::float32, 1320}, {ddpp::dtype::float64, 264}, {ddpp::dtype::float16, 236}, {ddpp::dtype::float32, 200}}, {1024}, {{0}, {1}, {2}, {3}}},
  {{{ddpp::dtype::float32, 156}}, {100, 2000}, {{0}}},
  {{{ddpp::dtype::float32, 1276}, {ddpp::dtype::float64, 1112}, {ddpp::dtype::float64, 1000}, {ddpp::dtype::float16, 118}, {ddpp::dtype::float64, 416}, {ddpp::dtype::float32, 112}, {ddpp::dtype::float16, 618}, {ddpp::dtype::float64, 2488}, {ddpp::dtype::float32, 88}, {ddpp::dtype::float64, 424}, {ddpp::dtype::float64, 32}, {ddpp::dtype::float32, 88}, {ddpp::dtype::float64, 240}, {ddpp::dtype::float16, 22}, {ddpp::dtype::float64, 264}, {ddpp::dtype::float16, 32}, {ddpp::dtype::float16, 76}, {ddpp::dtype::float32, 1216}}, {400}, {{0}, {1}, {2}, {3, 6}, {4}, {5, 8, 11, 17}, {7}, {9}, {10, 12, 14}, {13, 15, 16}}},
  {{{ddpp::dtype::float32, 572}, {ddpp::dtype::float32, 160}, {ddpp::dtype::float32, 216}, {ddpp::dtype::float32, 552}, {ddpp::dtype::float32, 128}, {ddpp::dtype::float32, 80}}, {100, 2000}, {{0}, {1, 2, 3, 4, 5}}},
  {{{ddpp::dtype::float64, 352}, {ddpp::dtype::float64, 2624}, {ddpp::dtype::float32, 1300}, {ddpp::dtype::float32, 152}, {ddpp::dtype::float32, 1200}, {ddpp::dtype::float32, 140}, {ddpp::dtype::float32, 1356}, {ddpp::dtype::float32, 496}}, {1099511627776}, {{0, 1}, {2, 3, 4, 5, 6, 7}}},
  {{{ddpp::dtype::float32, 132}}, {400}, {{0}}},
  {{{ddpp::dtype::float64, 384}, {ddpp::dtype::float32, 192}, {ddpp::dtype::float32, 456}, {ddpp::dtype::float64, 1104}, {ddpp::dtype::float16, 32}, {ddpp::dtype::float16, 36}, {ddpp::dtype::float16, 52}, {ddpp::dtype::float64, 2680}, {ddpp::dtype::float64, 2528}, {ddpp::dtype::float16, 630}, {ddpp::dtype::float16, 26}, {ddpp::dtype::float16, 30}, {ddpp::dtype::float16, 26}, {ddpp::dtype::float64, 392}, {ddpp::dtype::float64, 376}}, {1024}, {{0, 3}, {1, 2}, {4, 5, 6, 9, 10, 11, 12}, {7}, {8}, {13, 14}}},
  {{{ddpp::dtype::float32, 184}, {ddpp::dtype::float32, 140}, {ddpp::dtype::float32, 216}, {ddpp::dtype::float32, 184}, {ddpp::dtype::float32, 1236}, {ddpp::dtype::float32, 1304}, {ddpp::dtype::float32, 56}, {ddpp::dtype::float32, 160}, {ddpp::dtype::float32, 1216}, {ddpp::dtype::float32, 440}, {ddpp::dtype::float32, 68}, {ddpp::dtype::float32, 1300}, {ddpp::dtype::float32, 1372}, {ddpp::dtype::float32, 140}}, {100, 2000}, {{0}, {1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}, {12, 13}}},
  {{{ddpp::dtype::float32, 108}, {ddpp::dtype::float16, 106}, {ddpp::dtype::float16, 120}, {ddpp::dtype::float16, 20}, {ddpp::dtype::float16, 600}, {ddpp::dtype::float16, 72}}, {400}, {{0}, {1, 2, 3, 4}, {5}}},
  {{{ddpp::dtype::float32, 1244}, {ddpp::dtype::float32, 584}, {ddpp::dtype::float32, 484}, {ddpp::dtype::float32, 136}, {ddpp::dtype::float32, 1248}, {ddpp::dtype::float32, 120}, {ddpp::dtype::float32, 1288}, {ddpp::dtype::float32, 204}, {ddpp::dtype::float32, 552}, {ddpp::dtype::float32, 160}, {ddpp::dtype::float32, 68}, {ddpp::dtype::float32, 1368}, {ddpp::dtype::float32, 1276}, {ddpp::dtype::float32, 560}, {ddpp::dtype::float32, 60}, {ddpp::dtype::float32, 84}}, {400}, {{0}, {1}, {2}, {3, 4}, {5, 6}, {7, 8}, {9, 10, 11}, {12}, {13}, {14, 15}}},
  {{{ddpp::dtype::float64, 344}, {ddpp::dtype::float32, 60}}, {1024}, {{0}, {1}}},
  {{{ddpp::dtype::float32, 532}, {ddpp::dtype::float32, 1352}}, {1024}, {{0, 1}}},
  {{{ddpp::dtype::float16, 42}, {ddpp::dtype::float64, 360}}, {100, 2000}, {{0}, {1}}},
  {{{ddpp::dtype::float32, 1328}, {ddpp::dtype::float32, 16}, {ddpp::dtype::float32, 160}, {ddpp::dtype::float32, 196}}, {400}, {{0}, {1, 2, 3}}},
  {{{ddpp::dtype::float16, 288}, {ddpp::dtype::float16, 48}}, {1024}, {{0, 1}}},
  {{{ddpp::dtype::float32, 136}, {ddpp::dtype::float32, 1300}, {ddpp::dtype::float32, 44}, {ddpp::dtype::float32, 524}, {ddpp::dtype::float32, 192}, {ddpp::dtype::float32, 1328}, {ddpp::dtype::float32, 180}, {ddpp::dtype::float32, 240}, {ddpp::dtype::float32, 184}, {ddpp::dtype::float32, 480}, {ddpp::dtype::float32, 56}, {ddpp::dtype::float32, 120}}, {1, 500, 1000}, {{0}, {1}, {2, 3, 4, 5}, {6, 7, 8, 9}, {10, 11}}},
  {{{ddpp::dtype::float32, 560}, {ddpp::dtype::float32, 232}, {ddpp::dtype::float64, 136}, {ddpp::dtype::float32, 1220}, {ddpp::dtype::float16, 232}, {ddpp::dtype::float64, 424}, {ddpp::dtype::float64, 320}, {ddpp::dtype::float32, 200}, {ddpp::dtype::float16, 610}}, {1024}, {{0, 1, 3}, {2, 5, 6}, {4, 8}, {7}}},
  {{{ddpp::dtype::float32, 168}, {ddpp::dtype::float32, 592}, {ddpp::dtype::float32, 164}, {ddpp::dtype::float32, 40}, {ddpp::dtype::float32, 544}, {ddpp::dtype::float32, 44}, {ddpp::dtype::float32, 60}, {ddpp::dtype::float32, 1224}, {ddpp::dtype::float32, 80}}, {100, 2000}, {{0}, {1, 2, 3, 4, 5, 6, 7}, {8}}},
  {{{ddpp::dtype::float64, 384}, {ddpp::dtype::float16, 92}, {ddpp::dtype::float64, 384}, {ddpp::dtype::float16, 34}, {ddpp::dtype::float16, 640}, {ddpp::dtype::float64, 456}, {ddpp::dtype::float64, 160}, {ddpp::dtype::float16, 8}, {ddpp::dtype::float16, 88}, {ddpp::dtype::float16, 110}, {ddpp::dtype::float64, 848}, {ddpp::dtype::float16, 52}, {ddpp::dtype::float32, 1336}, {ddpp::dtype::float32, 1280}, {ddpp::dtype::float32, 588}, {ddpp::dtype::float32, 192}, {ddpp::dtype::float16, 20}, {ddpp::dtype::float32, 76}, {ddpp::dtype::float16, 92}}, {1024}, {{0, 2, 5}, {1, 3, 4, 7, 8, 9, 11}, {6, 10}, {12}, {13}, {14, 15, 17}, {16, 18}}},
  {{{ddpp::dtype::float32, 136}, {ddpp::dtype::float32, 176}, {ddpp::dtype::float32, 56}, {ddpp::dtype::float32, 92}, {ddpp::dtype::float32, 140}, {ddpp::dtype::float32, 8}, {ddpp::dtype::float32, 28}, {ddpp::dtype::float32, 76}, {ddpp::dtype::float32, 176}, {ddpp::dtype::float32, 408}, {ddpp::dtype::float32, 224}, {ddpp::dtype::float32, 440}, {ddpp::dtype::float32, 100}, {ddpp::dtype::float32, 1316}, {ddpp::dtype::float32, 128}, {ddpp::dtype::float32, 112}, {ddpp::dtype::float32, 116}, {ddpp::dtype::float32, 188}, {ddpp::dtype::float32, 452}, {ddpp::dtype::float32, 84}}, {100, 2000}, {{0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {14, 15, 16, 17, 18, 19}}},
  {{{ddpp::dtype::float64, 40}, {ddpp::dtype::float32, 176}, {ddpp::dtype::float64, 88}, {ddpp::dtype::float64, 312}, {ddpp::dtype::float32, 1204}, {ddpp::dtype::float64, 192}, {ddpp::dtype::float32, 152}, {ddpp::dtype::float16, 604}, {ddpp::dtype::float16, 78}, {ddpp::dtype::float32, 112}, {ddpp::dtype::float64, 352}, {ddpp::dtype::float64, 160}, {ddpp::dtype::float64, 424}, {ddpp::dtype::float64, 2576}, {ddpp::dtype::float32, 1284}, {ddpp::dtype::float64, 272}, {ddpp::dtype::float16, 92}, {ddpp::dtype::float16, 260}, {ddpp::dtype::float16, 80}, {ddpp::dtype::float64, 88}}, {1024}, {{0, 2, 3, 5, 10, 11}, {1, 4}, {6, 9, 14}, {7, 8, 16, 17}, {12, 13}, {15, 19}, {18}}},
  {{{ddpp::dtype::float32, 156}, {ddpp::dtype::float32, 136}, {ddpp::dtype::float32, 60}, {ddpp::dtype::float32, 200}, {ddpp::dtype::float32, 1236}, {ddpp::dtype::float32, 1244}, {ddpp::dtype::float32, 196}, {ddpp::dtype::float32, 72}, {ddpp::dtype::float32, 468}, {ddpp::dtype::float32, 168}, {ddpp::dtype::float32, 592}, {ddpp::dtype::float32, 172}, {ddpp::dtype::float32, 32}, {ddpp::dtype::float32, 144}, {ddpp::dtype::float32, 0}, {ddpp::dtype::float32, 172}, {ddpp::dtype::float32, 1292}, {ddpp::dtype::float32, 48}}, {1, 500, 1000}, {{0}, {1, 2, 3, 4}, {5}, {6, 7, 8, 9, 10}, {11, 12, 13, 14, 15, 16}, {17}}},
  {{{ddpp::dtype::float32, 72}, {ddpp::dtype::float16, 24}, {ddpp::dtype::float16, 10}}, {400}, {{0}, {1, 2}}},
  {{{ddpp::dtype::float32, 172}}, {1099511627776}, {{0}}},
  {{{ddpp::dtype::float32, 20}, {ddpp::dtype::float64, 416}, {ddpp::dtype::float16, 66}, {ddpp::dtype::float64, 2424}, {ddpp::dtype::float64, 32}, {ddpp::dtype::float16, 216}, {ddpp::dtype::float16, 640}, {ddpp::dtype::float64, 416}, {ddpp::dtype::float32, 152}, {ddpp::dtype::float64, 296}, {ddpp::dtype::float64, 2432}, {ddpp::dtype::float64, 80}, {ddpp::dtype::float16, 88}, {ddpp::dtype::float64, 1192}, {ddpp::dtype::float32, 1288}, {ddpp::dtype::float16, 646}, {ddpp::dtype::float64, 920}}, {1099511627776}, {{0, 8, 14}, {1, 3, 4, 7, 9, 10, 11, 13, 16}, {2, 5, 6, 12, 15}}},
  {{{ddpp::dtype::float32, 124}, {ddpp::dtype::float32, 1336}, {ddpp::dtype::float32, 148}, {ddpp::dtype::float32, 1344}, {ddpp::dtype::float32, 68}, {ddpp::dtype::float32, 1372}, {ddpp::dtype::float32, 1384}, {ddpp::dtype::float32, 1376}, {ddpp::dtype::float32, 484}, {ddpp::dtype::float32, 80}, {ddpp::dtype::float32, 84}, {ddpp::dtype::float32, 120}, {ddpp::dtype::float32, 140}, {ddpp::dtype::float32, 556}, {ddpp::dtype::float32, 108}}, {100, 2000}, {{0}, {1, 2, 3}, {4, 5, 6}, {7, 8, 9, 10}, {11, 12, 13, 14}}},
  {{{ddpp::dtype::float32, 56}, {ddpp::dtype::float32, 48}, {ddpp::dtype::float32, 76}, {ddpp::dtype::float16, 600}, {ddpp::dtype::float16, 82}, {ddpp::dtype::float64, 2488}}, {1024}, {{0, 1, 2}, {3, 4}, {5}}},
};

struct precision { double average; std::vector<double> scores; std::vector<int> labels; std::vector<double> precision, recall, threshold; };
inline const std::vector<precision> precisions = {
  {1.0, {0.0}, {1}, {1.0, 1.0}, {1.0, 0.0}, {0.0}},
  {1.0, {0.680499}, {1}, {1.0, 1.0}, {1.0, 0.0}, {0.680499}},
  {0.5, {0.6666666666666666, 1.0}, {1, 0}, {0.5, 0.0, 1.0}, {1.0, 0.0, 0.0}, {0.6666666666666666, 1.0}},
  {1.0, {0.60182, 0.261442}, {1, 1}, {1.0, 1.0, 1.0}, {1.0, 0.5, 0.0}, {0.261442, 0.60182}},
  {0.38125, {0.3333333333333333, 0.0, 0.0, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333, 0.6666666666666666, 0.6666666666666666, 0.3333333333333333}, {0, 0, 1, 1, 0, 1, 0, 0, 0, 1}, {0.4, 0.375, 0.0, 1.0}, {1.0, 0.75, 0.0, 0.0}, {0.0, 0.3333333333333333, 0.6666666666666666}},
  {0.625, {0.068303, 0.347974, 0.315997, 0.857106, 0.632406, 0.614613, 0.003547, 0.624929, 0.710865, 0.742052}, {0, 0, 0, 1, 1, 0, 1, 1, 0, 0}, {0.4, 0.3333333333333333, 0.375, 0.42857142857142855, 0.5, 0.6, 0.5, 0.3333333333333333, 0.5, 1.0, 1.0}, {1.0, 0.75, 0.75, 0.75, 0.75, 0.75, 0.5, 0.25, 0.25, 0.25, 0.0}, {0.003547, 0.068303, 0.315997, 0.347974, 0.614613, 0.624929, 0.632406, 0.710865, 0.742052, 0.857106}},
  {0.6719085321572169, {0.3333333333333333, 0.6666666666666666, 1.0, 0.3333333333333333, 0.0, 0.0, 1.0, 0.0, 0.3333333333333333, 0.6666666666666666, 0.6666666666666666, 1.0, 1.0, 0.3333333333333333, 0.0, 0.0, 1.0, 0.6666666666666666, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333, 1.0, 0.0, 0.3333333333333333, 1.0, 0.6666666666666666, 0.3333333333333333, 0.0, 1.0, 0.6666666666666666, 0.3333333333333333, 1.0, 0.3333333333333333, 1.0, 1.0, 0.6666666666666666, 1.0, 0.6666666666666666, 0.6666666666666666, 1.0, 1.0, 0.3333333333333333, 0.0, 1.0, 0.3333333333333333, 1.0, 0.6666666666666666, 0.3333333333333333, 0.0, 1.0}, {1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0}, {0.6, 0.5853658536585366, 0.6296296296296297, 0.7647058823529411, 1.0}, {1.0, 0.8, 0.5666666666666667, 0.43333333333333335, 0.0}, {0.0, 0.3333333333333333, 0.6666666666666666, 1.0}},
  {0.7287927348890921, {0.237232, 0.173796, 0.056773, 0.93513, 0.140013, 0.116212, 0.332766, 0.190366, 0.506107, 0.202752, 0.574955, 0.037389, 0.435672, 0.487934, 0.368154, 0.398772, 0.694706, 0.641512, 0.075473, 0.618832, 0.214293, 0.2494, 0.752893, 0.947055, 0.392178, 0.000692, 0.367547, 0.425067, 0.998356, 0.292057, 0.897428, 0.42996, 0.908487, 0.120664, 0.722317, 0.871754, 0.573825, 0.392041, 0.037813, 0.576646, 0.643368, 0.316022, 0.099427, 0.309624, 0.571705, 0.53755, 0.355858, 0.997303, 0.609113, 0.307433}, {1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0}, {0.68, 0.673469387755102, 0.6666666666666666, 0.6808510638297872, 0.6956521739130435, 0.6888888888888889, 0.7045454545454546, 0.6976744186046512, 0.6904761904761905, 0.7073170731707317, 0.7, 0.6923076923076923, 0.6842105263157895, 0.6756756756756757, 0.6666666666666666, 0.6571428571428571, 0.6470588235294118, 0.6666666666666666, 0.6875, 0.6774193548387096, 0.6666666666666666, 0.6896551724137931, 0.7142857142857143, 0.7037037037037037, 0.6923076923076923, 0.68, 0.6666666666666666, 0.6521739130434783, 0.6818181818181818, 0.7142857142857143, 0.75, 0.7368421052631579, 0.7222222222222222, 0.7647058823529411, 0.8125, 0.8, 0.7857142857142857, 0.8461538461538461, 0.8333333333333334, 0.8181818181818182, 0.8, 0.7777777777777778, 0.75, 0.7142857142857143, 0.6666666666666666, 0.6, 0.75, 0.6666666666666666, 0.5, 1.0, 1.0}, {1.0, 0.9705882352941176, 0.9411764705882353, 0.9411764705882353, 0.9411764705882353, 0.9117647058823529, 0.9117647058823529, 0.8823529411764706, 0.8529411764705882, 0.8529411764705882, 0.8235294117647058, 0.7941176470588235, 0.7647058823529411, 0.7352941176470589, 0.7058823529411765, 0.6764705882352942, 0.6470588235294118, 0.6470588235294118, 0.6470588235294118, 0.6176470588235294, 0.5882352941176471, 0.5882352941176471, 0.5882352941176471, 0.5588235294117647, 0.5294117647058824, 0.5, 0.47058823529411764, 0.4411764705882353, 0.4411764705882353, 0.4411764705882353, 0.4411764705882353, 0.4117647058823529, 0.38235294117647056, 0.38235294117647056, 0.38235294117647056, 0.35294117647058826, 0.3235294117647059, 0.3235294117647059, 0.29411764705882354, 0.2647058823529412, 0.23529411764705882, 0.20588235294117646, 0.17647058823529413, 0.14705882352941177, 0.11764705882352941, 0.08823529411764706, 0.08823529411764706, 0.058823529411764705, 0.029411764705882353, 0.029411764705882353, 0.0}, {0.000692, 0.037389, 0.037813, 0.056773, 0.075473, 0.099427, 0.116212, 0.120664, 0.140013, 0.173796, 0.190366, 0.202752, 0.214293, 0.237232, 0.2494, 0.292057, 0.307433, 0.309624, 0.316022, 0.332766, 0.355858, 0.367547, 0.368154, 0.392041, 0.392178, 0.398772, 0.425067, 0.42996, 0.435672, 0.487934, 0.506107, 0.53755, 0.571705, 0.573825, 0.574955, 0.576646, 0.609113, 0.618832, 0.641512, 0.643368, 0.694706, 0.722317, 0.752893, 0.871754, 0.897428, 0.908487, 0.93513, 0.947055, 0.997303, 0.998356}},
};

}  // namespace oracles
