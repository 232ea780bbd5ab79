// SPDX-License-Identifier: BSL-1.0
// What the memory allows: each rank reads its part of all buffers and writes the sum to all of them, as an
// all-reduce of symmetric buffers has to, but never waits for anyone. Compiled for this processor.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>

#include "forked_ranks.hpp"

namespace {

using part = float* __restrict;

// Passes over memory decide, so the common numbers of ranks have one loop each.
void sum_of_2(part a, part b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}
void sum_of_4(part a, part b, part c, part d, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = c[i] = d[i] = (a[i] + b[i]) + (c[i] + d[i]);
}
void sum_of_8(part a, part b, part c, part d, part e, part f, part g, part h, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    a[i] = b[i] = c[i] = d[i] = e[i] = f[i] = g[i] = h[i] =
        ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
  }
}

struct memory_rank {
  int rank_, size_;
  peers::shared_barrier barrier_;
  float* memory;
  std::size_t room;  // elements of each rank

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier() { barrier_.wait(); }
  std::span<float> buffer_of(int rank, std::size_t count) const {
    return {memory + room * static_cast<std::size_t>(rank), count};
  }
  std::span<float> make_buffer(std::size_t count) {
    if (count > room) throw std::length_error("more bytes than there is room for");
    return buffer_of(rank_, count);
  }
  void call(std::span<float> mine) {
    const std::size_t each = mine.size() / static_cast<std::size_t>(size_),
                      begin = each * static_cast<std::size_t>(rank_);
    const std::size_t count = rank_ + 1 == size_ ? mine.size() - begin : each;
    const auto of = [&](int rank) { return buffer_of(rank, mine.size()).data() + begin; };
    if (size_ == 2)
      sum_of_2(of(0), of(1), count);
    else if (size_ == 4)
      sum_of_4(of(0), of(1), of(2), of(3), count);
    else
      sum_of_8(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7), count);
  }
  std::size_t wrong_after(int calls, std::span<const float> buffer, const peers::values& random) {
    return random.wrong_after(calls, buffer);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  const peers::arguments given(argc, argv);
  if (given.more.empty() || (given.ranks != 2 && given.ranks != 4 && given.ranks != 8))
    throw std::invalid_argument("2, 4 or 8 ranks, and the most bytes there will be");
  const std::size_t room = std::stoull(given.more[0]) / sizeof(float);
  auto* const memory =
      static_cast<float*>(peers::map_shared(room * sizeof(float) * static_cast<std::size_t>(given.ranks)));
  const peers::shared_barrier barrier(given.ranks);
  return peers::on_forked_ranks(given.ranks, [&](int rank) {
    memory_rank self{rank, given.ranks, barrier, memory, room};
    peers::obey(given.path, given.name, self);
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
