// SPDX-License-Identifier: BSL-1.0
// Two transports as one: `Inner` between ranks of the same host, `Outer` between hosts. See
// docs/hierarchical.md.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/algorithms/bruck.hpp>
#include <ddpp/algorithms/dissemination.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/hierarchical_collectives.hpp>
#include <ddpp/detail/host_identity.hpp>
#include <ddpp/detail/host_layout.hpp>
#include <ddpp/detail/local_failure.hpp>
#include <ddpp/detail/subset.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/op.hpp>
#include <ddpp/prefix_store.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddpp {

/// The control plane is the outer one, of all ranks: what fails the ranks of one host is told to all with
/// their numbers in the whole group, and what fails the group ends what its ranks do inside their hosts.
template <transport Inner, transport Outer>
class hierarchical {
  static_assert(
      Inner::memory == memory_space::host && Outer::memory == memory_space::host,
      "ddpp: hierarchical joins transports of host memory; on devices use nccl for all ranks, which "
      "knows the links inside a host and between hosts by itself");
  static_assert(has_control_plane<Inner> && has_control_plane<Outer> && has_failure_listener<Outer>,
                "ddpp: both of hierarchical's transports need a control plane, and the outer one an "
                "on_failure; see ddpp/concepts.hpp");

 public:
  struct options {
    /// Ranks that give different names are on different hosts, whatever else is known of them. Those that
    /// give the same one (or none, as usual) are on one host if they can share memory.
    std::string host = {};
    typename Inner::options inner = {};
    typename Outer::options outer = {};
  };

  static constexpr std::string_view name = "hierarchical";
  static constexpr memory_space memory = Outer::memory;
  static constexpr launch_kind launch = Inner::launch;

  /// Collective over all ranks of `boot`. Blocks until all have come, until boot.deadline at most. Throws
  /// what the two transports' constructors throw, and `init_error` where another rank could not join those
  /// on its host.
  hierarchical(const bootstrap& boot, const options& settings)
      : outer_(boot, settings.outer),
        layout_(find_hosts(boot, settings.host)),
        inner_(join_host(boot, settings.inner)),
        listening_(*this) {
    confirm(boot);
  }
  hierarchical(const hierarchical&) = delete;
  hierarchical& operator=(const hierarchical&) = delete;

  int rank() const noexcept { return outer_.rank(); }
  int size() const noexcept { return outer_.size(); }
  int hosts() const noexcept { return layout_.hosts(); }
  /// Hosts are numbered in the order of their first ranks.
  int host_of(int rank) const noexcept { return layout_.host_of(rank); }
  /// The transport between hosts, of which all ranks are members.
  Outer& across() noexcept { return outer_; }

 private:
  using inner_request = decltype(std::declval<Inner&>().isend(std::span<const std::byte>(), 0, 0));
  using outer_request = decltype(std::declval<Outer&>().isend(std::span<const std::byte>(), 0, 0));
  using collectives = detail::hierarchical_collectives<Inner, Outer>;

 public:
  class request {
   public:
    request(hierarchical& owner, std::optional<inner_request> inside, std::optional<outer_request> across)
        : owner_(&owner), inside_(std::move(inside)), across_(std::move(across)) {}

    bool test() {
      return owner_->told([&] { return inside_ ? inside_->test() : across_->test(); });
    }
    void wait(deadline until) {
      owner_->told([&] { inside_ ? inside_->wait(until) : across_->wait(until); });
    }

   private:
    hierarchical* owner_;
    std::optional<inner_request> inside_;
    std::optional<outer_request> across_;
  };

  request isend(std::span<const std::byte> data, int peer, int tag) {
    if (is_inside(peer)) return {*this, inner_->isend(data, layout_.local_of(peer), tag), std::nullopt};
    return {*this, std::nullopt, outer_.isend(data, peer, tag)};
  }
  request irecv(std::span<std::byte> data, int peer, int tag) {
    if (is_inside(peer)) return {*this, inner_->irecv(data, layout_.local_of(peer), tag), std::nullopt};
    return {*this, std::nullopt, outer_.irecv(data, peer, tag)};
  }
  void abort(const failure& cause) { outer_.abort(cause); }

  static constexpr std::size_t preferred_segment = [] {
    if constexpr (has_receive_view<Inner> && has_receive_view<Outer>)
      return std::min<std::size_t>(Inner::preferred_segment, Outer::preferred_segment);
    else
      return std::size_t{64} << 10;
  }();
  template <class F>
  requires has_receive_view<Inner> && has_receive_view<Outer>
  void consume(int peer, int tag, std::size_t bytes, deadline until, F&& f) {
    told([&] {
      if (is_inside(peer))
        inner_->consume(layout_.local_of(peer), tag, bytes, until, std::forward<F>(f));
      else
        outer_.consume(peer, tag, bytes, until, std::forward<F>(f));
    });
  }

  void enter(const fingerprint& print) {
    outer_.enter(print);
    told([&] { inner_->enter(print); });
  }
  void leave() {
    inner_->leave();
    outer_.leave();
  }
  bool failed() const noexcept { return outer_.failed(); }
  failure cause() const { return outer_.cause(); }
  std::vector<rank_state> survey(deadline until) { return outer_.survey(until); }

  verdict agree(std::uint64_t number, const ballot& mine, deadline until) requires has_agreement<Outer> {
    return outer_.agree(number, mine, until);
  }

  void progress_in_background() requires has_background_progress<Inner> && has_background_progress<Outer> {
    inner_->progress_in_background();
    outer_.progress_in_background();
  }

  // Sums of short floats are of their own: added in float, and rounded once.

  template <class E, class Op>
  requires(!(is_short_float<E> && std::is_same_v<Op, sum_t>)) void all_reduce(std::span<E> data, const Op& op,
                                                                              deadline until) {
    told([&] { within(until).all_reduce(data, op); });
  }
  template <class E, class Op>
  requires(!(is_short_float<E> &&
             std::is_same_v<Op, sum_t>)) void reduce_scatter(std::span<const E> in, std::span<E> out,
                                                             const Op& op, deadline until) {
    told([&] { within(until).reduce_scatter(in, out, op); });
  }
  template <class E>
  requires is_short_float<E>
  void sum_in_float(std::span<E> data, int divisor, deadline until) {
    told([&] { within(until).sum_in_float(data, divisor); });
  }
  template <class E>
  requires is_short_float<E>
  void sum_block_in_float(std::span<const E> in, std::span<E> out, int divisor, deadline until) {
    told([&] { within(until).sum_block_in_float(in, out, divisor); });
  }
  template <class E>
  void all_gather(std::span<const E>, std::span<E> out, deadline until) {
    told([&] { within(until).all_gather(std::as_writable_bytes(out)); });
  }
  template <class E>
  void broadcast(std::span<E> data, int root, deadline until) {
    told([&] { within(until).broadcast(std::as_writable_bytes(data), root); });
  }
  void barrier(deadline until) {
    told([&] { within(until).barrier(); });
  }

 private:
  bool is_inside(int peer) const noexcept {
    return peer >= 0 && peer < size() && layout_.host_of(peer) == layout_.host_of(rank());
  }
  std::span<const int> neighbours() const noexcept { return layout_.members(layout_.host_of(rank())); }
  failure told_inside(const failure& cause) const { return detail::told_inside(cause, neighbours().size()); }

  collectives within(deadline until) { return {*inner_, outer_, layout_, until}; }

  /// Runs f. What fails inside this host fails the whole group, whose first cause is the one that counts.
  template <class F>
  decltype(auto) told(F&& f) {
    try {
      return f();
    } catch (const group_failed& failed) {
      if (!outer_.failed()) outer_.abort(as_the_group_says(failed.cause()));
      throw group_failed(outer_.cause());
    }
  }

  [[gnu::cold]] failure as_the_group_says(const failure& inside) {
    if (inside.kind == failure_kind::mismatch && !detail::was_told_inside(inside, neighbours().size())) {
      if (auto table = find_mismatch()) return *table;
    }
    return detail::told_outside(inside, neighbours());
  }

  /// The table of what all ranks are in, if it shows a mismatch. Others may be an instant behind.
  [[gnu::cold]] std::optional<failure> find_mismatch() {
    static constexpr std::chrono::milliseconds longest{200}, pause{5};
    const deadline until = detail::deadline_after(longest);
    for (;;) {
      const auto ranks = outer_.survey(detail::deadline_after(longest));
      const fingerprint& mine = ranks[static_cast<std::size_t>(rank())].last;
      const bool complete = std::all_of(ranks.begin(), ranks.end(), [&](const rank_state& state) {
        return state.is != rank_state::presence::here || state.last.sequence >= mine.sequence;
      });
      if (complete || outer_.failed() || std::chrono::steady_clock::now() >= until) {
        failure found = describe_mismatch(ranks);
        return found.rank < 0 ? std::nullopt : std::optional(std::move(found));
      }
      std::this_thread::sleep_for(pause);
    }
  }

  // Coming together: by the outer transport, whose control plane tells of the dead.

  std::unique_ptr<detail::part<Outer>> everyone(deadline until) {
    return std::make_unique<detail::part<Outer>>(outer_, until);
  }

  [[gnu::cold]] detail::host_layout find_hosts(const bootstrap& boot, const std::string& host) {
    std::vector<detail::host_identity> all(static_cast<std::size_t>(size()));
    in_formation(boot, [&] {
      all[static_cast<std::size_t>(rank())] = detail::host_identity::here(host);
      const auto bytes = std::as_writable_bytes(std::span(all));
      algorithms::bruck{}.all_gather(*everyone(boot.deadline), bytes,
                                     detail::partition(bytes.size(), size()));
    });
    return detail::layout_of(all, Inner::launch);
  }

  [[gnu::cold]] std::unique_ptr<Inner> join_host(const bootstrap& boot,
                                                 const typename Inner::options& settings) {
    bootstrap inside = boot;
    inside.rank = layout_.local_of(rank());
    inside.size = static_cast<int>(neighbours().size());
    inside.store = inside.size == 1 ? nullptr
                                    : std::make_shared<prefix_store>(
                                          detail::text("host.", neighbours().front()), boot.store);
    inside.check_peers = [&] {
      boot.check_peers();
      if (outer_.failed()) throw_failed(outer_.cause());
    };
    std::unique_ptr<Inner> made;
    in_formation(boot, [&] { made = std::make_unique<Inner>(inside, settings); });
    return made;
  }

  /// Runs f, a step of coming together. What keeps this rank from it ends it for all.
  template <class F>
  [[gnu::cold]] void in_formation(const bootstrap& boot, F f) {
    try {
      f();
    } catch (const group_failed& failed) {
      throw_failed(outer_.failed() ? outer_.cause() : detail::told_outside(failed.cause(), neighbours()));
    } catch (const deadline_passed&) {
      const std::string why =
          detail::text("rank ", rank(), " of ", size(), " waited ", detail::text_of(boot.timeout),
                       " in vain for the others to say which hosts they are on");
      outer_.abort({failure_kind::timeout, rank(), why});
      throw timeout_error(why);
    } catch (...) {
      outer_.abort({failure_kind::revoked, rank(),
                    detail::text("rank ", rank(), could_not_join, detail::current_exception_text())});
      throw;
    }
  }

  /// Waits until all have joined. Whoever knows that goes on: what fails the group then is for this rank's
  /// first operation to throw.
  [[gnu::cold]] void confirm(const bootstrap& boot) {
    in_formation(boot, [&] {
      try {
        algorithms::dissemination{}.barrier(*everyone(boot.deadline));
      } catch (const group_failed& failed) {
        if (failed.cause().text.find(could_not_join) != std::string::npos) throw;
      }
    });
  }

  [[noreturn, gnu::cold]] void throw_failed(const failure& cause) const {
    const std::string text = detail::text("rank ", rank(), ", init: ", cause.text);
    if (cause.kind == failure_kind::peer_lost) throw peer_lost(text, cause.rank, "init", 0);
    if (cause.kind == failure_kind::timeout) throw timeout_error(text);
    throw init_error(text);
  }

  /// While it lives, what fails the group ends what this rank does inside its host.
  class listening {
   public:
    explicit listening(hierarchical& owner) : outer_(owner.outer_) {
      outer_.on_failure([&owner](const failure& cause) { owner.inner_->abort(owner.told_inside(cause)); });
    }
    ~listening() { outer_.on_failure({}); }
    listening(const listening&) = delete;
    listening& operator=(const listening&) = delete;

   private:
    Outer& outer_;
  };

  static constexpr const char* could_not_join = " could not join the ranks on its host: ";

  Outer outer_;
  const detail::host_layout layout_;
  const std::unique_ptr<Inner> inner_;
  const listening listening_;
};

}  // namespace ddpp
