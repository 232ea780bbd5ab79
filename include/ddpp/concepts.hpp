// SPDX-License-Identifier: BSL-1.0
// What a transport is, and what it may be able to do besides. A new backend is one file that satisfies
// `transport`; every capability below is optional and asked for where it is used.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddpp {

class store;

/// Where a backend's buffers live.
enum class memory_space : std::uint8_t { host, device };

/// What `launch` makes ranks of.
enum class launch_kind : std::uint8_t { processes, threads };

/// Bytes that prove membership in a job. Empty: there is none, and only this host may be talked to.
using secret = std::string;

/// What a transport is constructed from.
struct bootstrap {
  int rank = 0;
  int size = 1;
  std::shared_ptr<ddpp::store> store =
      {};  ///< this group's own: no other group sees these keys. Null if size is 1
  ddpp::secret secret = {};
  std::string host = {};         ///< the local address that reached the rendezvous; empty if size is 1
  ddpp::deadline deadline = {};  ///< for coming together, connections made later included in `timeout`
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Where the group's flight recorder writes: the beginning of the files' names. Empty: there is none.
  std::string flight_recorder = {};
  /// For constructors to call now and then while they wait for others: throws once it is known that those
  /// will not come.
  std::function<void()> check_peers = [] {};
};

/// A pending send or receive. `wait` throws `group_failed` or `deadline_passed`; both leave the buffer unused
/// once the request is destroyed. Destroying an unfinished request withdraws it.
template <class R>
concept transport_request = std::movable<R> && requires(R& request, ddpp::deadline until) {
  { request.test() } -> std::same_as<bool>;
  { request.wait(until) } -> std::same_as<void>;
};

/// Moves bytes between the ranks of one group.
///
/// - Messages are first-in first-out per (peer, tag). Any number may be in flight; a receive's size must be
/// the
///   sent size (else the group fails with `mismatch`). Sending to oneself works.
/// - Tags from 0 are the user's, negative tags the library's.
/// - isend and irecv never block and may be called from any thread.
/// - `abort(cause)` fails the group: every present and later wait throws `group_failed` with the first cause,
///   on this rank at once, and on the others where the transport can tell them. It may be called from any
///   thread.
/// - The constructor from (bootstrap, options) is collective and keeps to bootstrap.deadline. The destructor
/// is
///   not: it says goodbye (leaving is not dying) and drops what nobody has received yet only if the group
///   failed.
template <class T>
concept transport = std::default_initializable<typename T::options> &&
    std::constructible_from<T, const bootstrap&, const typename T::options&> &&
    requires(T& t, const T& c, std::span<const std::byte> out, std::span<std::byte> in, int peer, int tag,
             const failure& cause) {
  { T::name } -> std::convertible_to<std::string_view>;
  { T::memory } -> std::convertible_to<memory_space>;
  { T::launch } -> std::convertible_to<launch_kind>;
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
  { t.isend(out, peer, tag) } -> transport_request;
  { t.irecv(in, peer, tag) } -> transport_request;
  {t.abort(cause)};
};

/// Knows where its peers stand and what failed them. `enter` and `leave` bracket each collective on the
/// thread that runs it and cost no message; between them, messages with negative tags carry `print`, and a
/// receive that meets another one fails the group with `describe_mismatch`. `failed()` is one load; `cause()`
/// is meaningful once it is true. `survey` asks where everyone stands and answers with one entry per rank by
/// `until` at the latest.
template <class T>
concept has_control_plane = requires(T& t, const T& c, const fingerprint& print, ddpp::deadline until) {
  {t.enter(print)};
  {t.leave()};
  { c.failed() } -> std::same_as<bool>;
  { c.cause() } -> std::same_as<failure>;
  { t.survey(until) } -> std::same_as<std::vector<rank_state>>;
};

/// Can decide with whoever is left, also after the group has failed. Ranks call it for the numbers 1, 2, ...
/// in turn, one at a time each. All that return for a number get the same verdict; who dies or leaves before
/// it has voted is waited for no longer, and whoever has not come when the first voter's `until` passes is
/// absent. A rank that comes later gets the verdict in which it is absent; or, if others have decided more
/// than once since, perhaps one in which everybody is. Blocks; returns a few seconds after `until` at the
/// latest, whatever else fails.
template <class T>
concept has_agreement = requires(T& t, std::uint64_t number, const ballot& mine, ddpp::deadline until) {
  { t.agree(number, mine, until) } -> std::same_as<verdict>;
};

/// Can show a message where the transport has it, instead of copying it out: f(span<const byte>) is called
/// once, on the calling thread, with the whole message, at an address aligned to 64 bytes.
/// `preferred_segment` is the largest message (in bytes) for which that saves a pass over memory.
template <class T>
concept has_receive_view = requires(T& t, int peer, int tag, std::size_t bytes, ddpp::deadline until,
                                    const std::function<void(std::span<const std::byte>)>& f) {
  {t.consume(peer, tag, bytes, until, f)};
  { T::preferred_segment } -> std::convertible_to<std::size_t>;
};

/// Has memory in which each rank shows the others parts of its buffers, in rounds; see
/// detail/fabric_slots.hpp. Slots have room for at least 64 bytes of each rank and 128 more, and are aligned
/// to 64 bytes.
template <class T>
concept has_shared_slots = requires(T& t, int rank, const void* data, std::size_t size,
                                    ddpp::deadline until) {
  t.shared_slots().open(size);
  t.shared_slots().begin_round(size, until);
  { t.shared_slots().slot(rank) } -> std::same_as<std::byte*>;
  { t.shared_slots().last_slot(rank) } -> std::same_as<std::byte*>;
  t.shared_slots().arrive(t.shared_slots().find(data, size));
  t.shared_slots().await_arrival(rank, until);
  t.shared_slots().await_arrivals(until);
  t.shared_slots().place_of(rank);
  t.shared_slots().reduced();
  t.shared_slots().await_reductions(until);
  t.shared_slots().next_round();
  { t.shared_slots().most_bytes() } -> std::same_as<std::size_t>;
};

/// Can give the ranks memory that all of them see: rank 0 makes a window of so many bytes for each rank and
/// says where it is; the others come to it; and each adds it to those it knows, in the same order on all.
/// What add_window returns is the rank's own part, zero at first, for as long as it is kept. The first two
/// throw `resource_error`.
template <class T>
concept has_symmetric_memory = requires(T& t, std::size_t size, const std::string& address) {
  { t.offer_window(size).address } -> std::convertible_to<std::string>;
  { t.add_window(t.offer_window(size).window) } -> std::same_as<std::shared_ptr<std::byte>>;
  { t.add_window(t.accept_window(address, size)) } -> std::same_as<std::shared_ptr<std::byte>>;
};

/// Finishes what `isend` and `irecv` began without anybody waiting for it, from the first call of this on.
template <class T>
concept has_background_progress = requires(T& t) {
  {t.progress_in_background()};
};

/// Tells at once that the group has failed: calls what it was given last, with the first cause, on whatever
/// thread finds that, or in on_failure itself if it has failed already. The call must not use the transport.
/// An empty function ends that; after on_failure has returned, what was given before is not called any more.
template <class T>
concept has_failure_listener = requires(T& t, const std::function<void(const failure&)>& f) {
  {t.on_failure(f)};
};

/// The user's messages have tags. NCCL's have none.
template <class T>
concept has_tags = T::memory == memory_space::host;

/// Runs the library's algorithms and the user's own, and so reduces any type with any operation. Where it
/// does not, there are native collectives alone.
template <class T>
concept runs_algorithms = T::memory == memory_space::host;

/// Puts its collectives on a device's stream, on the calling thread, instead of finishing them.
/// `begin_operation` orders what is issued from there on after what is on the caller's stream, as long as
/// what it returns lives; `end_operation` says where that ends, and has it watched: what is not reached by
/// `until` fails the group. `order_caller` puts what is issued on the caller's stream afterwards behind that
/// place; `await` blocks until it is reached, or returns false once `until` has passed. Where
/// `waits_on_host`, blocking calls do. What is issued goes on `internal_stream`. Once the group has failed
/// `await_end_of_work` blocks until the device lets go of the buffers.
template <class T>
concept has_stream_order = requires(T& t, const fingerprint& print, typename T::mark place,
                                    ddpp::deadline until) {
  t.stream();
  t.internal_stream();
  t.begin_operation();
  { t.end_operation(print, until) } -> std::same_as<typename T::mark>;
  t.order_caller(place);
  { t.is_reached(place) } -> std::same_as<bool>;
  { t.await(place, until) } -> std::same_as<bool>;
  { t.waits_on_host() } -> std::same_as<bool>;
  t.await_end_of_work();
};

/// Native collectives: used when they are there and the caller named no algorithm.
template <class T, class E, class Op>
concept has_all_reduce = requires(T& t, std::span<E> data, Op op, ddpp::deadline until) {
  {t.all_reduce(data, op, until)};
};
template <class T, class E>
concept has_broadcast = requires(T& t, std::span<E> data, int root, ddpp::deadline until) {
  {t.broadcast(data, root, until)};
};
template <class T, class E>
concept has_all_gather = requires(T& t, std::span<const E> in, std::span<E> out, ddpp::deadline until) {
  {t.all_gather(in, out, until)};
};
template <class T, class E, class Op>
concept has_reduce_scatter = requires(T& t, std::span<const E> in, std::span<E> out, Op op,
                                      ddpp::deadline until) {
  {t.reduce_scatter(in, out, op, until)};
};
/// Sums and averages of short floats E, which are added in float, divided and rounded once: of whole
/// buffers, and of equal blocks.
template <class T, class E>
concept has_sums_in_float = requires(T& t, std::span<const E> in, std::span<E> out, int divisor,
                                     ddpp::deadline until) {
  {t.sum_in_float(out, divisor, until)};
  {t.sum_block_in_float(in, out, divisor, until)};
};
template <class T>
concept has_barrier = requires(T& t, ddpp::deadline until) {
  {t.barrier(until)};
};

}  // namespace ddpp
