// SPDX-License-Identifier: BSL-1.0
// send, recv and their asynchronous forms. Each (peer, tag) is a channel of its own, first in first out. They
// may be called from any thread, progress on their own, and wait for no collective. A receive brings as many
// bytes as were sent, else the group fails with `mismatch_error`. `timeout_error` leaves the communicator
// usable. On a device's stream they are collected until somebody waits, and come in the order of collectives.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/device_collective.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/work.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

/// Where no tag is given.
struct untagged {
  constexpr operator int() const noexcept { return 0; }
};

template <class C, class Tag>
constexpr int checked_tag(const Tag& tag) {
  static_assert(
      std::is_same_v<Tag, untagged> || has_tags<typename C::transport_type>,
      "ddpp: NCCL's messages have no tags: they arrive in the order in which they are sent, so leave "
      "the tag out");
  return tag;
}

/// Inside a script messages have tags of their own, below those of the algorithms.
template <class C>
int transport_tag(const C& comm, int tag) {
  return comm.inside_script() ? collective_tag - 1 - tag : tag;
}

/// A send or receive on its way, as the completion of a `work`.
template <class T, class Request>
class message final : public completion {
 public:
  message(std::shared_ptr<group<T>> owner, const message_description& description, Request request)
      : owner_(std::move(owner)), description_(description), request_(std::move(request)) {
    owner_->note(description_, recorded_state::running);
  }

  bool done() override {
    if (!over_ && owner_->in_child()) return false;
    if (!over_ && test()) end();
    return over_;
  }
  bool wait_until(deadline until) override {
    return ends(
        [&] {
          if constexpr (has_stream_order<T>)
            request_.host_wait(until);
          else
            request_.wait(until);
        },
        true);
  }
  void wait() override {
    const deadline until = owner_->deadline_from_now();
    if (!ends([&] { request_.wait(until); }, !has_stream_order<T>)) time_is_up();
  }
  void host_wait() override {
    if (!wait_until(owner_->deadline_from_now())) time_is_up();
  }
  void rethrow() override {
    if (error_) std::rethrow_exception(error_);
  }
  void abandon() noexcept override {
    if (owner_->in_child()) return;
    wait();
    if (error_) owner_->swallow(error_);
  }

 private:
  /// False where the deadline of `await` has passed. Where that only orders streams nothing is over after it.
  template <class Await>
  bool ends(Await&& await, bool finishes) {
    if (over_) return true;
    owner_->refuse_in_child();
    error_ = nullptr;  // an earlier wait's time may have been up
    try {
      await();
    } catch (const deadline_passed&) {
      return false;
    } catch (...) {
      keep_error();
      finishes = true;
    }
    if (finishes) end();
    return true;
  }
  void time_is_up() {
    try {
      run([] { throw deadline_passed(); });
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void end() {
    over_ = true;
    owner_->note(description_, error_ ? recorded_state::failed : recorded_state::done);
  }
  template <class F>
  void run(F&& f) {
    owner_->run_point_to_point([&] { return description_.text(); }, description_.operation,
                               description_.sequence, f);
  }
  bool test() {
    try {
      return request_.test();
    } catch (...) {
      keep_error();
      return true;
    }
  }
  void keep_error() {
    try {
      run([] { throw; });
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::shared_ptr<group<T>> owner_;
  message_description description_;
  Request request_;
  std::exception_ptr error_;
  bool over_ = false;
};

template <class C>
message_description describe_message(C& comm, const char* operation, const char* direction, int peer,
                                     int tag) {
  check_peer(comm, peer, operation, "rank");
  check(tag >= 0, operation, "tag ", tag, " is negative; tags count from 0");
  check(tag < std::numeric_limits<int>::max() - 1, operation, "tag ", tag, " is too large");
  auto& group = *comm.state();
  if (!comm.inside_script()) group.check_usable([&] { return std::string(operation); }, operation);
  return {operation, direction, peer, tag, group.next_point_to_point()};
}

template <class C, class Post>
void run_message(C& comm, const message_description& description, Post&& post) {
  auto& group = *comm.state();
  if (comm.inside_script()) {
    post().wait(comm.deadline());  // the collective around it has the say over failures
  } else {
    group.note(description, recorded_state::running);
    group.run_point_to_point([&] { return description.text(); }, description.operation, description.sequence,
                             [&] { post().wait(comm.deadline()); });
    group.note(description, recorded_state::done);
  }
}

template <class C, class Post>
work start_message(C& comm, const message_description& description, Post&& post) {
  using request = decltype(post());
  using pending = message<typename C::transport_type, request>;
  auto started = std::make_shared<pending>(comm.state(), description, post());
  if constexpr (has_background_progress<typename C::transport_type>) {
    if (!comm.inside_script() && !started->done()) comm.transport().progress_in_background();
  }
  return work(std::move(started));
}

template <class C, class B>
auto post_send(C& comm, B&& data, const message_description& d) {
  const auto bytes = std::as_bytes(as_span(data));
  check_memory(comm, bytes, d.operation);
  return [&comm, bytes, d] {
    if constexpr (is_on_device<C>)
      return comm.transport().isend_device(bytes, d.peer);
    else
      return comm.transport().isend(bytes, d.peer, transport_tag(comm, d.tag));
  };
}

template <class C, class B>
auto post_receive(C& comm, B&& data, const message_description& d) {
  const auto bytes = std::as_writable_bytes(as_span(data));
  check_memory(comm, bytes, d.operation);
  return [&comm, bytes, d] {
    if constexpr (is_on_device<C>)
      return comm.transport().irecv_device(bytes, d.peer);
    else
      return comm.transport().irecv(bytes, d.peer, transport_tag(comm, d.tag));
  };
}

}  // namespace detail

/// Sends the buffer to rank `to`. Blocks until the buffer may be used again; a large one may wait for its
/// receiver.
template <detail::any_communicator C, buffer B, std::convertible_to<int> Tag = detail::untagged>
void send(C& comm, B&& data, int to, Tag tag = {}) {
  const auto description =
      detail::describe_message(comm, "send", " to rank ", to, detail::checked_tag<C>(tag));
  detail::run_message(comm, description, detail::post_send(comm, data, description));
}

/// Receives as many elements as rank `from` sends. Blocks until they are there.
template <detail::any_communicator C, mutable_buffer B, std::convertible_to<int> Tag = detail::untagged>
void recv(C& comm, B&& data, int from, Tag tag = {}) {
  const auto description =
      detail::describe_message(comm, "recv", " from rank ", from, detail::checked_tag<C>(tag));
  detail::run_message(comm, description, detail::post_receive(comm, data, description));
}

/// Sends `out` to rank `to` while receiving `in` from rank `from`; the two do not overlap. Blocks until both
/// are done.
template <detail::any_communicator C, buffer O, mutable_buffer I,
          std::convertible_to<int> Tag = detail::untagged>
void send_recv(C& comm, O&& out, int to, I&& in, int from, Tag tag = {}) {
  const auto sending =
      detail::describe_message(comm, "send_recv", " to rank ", to, detail::checked_tag<C>(tag));
  const auto receiving =
      detail::describe_message(comm, "send_recv", " from rank ", from, detail::checked_tag<C>(tag));
  detail::check(detail::are_apart(std::as_bytes(as_span(out)), std::as_bytes(as_span(in))), "send_recv",
                "the two buffers overlap");
  auto received = detail::post_receive(comm, in, receiving)();
  detail::run_message(comm, sending, detail::post_send(comm, out, sending));
  detail::run_message(comm, receiving, [&] { return std::move(received); });
}

/// Issues the operations that `f` issues as one group, so that opposite sends and receives cannot wait for
/// each other. The transports on a host need no help with that: there it is just f(). On a device's stream
/// waits inside f wait for nothing: the caller's stream is ordered after all of the group at its end.
template <detail::any_communicator C, class F>
void group(C& comm, F&& f) {
  if constexpr (requires { comm.transport().group(std::forward<F>(f)); }) {
    auto& state = *comm.state();
    state.run_point_to_point([] { return std::string("a group of operations"); }, "group",
                             state.next_point_to_point(),
                             [&] { comm.transport().group(std::forward<F>(f)); });
  } else {
    std::forward<F>(f)();
  }
}

/// Returns at once. The buffer must not change until the work is done.
template <detail::any_communicator C, buffer B, std::convertible_to<int> Tag = detail::untagged>
work isend(C& comm, B&& data, int to, Tag tag = {}) {
  detail::require_lasting<B>();
  const auto description =
      detail::describe_message(comm, "isend", " to rank ", to, detail::checked_tag<C>(tag));
  return detail::start_message(comm, description, detail::post_send(comm, data, description));
}

/// Returns at once. The buffer belongs to the operation until the work is done.
template <detail::any_communicator C, mutable_buffer B, std::convertible_to<int> Tag = detail::untagged>
work irecv(C& comm, B&& data, int from, Tag tag = {}) {
  detail::require_lasting<B>();
  const auto description =
      detail::describe_message(comm, "irecv", " from rank ", from, detail::checked_tag<C>(tag));
  return detail::start_message(comm, description, detail::post_receive(comm, data, description));
}

}  // namespace ddpp
