// SPDX-License-Identifier: BSL-1.0
// The steps that algorithms are written in: send, receive, receive and combine, exchange. `Comm` is the
// communicator of a running collective; its messages carry the private tag and never outlast the collective's
// deadline.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/function_ref.hpp>
#include <ddpp/detail/partition.hpp>
#include <ddpp/detail/scratch.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>

namespace ddpp::detail {

/// The tag of messages between algorithms. One collective runs at a time and each matches all its messages,
/// so one is enough.
inline constexpr int collective_tag = -1;

/// Sends on the way. At most `window` are open: the oldest is waited for before another begins.
template <class Comm>
class send_window {
 public:
  explicit send_window(Comm& comm) : comm_(comm) {}

  void send(std::span<const std::byte> data, int peer) {
    auto& slot = open_[next_];
    if (slot) slot->wait(comm_.deadline());
    slot.emplace(comm_.transport().isend(data, peer, collective_tag));
    next_ = (next_ + 1) % open_.size();
  }

  /// Returns when all that was sent may be overwritten.
  void finish() {
    for (std::size_t i = 0; i < open_.size(); ++i) {
      auto& slot = open_[(next_ + i) % open_.size()];
      if (slot) slot->wait(comm_.deadline());
      slot.reset();
    }
  }

 private:
  using request = std::remove_cvref_t<decltype(std::declval<Comm&>().transport().isend(
      std::span<const std::byte>(), 0, 0))>;
  static constexpr std::size_t window = 8;

  Comm& comm_;
  std::array<std::optional<request>, window> open_;
  std::size_t next_ = 0;
};

template <class Comm>
void send(Comm& comm, std::span<const std::byte> data, int peer) {
  comm.transport().isend(data, peer, collective_tag).wait(comm.deadline());
}

template <class Comm>
void receive(Comm& comm, std::span<std::byte> data, int peer) {
  comm.transport().irecv(data, peer, collective_tag).wait(comm.deadline());
}

/// Which operand of a reduction the received one is. The lower rank's comes first.
enum class operand { first, second };

template <class Comm>
operand operand_from(const Comm& comm, int peer) {
  return peer < comm.rank() ? operand::first : operand::second;
}

/// into[i] = op(theirs[i], own[i]), or the other way round, for a message of own.size() elements from `peer`.
template <class Comm, class T, class Op>
void receive_and_combine(Comm& comm, std::span<T> into, std::span<const T> own, int peer, operand theirs,
                         const Op& op) {
  using transport = std::remove_cvref_t<decltype(comm.transport())>;
  const auto apply = [&](const T* received) {
    if (theirs == operand::first)
      combine(into.data(), received, own.data(), own.size(), op);
    else
      combine(into.data(), own.data(), received, own.size(), op);
  };
  if constexpr (has_receive_view<transport>) {
    comm.transport().consume(
        peer, collective_tag, own.size_bytes(), comm.deadline(),
        [&](std::span<const std::byte> view) { apply(reinterpret_cast<const T*>(view.data())); });
  } else {
    scratch<T> received(own.size());
    receive(comm, std::as_writable_bytes(received.span()), peer);
    apply(received.data());
  }
}

/// Sends `out` and receives `incoming` elements, in segments that alternate: `take(segment)` receives one of
/// them. Offsets and counts of segments are in elements.
template <class Comm>
void exchange_segments(Comm& comm, std::span<const std::byte> out, std::size_t element_size, int to,
                       std::size_t incoming, function_ref<void(segment)> take) {
  using transport = std::remove_cvref_t<decltype(comm.transport())>;
  const std::size_t length = segment_length<transport>(element_size), count = out.size() / element_size;
  const std::size_t rounds = std::max(segments_in(count, length), segments_in(incoming, length));
  send_window<Comm> sends(comm);
  for (std::size_t i = 0; i < rounds; ++i) {
    if (const segment s(i, length, count); s.count > 0)
      sends.send(out.subspan(s.offset * element_size, s.count * element_size), to);
    if (const segment s(i, length, incoming); s.count > 0) take(s);
  }
  sends.finish();
}

/// Exchanges with a partner; what arrives is combined into `kept`, which must not overlap `out`.
template <class Comm, class T, class Op>
void exchange_and_combine(Comm& comm, std::span<const T> out, std::span<T> kept, int partner, operand theirs,
                          const Op& op) {
  exchange_segments(comm, std::as_bytes(out), sizeof(T), partner, kept.size(), [&](segment s) {
    const auto part = kept.subspan(s.offset, s.count);
    receive_and_combine(comm, part, std::span<const T>(part), partner, theirs, op);
  });
}

/// `exchange` in bytes, which are cut between elements.
template <class Comm>
void exchange_bytes(Comm& comm, std::span<const std::byte> out, int to, std::span<std::byte> in, int from,
                    std::size_t element_size) {
  exchange_segments(comm, out, element_size, to, in.size() / element_size, [&](segment s) {
    receive(comm, in.subspan(s.offset * element_size, s.count * element_size), from);
  });
}

/// Exchanges with a partner; what arrives is stored in `in`, which must not overlap `out`.
template <class Comm, class T>
void exchange(Comm& comm, std::span<const T> out, int to, std::span<T> in, int from) {
  exchange_bytes(comm, std::as_bytes(out), to, std::as_writable_bytes(in), from, sizeof(T));
}

template <class Comm, class T>
void send_segments(Comm& comm, std::span<const T> out, int peer) {
  exchange_segments(comm, std::as_bytes(out), sizeof(T), peer, 0, [](segment) {});
}

template <class Comm, class T>
void receive_segments(Comm& comm, std::span<T> in, int peer) {
  exchange(comm, std::span<const T>(), peer, in, peer);
}

template <class Comm, class T, class Op>
void receive_and_combine_segments(Comm& comm, std::span<T> data, int peer, operand theirs, const Op& op) {
  exchange_and_combine(comm, std::span<const T>(), data, peer, theirs, op);
}

}  // namespace ddpp::detail
