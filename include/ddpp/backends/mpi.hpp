// SPDX-License-Identifier: BSL-1.0
// Ranks of one mpirun (or srun): MPI 3.1 moves the data, in its own collectives where it has them. See
// docs/mpi.md.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/mpi_group.hpp>
#include <ddpp/detail/mpi_runtime.hpp>
#include <ddpp/detail/mpi_types.hpp>
#include <ddpp/detail/scratch.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>
#include <ddpp/op.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddpp {

/// Which collectives are compared between the ranks before they begin. MPI carries no fingerprints, so a
/// comparison is one more small all-reduce.
enum class mpi_checks : std::uint8_t {
  off,
  sampled,  ///< the first 32, and one in 32 from there on
  always
};

class mpi {
 public:
  struct options {
    mpi_checks checks = mpi_checks::sampled;
  };

  static constexpr std::string_view name = "mpi";
  static constexpr memory_space memory = memory_space::host;
  static constexpr launch_kind launch = launch_kind::processes;

  /// Collective over all ranks of `boot`, which are processes of one MPI job. Begins MPI if the program has
  /// not. Blocks until all have come: until boot.deadline at most where they meet in the store, and as MPI
  /// does from there on. Throws `init_error` where MPI was begun for fewer threads than
  /// MPI_THREAD_MULTIPLE, has ended, or the ranks are not of one job.
  mpi(const bootstrap& boot, const options& settings) : settings_(settings), timeout_(boot.timeout) {
    detail::mpi_runtime::instance();
    int tag = 0;
    const std::vector<int> members = meet(boot, tag);
    group_ = std::make_unique<detail::mpi_group>(boot.rank, members, tag);
  }

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }

  auto isend(std::span<const std::byte> data, int peer, int tag) { return group_->isend(data, peer, tag); }
  auto irecv(std::span<std::byte> data, int peer, int tag) { return group_->irecv(data, peer, tag); }
  void abort(const failure& cause) { group_->abort(cause); }
  void on_failure(std::function<void(const failure&)> f) { group_->on_failure(std::move(f)); }

  void enter(const fingerprint& print) {
    group_->throw_if_failed();
    group_->set_state(print, true);
    const bool is_sample = print.sequence <= sample || print.sequence % sample == 0;
    if (settings_.checks == mpi_checks::always || (settings_.checks == mpi_checks::sampled && is_sample))
      group_->compare(print, detail::deadline_after(timeout_));
  }
  void leave() { group_->leave(); }
  bool failed() const noexcept { return group_->failed(); }
  failure cause() const { return group_->cause(); }
  /// Of the others MPI tells nothing.
  std::vector<rank_state> survey(deadline) { return group_->survey(); }

  // MPI's own collectives, which end when MPI ends them. 16-bit sums are added in float in the order of
  // ranks, which MPI's are not.

  template <class E, class Op>
  requires detail::stateless_operation<Op> &&
      (!(is_short_float<E> && std::is_same_v<Op, sum_t>)) void all_reduce(std::span<E> data, const Op&,
                                                                          deadline) {
    for_each_part(data.size(), [&](std::size_t at, int count) {
      group_->check(MPI_Allreduce(MPI_IN_PLACE, data.data() + at, count, detail::mpi_type<E, Op>(),
                                  detail::mpi_operation<E, Op>(), group_->data()),
                    "MPI_Allreduce");
    });
  }

  template <class E, class Op>
  requires detail::stateless_operation<Op> &&
      (!(is_short_float<E> && std::is_same_v<Op, sum_t>)) void reduce_scatter(std::span<const E> in,
                                                                              std::span<E> out, const Op&,
                                                                              deadline) {
    const auto type = detail::mpi_type<E, Op>();
    const auto op = detail::mpi_operation<E, Op>();
    detail::scratch<E> piece(out.size());  // `out` may be a part of `in`
    if (out.size() <= detail::mpi_most) {
      group_->check(MPI_Reduce_scatter_block(in.data(), piece.data(), static_cast<int>(out.size()), type, op,
                                             group_->data()),
                    "MPI_Reduce_scatter_block");
    } else {
      for (int r = 0; r < size(); ++r) {
        for_each_part(out.size(), [&](std::size_t at, int count) {
          group_->check(MPI_Reduce(in.data() + static_cast<std::size_t>(r) * out.size() + at,
                                   piece.data() + at, count, type, op, r, group_->data()),
                        "MPI_Reduce");
        });
      }
    }
    detail::copy_elements(std::span<const E>(piece.span()), out);
  }

  /// `out` has this rank's piece already.
  template <class E>
  void all_gather(std::span<const E>, std::span<E> out, deadline) {
    const auto bytes = std::as_writable_bytes(out);
    const std::size_t piece = bytes.size() / static_cast<std::size_t>(size());
    if (piece <= detail::mpi_most) {
      group_->check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes.data(), static_cast<int>(piece),
                                  MPI_BYTE, group_->data()),
                    "MPI_Allgather");
    } else {
      for (int r = 0; r < size(); ++r)
        send_to_all(bytes.subspan(static_cast<std::size_t>(r) * piece, piece), r);
    }
  }

  template <class E>
  void broadcast(std::span<E> data, int root, deadline) {
    send_to_all(std::as_writable_bytes(data), root);
  }

  void barrier(deadline) { group_->check(MPI_Barrier(group_->data()), "MPI_Barrier"); }

 private:
  static constexpr std::uint64_t sample = 32;

  void send_to_all(std::span<std::byte> data, int root) {
    for_each_part(data.size(), [&](std::size_t at, int count) {
      group_->check(MPI_Bcast(data.data() + at, count, MPI_BYTE, root, group_->data()), "MPI_Bcast");
    });
  }

  template <class F>
  static void for_each_part(std::size_t count, F f) {
    for (std::size_t at = 0; at < count; at += detail::mpi_most)
      f(at, static_cast<int>(std::min(count - at, detail::mpi_most)));
  }

  /// The ranks' numbers in MPI_COMM_WORLD, and a tag of their own for coming together.
  static std::vector<int> meet(const bootstrap& boot, int& tag) {
    static constexpr const char *here_key = "mpi/", *all_key = "mpi/all";
    int world_rank = 0;
    detail::require_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
    if (boot.size == 1) return {world_rank};
    std::string list;
    if (boot.rank != 0) {
      boot.store->set(here_key + detail::text(boot.rank), detail::text(world_rank));
      if (!detail::await_key(boot, all_key)) throw timeout_error(missing(boot, 0));
      list = boot.store->get(all_key);
    } else {
      std::uint16_t drawn = 0;
      detail::fill_random(std::as_writable_bytes(std::span(&drawn, 1)));
      list = detail::text(drawn & 0x7fff, " ", world_rank);
      for (int r = 1; r < boot.size; ++r) {
        if (!detail::await_key(boot, here_key + detail::text(r))) throw timeout_error(missing(boot, r));
        list += " " + boot.store->get(here_key + detail::text(r));
      }
      boot.store->set(all_key, list);
    }
    std::vector<int> numbers = numbers_in(list);
    tag = numbers.front();
    numbers.erase(numbers.begin());
    check_members(boot, numbers);
    return numbers;
  }

  static std::string missing(const bootstrap& boot, int rank) {
    return detail::text("rank ", boot.rank, " of ", boot.size, ": rank ", rank, " did not come within ",
                        detail::text_of(boot.timeout));
  }

  static std::vector<int> numbers_in(const std::string& list) {
    std::vector<int> numbers;
    for (const char *at = list.data(), *const end = at + list.size(); at < end;) {
      int number = -1;
      const auto read = std::from_chars(at, end, number);
      numbers.push_back(number);
      at = read.ptr + 1;
    }
    return numbers;
  }

  static void check_members(const bootstrap& boot, const std::vector<int>& members) {
    int world = 0;
    detail::require_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
    std::vector<int> sorted = members;
    std::sort(sorted.begin(), sorted.end());
    const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    if (twice || sorted.front() < 0 || sorted.back() >= world ||
        members.size() != static_cast<std::size_t>(boot.size)) {
      throw init_error(detail::text(
          "rank ", boot.rank, " of ", boot.size, ": the ranks are not of one MPI job (this one's has ", world,
          world == 1 ? " process" : " processes", "): start them all with one mpirun"));
    }
  }

  const options settings_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<detail::mpi_group> group_;
};

static_assert(transport<mpi>);
static_assert(has_control_plane<mpi>);
static_assert(has_failure_listener<mpi>);
static_assert(!has_agreement<mpi>);
static_assert(!has_receive_view<mpi>);
static_assert(!has_shared_slots<mpi>);
static_assert(!has_symmetric_memory<mpi>);
static_assert(has_barrier<mpi>);
static_assert(has_broadcast<mpi, float>);
static_assert(has_all_gather<mpi, float>);
static_assert(has_all_reduce<mpi, float, sum_t>);
static_assert(has_all_reduce<mpi, half, max_t>);
static_assert(!has_all_reduce<mpi, half, sum_t>);
static_assert(has_reduce_scatter<mpi, float, sum_t>);

}  // namespace ddpp
