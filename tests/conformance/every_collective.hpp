// SPDX-License-Identifier: BSL-1.0
// Every operation in turn, on one communicator, with elements of any type at any address: for groups of one,
// groups of 64, and all element types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>

#include "suite.hpp"

using namespace conformance;

namespace {

/// Elements that start `shift` elements after an aligned address, between elements that must stay as they
/// are.
template <class T>
class guarded {
 public:
  guarded(std::size_t count, std::size_t shift) : all_(count + shift + 1, guard()), part_(shift, count) {}

  std::span<T> span() { return std::span(all_).subspan(part_.first, part_.second); }
  void expect_untouched_around() const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (i < part_.first || i >= part_.first + part_.second)
        EXPECT(std::memcmp(&all_[i], &guard_, sizeof(T)) == 0);
    }
  }

 private:
  static T guard() { return T(77.0f); }
  T guard_ = guard();
  std::vector<T> all_;
  std::pair<std::size_t, std::size_t> part_;  // from, how many
};

/// Small whole numbers: exact in every type, and so are their sums over nine ranks.
inline int number_of(int rank, std::size_t i) {
  return 1 + static_cast<int>((3 * static_cast<std::size_t>(rank) + i) % 5);
}

template <class T, class C>
class operations {
 public:
  operations(C& comm, std::size_t count, std::size_t shift)
      : comm_(comm),
        shift_(shift),
        count_(count),
        n_(static_cast<std::size_t>(comm.size())),
        root_(comm.size() - 1) {
    for (std::size_t r = 0; r < n_; ++r) counts_.push_back(count + r % 2);
    offsets_.resize(n_ + 1);
    std::inclusive_scan(counts_.begin(), counts_.end(), offsets_.begin() + 1);
  }

  void run() {
    if constexpr (reduces<T, ddpp::sum_t>) reductions();
    broadcasts();
    gathers();
    scatters();
    exchanges();
    ddpp::barrier(comm_);
    auto work = ddpp::barrier_async(comm_);
    work.wait();
  }

 private:
  static T element(int rank, std::size_t i) { return T(static_cast<float>(number_of(rank, i))); }
  T sum(std::size_t i) const {
    int total = 0;
    for (int r = 0; r < comm_.size(); ++r) total += number_of(r, i);
    return T(static_cast<float>(total));
  }
  static bool same(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }

  /// What this rank brings: elements `from`, ... of rank `of`.
  guarded<T> input(std::size_t count, int of, std::size_t from = 0) const {
    guarded<T> in(count, shift_);
    for (std::size_t i = 0; i < count; ++i) in.span()[i] = element(of, from + i);
    return in;
  }
  guarded<T> mine(std::size_t count) const { return input(count, comm_.rank()); }
  guarded<T> output(std::size_t count) const { return guarded<T>(count, shift_ + (shift_ != 0)); }

  template <class F>
  static void expect_all(guarded<T>& out, F expected) {
    for (std::size_t i = 0; i < out.span().size(); ++i) EXPECT(same(out.span()[i], expected(i)));
    out.expect_untouched_around();
  }

  void reductions() {
    const auto sums = [&](std::size_t i) { return sum(i); };
    auto in_place = mine(count_), in = mine(count_), out = output(count_);
    ddpp::all_reduce(comm_, in_place.span());
    expect_all(in_place, sums);
    ddpp::all_reduce(comm_, in.span(), out.span());
    expect_all(out, sums);

    auto reduced = output(is_root() ? count_ : 0);
    ddpp::reduce(comm_, in.span(), reduced.span(), ddpp::sum, root_);
    expect_all(reduced, sums);

    auto whole = mine(n_ * count_), piece = output(count_);
    ddpp::reduce_scatter(comm_, whole.span(), piece.span());
    expect_all(piece, [&](std::size_t i) { return sum(rank() * count_ + i); });
    auto whole_v = mine(offsets_[n_]), piece_v = output(counts_[rank()]);
    ddpp::reduce_scatter_v(comm_, whole_v.span(), piece_v.span(), counts_);
    expect_all(piece_v, [&](std::size_t i) { return sum(offsets_[rank()] + i); });
    expect_all(in, [&](std::size_t i) { return element(comm_.rank(), i); });
  }

  void broadcasts() {
    auto data = mine(count_);
    ddpp::broadcast(comm_, data.span(), root_);
    expect_all(data, [&](std::size_t i) { return element(root_, i); });
  }

  /// Element i of what is gathered from everyone.
  T gathered(std::size_t i) const { return element(static_cast<int>(i / count_), i % count_); }
  T gathered_v(std::size_t i) const {
    const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), i);
    return element(static_cast<int>(after - offsets_.begin()) - 1, i - *(after - 1));
  }

  void gathers() {
    const auto even = [&](std::size_t i) { return gathered(i); };
    const auto by_counts = [&](std::size_t i) { return gathered_v(i); };
    auto in = mine(count_), in_v = mine(counts_[rank()]);
    auto all = output(n_ * count_), all_v = output(offsets_[n_]);
    ddpp::all_gather(comm_, in.span(), all.span());
    expect_all(all, even);
    ddpp::all_gather_v(comm_, in_v.span(), all_v.span(), counts_);
    expect_all(all_v, by_counts);
    auto at_root = output(is_root() ? n_ * count_ : 0), at_root_v = output(is_root() ? offsets_[n_] : 0);
    ddpp::gather(comm_, in.span(), at_root.span(), root_);
    expect_all(at_root, even);
    ddpp::gather_v(comm_, in_v.span(), at_root_v.span(), counts_, root_);
    expect_all(at_root_v, by_counts);
  }

  void scatters() {
    auto whole = mine(is_root() ? n_ * count_ : 0), whole_v = mine(is_root() ? offsets_[n_] : 0);
    auto piece = output(count_), piece_v = output(counts_[rank()]);
    ddpp::scatter(comm_, whole.span(), piece.span(), root_);
    expect_all(piece, [&](std::size_t i) { return element(root_, rank() * count_ + i); });
    ddpp::scatter_v(comm_, whole_v.span(), piece_v.span(), counts_, root_);
    expect_all(piece_v, [&](std::size_t i) { return element(root_, offsets_[rank()] + i); });
  }

  void exchanges() {
    auto out = mine(n_ * count_), in = output(n_ * count_);
    ddpp::all_to_all(comm_, out.span(), in.span());
    expect_all(in, [&](std::size_t i) {
      return element(static_cast<int>(i / count_), rank() * count_ + i % count_);
    });

    const std::size_t own = counts_[rank()];  // from everyone
    auto out_v = mine(offsets_[n_]), in_v = output(n_ * own);
    ddpp::all_to_all_v(comm_, out_v.span(), counts_, in_v.span(), std::vector<std::size_t>(n_, own));
    expect_all(in_v,
               [&](std::size_t i) { return element(static_cast<int>(i / own), offsets_[rank()] + i % own); });

    const int next = (comm_.rank() + 1) % comm_.size(),
              previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
    const auto theirs = [&](std::size_t i) { return element(previous, i); };
    auto message = mine(count_), arrived = output(count_), arrived_later = output(count_);
    ddpp::send_recv(comm_, message.span(), next, arrived.span(), previous);
    expect_all(arrived, theirs);
    auto sent = ddpp::isend(comm_, message.span(), next);
    auto received = ddpp::irecv(comm_, arrived_later.span(), previous);
    received.wait();
    sent.wait();
    expect_all(arrived_later, theirs);
  }

  std::size_t rank() const { return static_cast<std::size_t>(comm_.rank()); }
  bool is_root() const { return comm_.rank() == root_; }

  C& comm_;
  std::size_t shift_, count_, n_;
  int root_;
  std::vector<std::size_t> counts_, offsets_;
};

/// Every operation on this communicator, with `count` elements (at least one) per rank.
template <class T, class C>
void every_operation(C& comm, std::size_t count, std::size_t shift = 0) {
  operations<T, C>(comm, count, shift).run();
}

}  // namespace

TEST_CASE("every operation with each type, one element after an aligned address") {
  on_ranks(3, [](auto& comm) {
    const auto with = [&]<class... T>(std::type_identity<T>...) { (every_operation<T>(comm, 133, 1), ...); };
    with(std::type_identity<std::int8_t>(), std::type_identity<std::uint8_t>(),
         std::type_identity<std::int16_t>(), std::type_identity<std::uint16_t>(),
         std::type_identity<std::int32_t>(), std::type_identity<std::uint32_t>(),
         std::type_identity<std::int64_t>(), std::type_identity<std::uint64_t>(),
         std::type_identity<ddpp::half>(), std::type_identity<ddpp::bfloat16>(), std::type_identity<float>(),
         std::type_identity<double>());
  });
}

TEST_CASE("every operation in a group of one: a world of one, and split off a larger one") {
  on_ranks(1, [](auto& comm) { every_operation<float>(comm, 10); });
  on_ranks(3, [](auto& comm) {
    auto alone = comm.split(comm.rank());
    EXPECT(alone.size() == 1 && alone.rank() == 0);
    every_operation<float>(alone, 10);
    auto from_one = alone.subgroup({0});
    every_operation<float>(from_one, 10);
    every_operation<float>(comm, 10);
  });
}

TEST_CASE("every operation among 64 ranks") {
  if (most_ranks < 9) return;  // for programs that run at full speed
  on_ranks(64, [](auto& comm) { every_operation<float>(comm, 3); });
}
