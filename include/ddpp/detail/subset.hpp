// SPDX-License-Identifier: BSL-1.0
// Some ranks of a transport as a transport of their own, for algorithms that one collective is made up of.
#pragma once

#include <ddpp/concepts.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace ddpp::detail {

/// What an algorithm needs of a communicator.
template <class T>
class part {
 public:
  using transport_type = T;

  part(T& transport, ddpp::deadline until) : transport_(transport), until_(until) {}

  T& transport() const noexcept { return transport_; }
  int rank() const noexcept { return transport_.rank(); }
  int size() const noexcept { return transport_.size(); }
  ddpp::deadline deadline() const noexcept { return until_; }

 private:
  T& transport_;
  ddpp::deadline until_;
};

/// The ranks listed, in that order, of whom this one is number `rank`. The list must outlive it. One that
/// moves messages only: what all ranks of T share is not the subset's.
template <class T>
class subset {
 public:
  static constexpr std::string_view name = has_shared_slots<T> ? std::string_view() : T::name;
  static constexpr memory_space memory = T::memory;
  static constexpr std::size_t preferred_segment = [] {
    if constexpr (has_receive_view<T>)
      return std::size_t{T::preferred_segment};
    else
      return std::size_t{64} << 10;
  }();

  subset(T& whole, std::span<const int> ranks, int rank) : whole_(whole), ranks_(ranks), rank_(rank) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  auto isend(std::span<const std::byte> data, int peer, int tag) {
    return whole_.isend(data, member(peer), tag);
  }
  auto irecv(std::span<std::byte> data, int peer, int tag) { return whole_.irecv(data, member(peer), tag); }
  template <class F>
  requires has_receive_view<T>
  void consume(int peer, int tag, std::size_t bytes, deadline until, F&& f) {
    whole_.consume(member(peer), tag, bytes, until, std::forward<F>(f));
  }

 private:
  int member(int peer) const noexcept { return ranks_[static_cast<std::size_t>(peer)]; }

  T& whole_;
  std::span<const int> ranks_;
  int rank_;
};

}  // namespace ddpp::detail
