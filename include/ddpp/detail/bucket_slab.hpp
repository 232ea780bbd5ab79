// SPDX-License-Identifier: BSL-1.0
// Where the gradients of a model lie while they travel: buckets one after the other in one allocation, each
// on a cache line of its own.
#pragma once

#include <ddpp/bucket_assignment.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/device_memory.hpp>
#include <ddpp/detail/model.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>
#include <ddpp/gradient_bucket.hpp>
#include <ddpp/symmetric.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ddpp::detail {

class bucket_slab {
 public:
  struct bucket {
    ddpp::dtype dtype = {};
    std::size_t element_size = 0;
    std::size_t begin = 0, bytes = 0;  // `begin`: in the slab
    std::vector<std::size_t> slots = {}, parameters = {}, offsets = {}, rows = {};

    std::size_t count() const noexcept { return bytes / element_size; }
  };

  explicit bucket_slab(const model& of) : model_(of), places_(of.slots()) {
    for (std::size_t slot = 0; slot < model_.slots(); ++slot) {
      sizes_.push_back({model_[slot].dtype(), model_[slot].count() * model_[slot].element_size()});
    }
  }

  /// Collective, with the same layout of slots on all ranks. Gradients keep their contents.
  template <class C>
  void lay_out(C& comm, const bucket_layout& layout) {
    if (std::ranges::equal(layout, buckets_, {}, {}, &bucket::slots)) return;
    std::vector<bucket> buckets;
    std::vector<place> places(model_.slots());
    std::size_t total = 0;
    for (const auto& members : layout) {
      buckets.push_back(make_bucket(members, total));
      const bucket& made = buckets.back();
      for (std::size_t k = 0; k < members.size(); ++k) {
        places[members[k]] = {buckets.size() - 1, total + made.offsets[k] * made.element_size};
      }
      total += round_up_to_lines(made.bytes);
    }
    symmetric_buffer<std::byte> memory = memory_for(comm, total);
    for (std::size_t slot = 0; slot < places.size() && !buckets_.empty(); ++slot) {
      copy_memory(comm, memory.data() + places[slot].begin, place_of(slot), sizes_[slot].bytes);
    }
    buckets_ = std::move(buckets);
    places_ = std::move(places);
    memory_ = std::move(memory);
  }

  const std::vector<gradient_size>& sizes() const noexcept { return sizes_; }  // by slot
  const std::vector<bucket>& buckets() const noexcept { return buckets_; }
  std::size_t size() const noexcept { return buckets_.size(); }
  const bucket& operator[](std::size_t index) const noexcept { return buckets_[index]; }
  /// The index of the bucket that a slot is in, and where its gradient begins.
  std::size_t bucket_of(std::size_t slot) const noexcept { return places_[slot].bucket; }
  std::byte* place_of(std::size_t slot) noexcept { return memory_.data() + places_[slot].begin; }

  bucket_contents contents(std::size_t index) const noexcept {
    const bucket& b = buckets_[index];
    return {.type = b.dtype,
            .count = b.count(),
            .index = index,
            .is_last = index + 1 == buckets_.size(),
            .parameters = b.parameters,
            .offsets = b.offsets,
            .rows = b.rows};
  }
  std::byte* data(std::size_t index) noexcept { return memory_.data() + buckets_[index].begin; }

  template <class C>
  void clear(const C& comm, std::size_t slot) {
    clear_memory(comm, place_of(slot), sizes_[slot].bytes);
  }
  /// From the program's memory to the bucket.
  template <class C>
  void bring(const C& comm, std::size_t slot) {
    copy_memory(comm, place_of(slot), model_[slot].gradient().bytes().data(), sizes_[slot].bytes);
  }
  /// From the bucket to the program's memory.
  template <class C>
  void write_back(const C& comm, std::size_t slot) {
    copy_memory(comm, model_[slot].gradient().bytes().data(), place_of(slot), sizes_[slot].bytes);
  }

 private:
  struct place {
    std::size_t bucket = 0, begin = 0;  // `begin`: bytes into the slab
  };

  /// Shared memory may be scarce where there is plenty of other: then all ranks take that. A device has only
  /// its own.
  template <class C>
  static symmetric_buffer<std::byte> memory_for(C& comm, std::size_t bytes) {
    try {
      return allocate_symmetric<std::byte>(comm, bytes);
    } catch (const resource_error&) {
      if (is_on_device<C>) throw;
      return symmetric_buffer<std::byte>(bytes);
    }
  }

  bucket make_bucket(const std::vector<std::size_t>& slots, std::size_t begin) const {
    const parameter& first = model_[slots.front()];
    bucket b{.dtype = first.dtype(), .element_size = first.element_size(), .begin = begin, .slots = slots};
    for (const std::size_t slot : slots) {
      b.parameters.push_back(model_.listed(slot));
      b.offsets.push_back(b.count());
      b.rows.push_back(model_[slot].rows());
      b.bytes += sizes_[slot].bytes;
    }
    b.offsets.push_back(b.count());
    return b;
  }

  const model& model_;
  std::vector<gradient_size> sizes_;  // by slot
  std::vector<place> places_;         // by slot
  std::vector<bucket> buckets_;
  symmetric_buffer<std::byte> memory_;
};

}  // namespace ddpp::detail
