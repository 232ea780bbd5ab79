// SPDX-License-Identifier: BSL-1.0
// send, recv and their asynchronous forms. Each (peer, tag) is a channel of its own, first in first out. They
// may be called from any thread, progress on their own, and wait for no collective. A receive brings as many
// bytes as were sent, else the group fails with `mismatch_error`. `timeout_error` leaves the communicator
// usable.
#pragma once

#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/work.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace ddpp {
namespace detail {

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
    if (over_) return true;
    owner_->refuse_in_child();
    error_ = nullptr;  // an earlier wait's time may have been up
    try {
      request_.wait(until);
    } catch (const deadline_passed&) {
      return false;
    } catch (...) {
      keep_error();
    }
    end();
    return true;
  }
  void wait() override {
    if (!wait_until(owner_->deadline_from_now())) {
      try {
        run([] { throw deadline_passed(); });
      } catch (...) {
        error_ = std::current_exception();
      }
    }
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
  return [&comm, bytes = std::as_bytes(as_span(data)), d] {
    return comm.transport().isend(bytes, d.peer, transport_tag(comm, d.tag));
  };
}

template <class C, class B>
auto post_receive(C& comm, B&& data, const message_description& d) {
  return [&comm, bytes = std::as_writable_bytes(as_span(data)), d] {
    return comm.transport().irecv(bytes, d.peer, transport_tag(comm, d.tag));
  };
}

}  // namespace detail

/// Sends the buffer to rank `to`. Blocks until the buffer may be used again; a large one may wait for its
/// receiver.
template <detail::any_communicator C, buffer B>
void send(C& comm, B&& data, int to, int tag = 0) {
  const auto description = detail::describe_message(comm, "send", " to rank ", to, tag);
  detail::run_message(comm, description, detail::post_send(comm, data, description));
}

/// Receives as many elements as rank `from` sends. Blocks until they are there.
template <detail::any_communicator C, mutable_buffer B>
void recv(C& comm, B&& data, int from, int tag = 0) {
  const auto description = detail::describe_message(comm, "recv", " from rank ", from, tag);
  detail::run_message(comm, description, detail::post_receive(comm, data, description));
}

/// Sends `out` to rank `to` while receiving `in` from rank `from`; the two do not overlap. Blocks until both
/// are done.
template <detail::any_communicator C, buffer O, mutable_buffer I>
void send_recv(C& comm, O&& out, int to, I&& in, int from, int tag = 0) {
  const auto sending = detail::describe_message(comm, "send_recv", " to rank ", to, tag);
  const auto receiving = detail::describe_message(comm, "send_recv", " from rank ", from, tag);
  detail::check(detail::are_apart(std::as_bytes(as_span(out)), std::as_bytes(as_span(in))), "send_recv",
                "the two buffers overlap");
  auto received = detail::post_receive(comm, in, receiving)();
  detail::run_message(comm, sending, detail::post_send(comm, out, sending));
  detail::run_message(comm, receiving, [&] { return std::move(received); });
}

/// Issues the operations that `f` issues as one group, so that opposite sends and receives cannot wait for
/// each other. The transports on a host need no help with that: there it is just f().
template <detail::any_communicator C, class F>
void group(C& comm, F&& f) {
  if constexpr (requires { comm.transport().group(std::forward<F>(f)); })
    comm.transport().group(std::forward<F>(f));
  else
    std::forward<F>(f)();
}

/// Returns at once. The buffer must not change until the work is done.
template <detail::any_communicator C, buffer B>
work isend(C& comm, B&& data, int to, int tag = 0) {
  detail::require_lasting<B>();
  const auto description = detail::describe_message(comm, "isend", " to rank ", to, tag);
  return detail::start_message(comm, description, detail::post_send(comm, data, description));
}

/// Returns at once. The buffer belongs to the operation until the work is done.
template <detail::any_communicator C, mutable_buffer B>
work irecv(C& comm, B&& data, int from, int tag = 0) {
  detail::require_lasting<B>();
  const auto description = detail::describe_message(comm, "irecv", " from rank ", from, tag);
  return detail::start_message(comm, description, detail::post_receive(comm, data, description));
}

}  // namespace ddpp
