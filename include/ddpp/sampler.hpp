// SPDX-License-Identifier: BSL-1.0
// Each rank's share of a data set, as torch's DistributedSampler: the same indices in the same order.
#pragma once

#include <ddpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp {

/// A permutation of 0 .. count - 1, the one that torch.randperm(count) gives on a CPU after
/// manual_seed(seed). As there, only the lower 32 bits of the seed count, and from 2^32 / 20 elements on each
/// draw takes 64 bits.
inline std::vector<std::size_t> random_permutation(std::size_t count, std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  const bool wide = count >= std::uint64_t(UINT32_MAX) / 20;
  const auto draw = [&]() -> std::uint64_t {
    const std::uint64_t high = random();
    return wide ? high << 32 | random() : high;
  };
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + draw() % (count - i)]);
  return order;
}

/// What happens when the number of samples is not a multiple of the number of ranks.
enum class sampler_padding : std::uint8_t {
  repeat,  ///< all ranks get as many: samples from the front are taken twice
  none     ///< each sample once: some ranks get one less
};

struct sampler_options {
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;  ///< all ranks get as many: the tail is left out
  sampler_padding padding = sampler_padding::repeat;
  bool auto_epoch = false;  ///< each pass after the first is a new epoch, without set_epoch
};

/// Where a pass over the data stands, for a checkpoint.
struct sampler_state {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t samples = 0;   ///< in the data set
  std::uint64_t consumed = 0;  ///< of this epoch, by all ranks together
};

/// This rank's indices: every size()-th of the epoch's order, from its own rank on. `begin()` starts a pass;
/// an index counts as consumed when it is read through the iterator. Not thread-safe; nothing is
/// communicated.
class distributed_sampler {
 public:
  /// `comm`: anything with rank() and size(). Throws `usage_error` when drop_last and padding::none are both
  /// asked for.
  template <class C>
  distributed_sampler(const C& comm, std::size_t samples, sampler_options options = {})
      : rank_(static_cast<std::size_t>(comm.rank())),
        ranks_(static_cast<std::size_t>(comm.size())),
        samples_(samples),
        options_(options) {
    if (options_.drop_last && options_.padding == sampler_padding::none) {
      throw usage_error(
          "distributed_sampler: drop_last leaves the tail out and padding::none keeps it: choose one");
    }
  }

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::size_t*;
    using reference = std::size_t;

    iterator() = default;
    std::size_t operator*() const {
      sampler_->position_ = position_ + 1;
      return sampler_->mine_[position_];
    }
    iterator& operator++() {
      ++position_;
      return *this;
    }
    iterator operator++(int) {
      iterator before = *this;
      ++position_;
      return before;
    }
    friend bool operator==(const iterator& a, const iterator& b) {
      return a.at_end() || b.at_end() ? a.at_end() == b.at_end() : a.position_ == b.position_;
    }

   private:
    friend distributed_sampler;
    bool at_end() const { return sampler_ == nullptr || position_ >= sampler_->mine_.size(); }
    iterator(distributed_sampler* sampler, std::size_t position) : sampler_(sampler), position_(position) {}
    distributed_sampler* sampler_ = nullptr;
    std::size_t position_ = 0;
  };

  /// Starts a pass over this rank's share of the epoch, or over the rest of it right after `load`.
  iterator begin() {
    if (resumed_)
      resumed_ = false;
    else if (std::exchange(begun_, true)) {
      skipped_ = 0;
      if (options_.auto_epoch) ++epoch_;
    }
    begun_ = true;
    position_ = 0;
    draw();
    return {this, 0};
  }
  iterator end() const { return {}; }

  /// Samples per pass on this rank: the rest of the epoch after `load`, a whole one otherwise.
  std::size_t size() const noexcept {
    const std::size_t rest = samples_ - skipped_;
    if (options_.padding == sampler_padding::none)
      return rank_ < rest ? (rest - rank_ + ranks_ - 1) / ranks_ : 0;
    return options_.drop_last ? rest / ranks_ : (rest + ranks_ - 1) / ranks_;
  }

  /// Makes the next pass one of this epoch: another order, when shuffling. Every rank gives the same number.
  void set_epoch(std::uint64_t epoch) noexcept {
    if (epoch == epoch_ && resumed_) return;
    epoch_ = epoch;
    skipped_ = 0;
    position_ = 0;
    begun_ = false;
    resumed_ = false;
  }
  std::uint64_t epoch() const noexcept { return epoch_; }

  /// Where the pass stands, if all ranks have consumed as many samples as this one.
  sampler_state state() const noexcept {
    return {options_.seed, epoch_, samples_, std::min(samples_, skipped_ + position_ * ranks_)};
  }

  /// Goes on where `state` was taken, with any number of ranks: the next pass shares out what had not been
  /// consumed. Throws `usage_error` when the state is of another data set or seed.
  void load(const sampler_state& state) {
    if (state.samples != samples_ || state.seed != options_.seed || state.consumed > state.samples) {
      throw usage_error("distributed_sampler: the state is of " + std::to_string(state.samples) +
                        " samples with seed " + std::to_string(state.seed) + ", the sampler has " +
                        std::to_string(samples_) + " with seed " + std::to_string(options_.seed));
    }
    epoch_ = state.epoch;
    skipped_ = static_cast<std::size_t>(state.consumed);
    position_ = 0;
    resumed_ = true;
  }

 private:
  void draw() {
    std::vector<std::size_t> order;
    if (options_.shuffle) order = random_permutation(samples_, options_.seed + epoch_);
    const std::size_t rest = samples_ - skipped_;
    mine_.resize(size());
    for (std::size_t k = 0; k < mine_.size(); ++k) {
      // Beyond the end only when padding: then from the front again, as often as it takes.
      const std::size_t at = rank_ + k * ranks_, index = at < rest ? skipped_ + at : (at - rest) % samples_;
      mine_[k] = options_.shuffle ? order[index] : index;
    }
  }

  std::size_t rank_, ranks_, samples_;
  sampler_options options_;
  std::uint64_t epoch_ = 0;
  std::size_t skipped_ = 0;   // of the epoch's order, consumed before this pass
  std::size_t position_ = 0;  // of mine_, in this pass
  bool begun_ = false;        // a pass of this epoch has been started
  bool resumed_ = false;      // `load` was called and no pass was begun since
  std::vector<std::size_t> mine_;
};

}  // namespace ddpp
