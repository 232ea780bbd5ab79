// SPDX-License-Identifier: BSL-1.0
// communicator<Transport, Algorithms>: a group of ranks that exchange data. Everything it can do is a free
// function over it (all_reduce.hpp, point_to_point.hpp, ...), but for what concerns the group itself.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/algorithms/automatic.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/function_ref.hpp>
#include <ddpp/detail/group.hpp>
#include <ddpp/detail/member_watch.hpp>
#include <ddpp/detail/regroup.hpp>
#include <ddpp/detail/subgroup_call.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/prefix_store.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp {

/// A movable handle to a group's shared state, which pending work keeps alive too.
///
/// - Collectives are issued in one order, the same on all ranks. They may come from several threads if the
/// program
///   orders them alike on all ranks. Asynchronous ones run in that order on a progress thread, started by the
///   first.
/// - Point-to-point operations may come from any thread and wait for no collective.
/// - An error under `group_error`, and a `timeout_error` of a collective, fails the communicator on all its
/// ranks:
///   each later call throws the first cause. `usage_error` and a timeout of a point-to-point operation do
///   not.
/// - The last handle's destruction says goodbye and does not wait for the others.
/// - One that has been moved from throws `usage_error` when it is used.
template <ddpp::transport T, class A = algorithms::automatic>
class communicator {
 public:
  using transport_type = T;
  using algorithms_type = A;

  /// Collective over the ranks of `boot`; blocks until all have come or boot.deadline has passed. `init` and
  /// `launch` are the usual ways here.
  explicit communicator(const bootstrap& boot, const typename T::options& options = {})
      : group_(detail::group<T>::make(boot, options)) {}

  communicator(communicator&&) noexcept = default;
  communicator& operator=(communicator&&) noexcept = default;

  int rank() const { return alive().rank(); }
  int size() const { return alive().size(); }
  T& transport() const { return alive().transport(); }
  /// The caller's stream, after which operations are ordered, and which `wait` orders after them. Inside a
  /// script, as a hook is, the one on which its collectives are.
  auto stream() const requires has_stream_order<T> {
    return scope_ ? alive().transport().internal_stream() : alive().transport().stream();
  }
  /// How long any operation may take.
  std::chrono::milliseconds timeout() const { return alive().timeout(); }

  /// Another handle to the same group. Not inside a script, whose communicator ends with it.
  communicator share() const {
    refuse_inside("share");
    return communicator(group_, nullptr);
  }

  /// Collective. The ranks that give the same color form a new communicator, ordered by (key, rank). Blocks.
  communicator split(int color, int key = 0);
  /// Only the ranks listed call it, with the same list, whose order gives the new ranks. Blocks until all
  /// have come.
  communicator subgroup(const std::vector<int>& ranks);
  /// Collective. The same ranks, a communicator of its own.
  communicator duplicate() { return split(0, 0); }

  /// Fails the group: all pending and later operations on all ranks throw `revoked_error` with this rank.
  /// Does not block.
  void revoke(const std::string& cause) {
    alive().fail(
        {failure_kind::revoked, rank(), detail::text("rank ", rank(), " revoked the group: ", cause)});
  }

  // Going on after a failure. All three are collective over the members that are left, block, and work in a
  // group that has failed. A member that has died or left is not waited for; one that is there is, for
  // timeout() at most. Where some ranks call one and some another, those who ask for less are told so, and
  // the others wait for them to come: agree returns false, recover gives way to shrink. As MPI's ULFM; see
  // docs/failure.md.

  /// True on all ranks if all members called it with true, else false on all. A member that died or left did
  /// not. `timeout_error` on all if one did not come in time. Waits for no pending operation.
  bool agree(bool flag) requires has_agreement<T>;

  /// The same members with everything that was going on dropped: this handle then is of a fresh group, and
  /// the old group's pending work throws. `peer_lost` on all if a member has died or left, `timeout_error` if
  /// one did not come in time: the handle is as it was. No other thread may use this handle meanwhile.
  void recover() requires has_agreement<T>;

  /// A new communicator of the members that are left, in the old order. Whoever does not come in time is left
  /// behind and gets `timeout_error`. This handle is as it was.
  communicator shrink() requires has_agreement<T>;

  /// Runs `script(communicator&)` as a collective of its own, on the progress thread, in its place in the
  /// order of collectives. The communicator that the script gets has a private context: its messages never
  /// meet the user's, its collectives run at once. An exception that leaves the script revokes the group;
  /// `wait` rethrows it here.
  template <class Script>
  work start(const fingerprint& print, Script script) {
    refuse_inside("start");
    return detail::group<T>::start(
        group_, print, [state = &alive(), script = std::move(script)](detail::script_scope& scope) mutable {
          communicator inside = within(*state, scope);
          script(inside);
        });
  }

  /// The same, and returns when it is done: on this thread, or inside the script that is running here.
  void run(const fingerprint& print, detail::function_ref<void(communicator&)> script) {
    const auto body = [&](detail::script_scope& scope) {
      communicator inside = within(alive(), scope);
      script(inside);
    };
    if (scope_)
      alive().run_nested(*scope_, print, body);
    else
      alive().run(print, body);
  }

  // For algorithms, which are given a communicator inside a running collective.

  /// When the running collective must be done.
  ddpp::deadline deadline() const { return scope_ ? scope_->until : alive().deadline_from_now(); }
  /// What the ranks say of the running collective; empty outside one.
  fingerprint print() const { return scope_ ? scope_->print : fingerprint{}; }
  /// Whether this is the communicator of a running script.
  bool inside_script() const noexcept { return scope_ != nullptr; }
  const std::shared_ptr<detail::group<T>>& state() const noexcept { return group_; }

 private:
  communicator(std::shared_ptr<detail::group<T>> state, detail::script_scope* scope)
      : group_(std::move(state)), scope_(scope) {}

  // The running script keeps the group alive, so its communicator need not count.
  static communicator within(detail::group<T>& state, detail::script_scope& scope) {
    return communicator(std::shared_ptr<detail::group<T>>(std::shared_ptr<void>(), &state), &scope);
  }

  detail::group<T>& alive() const {
    if (!group_) throw usage_error("this communicator has been moved from");
    return *group_;
  }

  void refuse_inside(const char* what) const {
    if (scope_) throw usage_error(detail::text(what, " cannot be called inside a hook or an algorithm"));
  }

  /// Of `members`, ranks of this group in the order of the new one.
  communicator new_group(
      const std::string& key, const std::vector<int>& members, const char* operation,
      const std::function<void()>& look = [] {}) const;

  std::shared_ptr<detail::group<T>> group_;
  detail::script_scope* scope_ = nullptr;
};

template <ddpp::transport T, class A>
communicator<T, A> communicator<T, A>::new_group(const std::string& key, const std::vector<int>& members,
                                                 const char* operation,
                                                 const std::function<void()>& look) const {
  bootstrap boot = group_->origin();
  boot.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  boot.size = static_cast<int>(members.size());
  boot.deadline = group_->deadline_from_now();
  if (!boot.flight_recorder.empty()) boot.flight_recorder += "." + key;
  if (boot.size > 1) boot.store = std::make_shared<prefix_store>(detail::text(key, "/"), boot.store);
  const auto watch = std::make_shared<detail::member_watch<T>>(*group_, members, operation);
  boot.check_peers = [watch, look] {
    watch->look();
    look();
  };
  const auto look_for_reason = [&](const error& e) {  // someone did not come
    try {
      look();
    } catch (const timeout_error&) {  // the store does not answer
    }
    watch->look_for_absence(e.what());
  };
  try {
    return communicator(boot, group_->options());
  } catch (const init_error& e) {
    look_for_reason(e);
    throw;
  } catch (const timeout_error& e) {
    look_for_reason(e);
    throw;
  }
}

template <ddpp::transport T, class A>
communicator<T, A> communicator<T, A>::split(int color, int key) {
  refuse_inside("split");
  using entry = std::array<std::int32_t, 2>;
  std::vector<entry> entries(static_cast<std::size_t>(size()));
  entries[static_cast<std::size_t>(rank())] = {color, key};
  std::uint64_t sequence = 0;
  run({.op = collective::split}, [&](communicator& inside) {
    algorithms::ring{}.all_gather(inside, std::as_writable_bytes(std::span(entries)),
                                  detail::partition(sizeof(entry) * entries.size(), size()));
    sequence = inside.scope_->print.sequence;
  });
  std::vector<std::pair<int, int>> members;  // (key, rank)
  for (int r = 0; r < size(); ++r) {
    const entry& e = entries[static_cast<std::size_t>(r)];
    if (e[0] == color) members.emplace_back(e[1], r);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  return new_group(detail::text("split.", sequence, ".", color), ranks, "split");
}

template <ddpp::transport T, class A>
communicator<T, A> communicator<T, A>::subgroup(const std::vector<int>& ranks) {
  refuse_inside("subgroup");
  std::string list;
  for (const int r : ranks) {
    if (r < 0 || r >= size()) {
      throw usage_error(detail::text("subgroup: rank ", r, " is not in this group of ", size()));
    }
    if (std::count(ranks.begin(), ranks.end(), r) > 1) {
      throw usage_error(detail::text("subgroup: rank ", r, " is listed twice"));
    }
    list += detail::text(list.empty() ? "" : ",", r);
  }
  const auto at = std::find(ranks.begin(), ranks.end(), rank());
  if (at == ranks.end()) {
    throw usage_error(
        detail::text("subgroup: rank ", rank(), " calls it but is not listed; only members call"));
  }
  group_->check_usable([] { return std::string("subgroup"); }, "subgroup");
  const std::uint64_t number = group_->next_subgroup(list);
  std::function<void()> look = [] {};
  if (ranks.size() > 1) {
    try {
      const auto call = std::make_shared<detail::subgroup_call>(
          group_->origin().store, rank(), ranks, list, number,
          [group = group_.get()](const std::string& other) { return group->subgroups_of(other); });
      look = [call] { call->look(); };
    } catch (const timeout_error& e) {
      detail::member_watch<T>(*group_, ranks, "subgroup").look_for_absence(e.what());
      throw;
    }
  }
  return new_group(detail::text("subgroup.", list, ".", number), ranks, "subgroup", look);
}

template <ddpp::transport T, class A>
bool communicator<T, A>::agree(bool flag) requires has_agreement<T> {
  refuse_inside("agree");
  const verdict result = alive().decide(decision::agree, flag, {});
  if (const auto absent = detail::ranks_that_are(attendance::absent, result); !absent.empty()) {
    throw timeout_error(detail::text("rank ", rank(), ", agree: ", detail::list_of_ranks(absent),
                                     " did not call it within ", detail::text_of(timeout())));
  }
  return result.yes && result.decision == decision::agree &&
         detail::ranks_that_are(attendance::gone, result).empty();
}

template <ddpp::transport T, class A>
void communicator<T, A>::recover() requires has_agreement<T> {
  refuse_inside("recover");
  const auto fresh = detail::regrouping<T>(alive(), decision::recover).form();
  const auto old = std::exchange(group_, fresh);
  if (!old->has_failed()) {
    old->fail({failure_kind::revoked, rank(),
               detail::text("rank ", rank(), " recovered: what the group was doing is dropped")});
  }
}

template <ddpp::transport T, class A>
communicator<T, A> communicator<T, A>::shrink() requires has_agreement<T> {
  refuse_inside("shrink");
  return communicator(detail::regrouping<T>(alive(), decision::shrink).form(), nullptr);
}

}  // namespace ddpp
