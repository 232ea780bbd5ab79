// SPDX-License-Identifier: BSL-1.0
// How messages travel through a block of memory that all ranks share, be they threads or processes.
//
// A message is cut into pieces; each piece is one entry of the ring of its ordered pair. Small pieces are in
// the entry, larger ones in chunks of the sender's pool, which the receiver copies out (or shows to its user)
// and gives back. A send is done when all its pieces are in the ring.
//
// A peer that holds no chunk while none is to be had gets small pieces: a slow one never stops what goes to
// another.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/chunk_pool.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/message_engine.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/spsc_ring.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace ddpp::detail {

class memory_link final : public message_link {
 public:
  memory_link(fabric_memory& memory, int rank)
      : memory_(memory),
        rank_(rank),
        mine_(memory.slot(rank)),
        pool_(mine_.chunks, memory.ranks()),
        peers_(static_cast<std::size_t>(memory.ranks())) {}

  /// Goodbye: what has been sent stays to be received.
  void leave() noexcept {
    mine_.presence.store(fabric_presence::left, std::memory_order_seq_cst);
    DDPP_PROBE(goodbye_said);
    wake_everyone();
  }

  /// Where everyone stands, as far as the block tells.
  std::vector<rank_state> survey() const {
    std::vector<rank_state> ranks(peers_.size());
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      rank_state& state = ranks[static_cast<std::size_t>(rank)];
      const fabric_slot& slot = memory_.slot(rank);
      if (const auto read = slot.board.read()) state = *read;
      switch (presence_of(rank)) {
        case fabric_presence::absent:
          state.is = rank_state::presence::unknown;
          break;
        case fabric_presence::left:
          state.is = rank_state::presence::left;
          break;
        case fabric_presence::here:
          state.is = has_died(rank)             ? rank_state::presence::lost
                     : memory_.is_stopped(rank) ? rank_state::presence::stopped
                                                : rank_state::presence::here;
          break;
      }
    }
    return ranks;
  }

  void poll(message_engine& engine) override {
    if (memory_.has_failed()) {
      engine.accept_failure(memory_.first_failure());
      return;
    }
    engine.senders().for_each([&](int peer) { push(engine, peer); });
    engine.receivers().for_each([&](int peer) { pull(engine, peer); });
  }

  void push(message_engine& engine, int peer) override {
    if (has_left(peer)) return;
    while (operation* const op = engine.next_send(peer)) {
      if (!push_piece(engine, peer, *op)) {
        // A leader that parked before there was anything to send does not ask for room yet.
        if (mine_.parking.wanted() == wake_for_messages) ring();
        return;
      }
    }
  }

  void pull(message_engine& engine, int peer) override {
    if (!find_incoming(peer)) return;
    for (int pieces = 0; pieces < most_pieces_at_once; ++pieces) {
      if (!pull_piece(engine, peer)) return;
    }
  }

  void prepare_send(int peer) override {
    if (at(peer).outgoing) return;
    at(peer).outgoing = producer(memory_.make_ring(rank_, peer));
    DDPP_PROBE(ring_made);
    memory_.is_open(rank_, peer).store(1, std::memory_order_seq_cst);
  }

  std::uint32_t announce_park(const message_engine& engine) override {
    return mine_.parking.announce(wake_for_messages | (engine.senders().empty() ? 0 : wake_for_room));
  }

  void cancel_park() override { mine_.parking.cancel(); }

  void park(message_engine& engine, std::uint32_t ticket, deadline until) override {
    const auto before = std::chrono::steady_clock::now();
    if (until > before) {
      mine_.parking.sleep(ticket, std::min<std::chrono::nanoseconds>(until - before, longest_nap));
    }
    DDPP_PROBE(unparked);
    cancel_park();
    const auto now = std::chrono::steady_clock::now();
    if (now - watched_ < longest_nap) return;
    watched_ = now;
    watch(engine);
  }

  void ring() noexcept override { mine_.parking.wake(wake_for_messages); }

  /// Something has been stored that other ranks may wait for. From any thread.
  void wake_others() noexcept {
    for (int rank = 0; rank < memory_.ranks(); ++rank) {
      if (rank != rank_) memory_.slot(rank).parking.wake(wake_for_messages);
    }
  }

  failure spread(const failure& cause) override {
    failure first = memory_.tell_failure(rank_, cause);
    wake_everyone();
    return first;
  }

  void investigate(message_engine& engine, const suspicion& found) override {
    const deadline until = std::chrono::steady_clock::now() + longest_survey;
    for (;;) {
      std::vector<rank_state> ranks = survey();
      ranks[static_cast<std::size_t>(rank_)].last = found.mine;
      ranks[static_cast<std::size_t>(found.peer)].last = found.theirs;
      const bool complete = std::all_of(ranks.begin(), ranks.end(), [&](const rank_state& state) {
        return state.is != rank_state::presence::here || state.last.sequence >= found.mine.sequence;
      });
      if (complete || engine.failed() || std::chrono::steady_clock::now() >= until) {
        engine.abort(describe_mismatch(ranks));
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool has_left(int peer) override { return presence_of(peer) == fabric_presence::left; }

  bool is_dry(int peer) override { return !find_incoming(peer) || at(peer).incoming.front() == nullptr; }

  std::optional<fingerprint> last_known(int peer) override {
    const auto state = memory_.slot(peer).board.read();
    return state ? std::optional(state->last) : std::nullopt;
  }

  std::optional<fingerprint> peek(int peer) override {
    if (!find_incoming(peer)) return std::nullopt;
    const fabric_entry* const next = at(peer).incoming.front();
    return next != nullptr && next->tag < 0 ? std::optional(next->print) : std::nullopt;
  }

  void take_back(int peer, int loan) noexcept override { release_chunk(peer, loan); }

  void publish(const fingerprint& print, bool inside) noexcept override { mine_.board.write(print, inside); }

 private:
  using producer = ring_producer<fabric_entry, fabric_ring_slots>;
  using consumer = ring_consumer<fabric_entry, fabric_ring_slots>;

  struct peer_state {
    producer outgoing;
    consumer incoming;
  };

  using chunks = chunk_pool<fabric_chunks>;

  static constexpr int most_pieces_at_once = 16;  // so that others get the mutex
  static constexpr std::chrono::milliseconds longest_nap{10};
  static constexpr std::chrono::milliseconds longest_survey{100};

  peer_state& at(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }

  // Sending. False: no room.

  bool push_piece(message_engine& engine, int peer, operation& op) {
    fabric_entry* const entry = at(peer).outgoing.room();
    if (entry == nullptr) return false;
    std::size_t bytes = op.bytes - op.moved;
    std::byte* to = entry->inline_bytes;
    entry->chunk = chunks::none;
    if (bytes > fabric_inline_bytes) {
      entry->chunk = pool_.take(peer);
      if (entry->chunk != chunks::none) {
        to = memory_.chunk(rank_, entry->chunk);
        bytes = std::min(bytes, fabric_chunk_bytes);
      } else if (!pool_.holds_any(peer)) {
        bytes = fabric_inline_bytes;
      } else {
        return false;
      }
    }
    entry->tag = op.tag;
    entry->message_bytes = op.bytes;
    entry->piece_bytes = static_cast<std::uint32_t>(bytes);
    entry->print = op.print;
    copy_bytes(to, op.from + op.moved, bytes);
    DDPP_PROBE(entry_written);
    at(peer).outgoing.push();
    DDPP_PROBE(entry_published);
    memory_.slot(peer).parking.wake(wake_for_messages);
    engine.sent(op, bytes);
    return true;
  }

  // Receiving.

  bool find_incoming(int peer) {
    consumer& incoming = at(peer).incoming;
    if (!incoming && memory_.is_open(peer, rank_).load(std::memory_order_seq_cst) != 0) {
      incoming = consumer(memory_.ring(peer, rank_));
    }
    return static_cast<bool>(incoming);
  }

  // False: nothing there, or nobody who wants it.
  bool pull_piece(message_engine& engine, int peer) {
    consumer& incoming = at(peer).incoming;
    const fabric_entry* const entry = incoming.front();
    if (entry == nullptr) return false;
    const bool whole = !engine.mid_message(peer) && entry->piece_bytes == entry->message_bytes;
    if (!engine.mid_message(peer) &&
        !engine.begin_message(peer, {entry->tag, entry->message_bytes, entry->print})) {
      return false;
    }
    const std::int32_t chunk = entry->chunk;
    const std::span<const std::byte> piece(
        chunk == chunks::none ? entry->inline_bytes : memory_.chunk(peer, chunk), entry->piece_bytes);
    if (chunk != chunks::none && whole && engine.wants_view(peer)) {
      engine.lend(peer, piece, chunk);
    } else {
      engine.deliver(peer, piece);
      if (chunk != chunks::none) release_chunk(peer, chunk);
    }
    DDPP_PROBE(entry_read);
    incoming.pop();
    DDPP_PROBE(entry_released);
    memory_.slot(peer).parking.wake(wake_for_room);
    return true;
  }

  void release_chunk(int peer, int chunk) noexcept {
    fabric_slot& owner = memory_.slot(peer);
    owner.chunks[chunk].release();
    DDPP_PROBE(chunk_released);
    owner.parking.wake(wake_for_room);
  }

  void wake_everyone() noexcept {
    for (int rank = 0; rank < memory_.ranks(); ++rank) memory_.slot(rank).parking.wake(wake_for_messages);
  }

  // What no message tells.

  fabric_presence presence_of(int rank) const noexcept {
    return memory_.slot(rank).presence.load(std::memory_order_seq_cst);
  }

  bool has_died(int rank) const {
    const auto is_there = [&] { return presence_of(rank) == fabric_presence::here; };
    return rank != rank_ && is_there() && !memory_.exists(rank) && is_there();
  }

  // Looks for who has died, and who is in another collective than this rank.
  void watch(message_engine& engine) {
    const rank_state here = engine.state();
    for (int peer = 0; peer < memory_.ranks(); ++peer) {
      if (has_died(peer)) {
        engine.abort({failure_kind::peer_lost, peer, text("rank ", peer, " died")});
        return;
      }
      const auto there = memory_.slot(peer).board.read();
      if (here.inside && there && there->last.sequence == here.last.sequence &&
          there->last.step == here.last.step && there->last != here.last) {
        investigate(engine, {peer, here.last, there->last});
        return;
      }
    }
  }

  fabric_memory& memory_;
  const int rank_;
  fabric_slot& mine_;
  chunks pool_;
  std::vector<peer_state> peers_;
  deadline watched_ = {};  // the leader's
};

}  // namespace ddpp::detail
