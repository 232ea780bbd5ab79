// SPDX-License-Identifier: BSL-1.0
// The block of memory through which ranks on one host talk, and what is where in it:
//
//     header | a control slot per rank | who came to which decision | which rings are open | a chunk pool per
//     rank | a ring per ordered pair | room for slots per rank
//
// All but the rings and the slots are there from the start. The rings are reserved one by one, when first
// used.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/detail/atomics.hpp>
#include <ddpp/detail/block_name.hpp>
#include <ddpp/detail/chunk_pool.hpp>
#include <ddpp/detail/futex.hpp>
#include <ddpp/detail/parking.hpp>
#include <ddpp/detail/spsc_ring.hpp>
#include <ddpp/detail/state_board.hpp>
#include <ddpp/detail/symmetric_window.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace ddpp::detail {

inline constexpr std::size_t fabric_chunk_bytes = std::size_t{64} << 10;
inline constexpr int fabric_chunks = 16;  // per rank
inline constexpr std::size_t fabric_inline_bytes = 192;
inline constexpr std::uint32_t fabric_ring_slots = 16;
inline constexpr std::size_t most_staging_bytes = std::size_t{8} << 20;  // per rank

/// Room for a rank's slots, where so much memory is available for all: a fraction of it. More than innermost
/// caches hold, but no more than needed where ranks are many, whose slots push each other out of the caches.
inline std::size_t staging_bytes_for(int ranks, std::size_t available) {
  constexpr std::size_t all = std::size_t{128} << 20, least_of_many = std::size_t{1} << 20,
                        least = std::size_t{256} << 10;
  const auto number = static_cast<std::size_t>(ranks);
  const std::size_t wanted = std::clamp(all / number, least_of_many, most_staging_bytes);
  const std::size_t a_line_for_each = (number + 2) * 64 * 4;  // see staged::fits_slots
  const std::size_t needed = std::min(std::max(least, a_line_for_each), most_staging_bytes);
  return std::max(std::min(wanted, available / 4 / number), needed) / 4096 * 4096;
}

/// A piece of a message on its way. The first piece speaks for the message.
struct fabric_entry {
  std::int32_t tag;
  std::int32_t chunk;  ///< of the sender's pool, or -1: the bytes are in `inline_bytes`
  std::uint64_t message_bytes;
  std::uint32_t piece_bytes;
  std::uint32_t reserved;
  fingerprint print;
  alignas(64) std::byte inline_bytes[fabric_inline_bytes];
};
static_assert(sizeof(fabric_entry) == 256);

using fabric_ring = spsc_ring<fabric_entry, fabric_ring_slots>;

/// How far a rank is in the rounds of fabric_slots: a cache line that the others wait for. The rest is
/// written before `round`. (No two of them are neighbours, as processors fetch lines in pairs.)
template <class Atomics = native_atomics>
struct alignas(128) fabric_arrival_flag {
  template <class T>
  using plain = typename Atomics::template plain<T>;
  static constexpr std::size_t inline_bytes = 32;

  typename Atomics::template atomic<std::uint64_t> round{0};
  plain<std::uint64_t> digest{0};             ///< of its collective, and of all before
  plain<std::uint64_t> offset{0};             ///< where in its part of the window its buffer begins, in bytes
  plain<std::uint32_t> window{0};             ///< the symmetric one that its buffer lies in, or 0
  alignas(32) std::byte bytes[inline_bytes];  ///< the slot, where so few are enough
};
static_assert(sizeof(fabric_arrival_flag<>) == 128 && offsetof(fabric_arrival_flag<>, bytes) == 32);

/// What the digest in a flag stands for. Read only where digests differ; the digest then says which entry is
/// meant, and may be read of one that is being written.
struct alignas(128) fabric_collective {
  std::atomic<std::uint64_t> digest{0};
  fingerprint now, before;
};

/// What a rank says to a decision: see fabric_agreement.
struct fabric_ballot {
  std::atomic<std::uint64_t> number{0};  ///< of the decision that it is for; stored last
  std::atomic<ddpp::decision> decision{};
  std::atomic<bool> yes{false};
  std::atomic<std::uint8_t> note_bytes{0};
  std::array<std::atomic<char>, longest_note> note{};
};
static_assert(longest_note <= 255);

enum class fabric_presence : std::uint32_t { absent, here, left };

/// What a parked rank wants to be woken for.
inline constexpr std::uint32_t wake_for_messages = 1;
inline constexpr std::uint32_t wake_for_room = 2;

struct alignas(128) fabric_slot {
  detail::parking<> parking;  // of the rank's leader
  alignas(64) std::atomic<fabric_presence> presence{fabric_presence::absent};
  alignas(64) state_board<> board;
  std::atomic<std::int64_t> process{0};  // its number in /proc; 0: not known

  fabric_collective collectives[2];  // the latest two, in turn

  // Why the group fails, in this rank's words: written once, before the compare-exchange of `first_failure`.
  alignas(64) failure_kind failure_is{failure_kind::none};
  std::int32_t failure_rank{-1};
  std::uint64_t failure_length{0};
  char failure_text[longest_failure_text]{};

  chunk_flag<> chunks[fabric_chunks];

  fabric_arrival_flag<> arrivals[2];  // for even and odd rounds
  alignas(128) std::atomic<std::uint64_t> reduced{0};

  alignas(128) fabric_ballot ballots[2];  // for even and odd numbers
};

struct fabric_header {
  static constexpr std::uint64_t right_magic = 0x6464'7070'6661'6237;  // changes with the layout

  std::uint64_t magic;
  block_name nonce;
  std::uint32_t ranks;
  std::uint64_t staging_bytes;
  alignas(64) std::atomic<std::uint32_t> first_failure{0};  // 1 + the rank whose words count, or 0
  alignas(64) futex_word attached{0};                       // how many ranks are or were here
  std::atomic<std::uint32_t> moved{0};                      // everyone has to come to another block instead
  alignas(64) std::atomic<std::uint64_t> decided{0};        // the last decision: see fabric_agreement
  alignas(64) futex_word agreement_bell{0};                 // rung when somebody votes or decides
};

/// Where things are, in bytes from the start, for a number of ranks.
struct fabric_layout {
  explicit fabric_layout(int ranks) : size(static_cast<std::size_t>(ranks)) {}

  std::size_t size;
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t pool_bytes = fabric_chunk_bytes * fabric_chunks;

  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

  std::size_t slots() const { return round_up(sizeof(fabric_header)); }
  std::size_t attendances() const { return slots() + size * sizeof(fabric_slot); }
  std::size_t open_flags() const { return attendances() + 2 * size * size; }
  std::size_t pools() const { return round_up(open_flags() + size * size); }
  std::size_t rings() const { return pools() + size * pool_bytes; }
  std::size_t ring(int from, int to) const {
    return rings() +
           (static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to)) * sizeof(fabric_ring);
  }
  /// What must be there from the start, and all.
  std::size_t initial_bytes() const { return rings(); }
  std::size_t staging() const { return round_up(rings() + size * size * sizeof(fabric_ring)); }
  std::size_t total_bytes() const { return staging() + size * most_staging_bytes; }
};

/// Memory of all ranks' that one of them has made, and how the others find it.
struct window_offer {
  std::string address;
  std::shared_ptr<symmetric_window> window;
  std::shared_ptr<void> door;  ///< to be kept until all have found it
};

/// One rank's hold on the block. Destroying it lets go.
class fabric_memory {
 public:
  using atomics = native_atomics;

  virtual ~fabric_memory() = default;
  fabric_memory(const fabric_memory&) = delete;
  fabric_memory& operator=(const fabric_memory&) = delete;

  /// Makes a range beyond the initial one usable. Throws `resource_error`.
  virtual void reserve(std::size_t offset, std::size_t bytes) = 0;
  /// Whether a rank that has been here still exists. (One that has left may or may not.)
  virtual bool exists(int rank) const = 0;
  /// Whether it is there but stopped, by a signal or a debugger, as far as can be told.
  virtual bool is_stopped(int) const { return false; }

  /// Makes a symmetric window with so many bytes for each rank. Rank 0 offers, the others accept; either
  /// throws `resource_error`.
  virtual window_offer offer_window(std::size_t bytes) = 0;
  virtual std::shared_ptr<symmetric_window> accept_window(const std::string& address, int rank,
                                                          std::size_t bytes) = 0;

  int ranks() const noexcept { return ranks_; }
  fabric_header& header() const noexcept { return *at<fabric_header>(0); }
  fabric_slot& slot(int rank) const noexcept {
    return at<fabric_slot>(layout_.slots())[static_cast<std::size_t>(rank)];
  }
  /// Set by the sender when it has made the ring. A receiver does not touch the ring before.
  std::atomic<std::uint8_t>& is_open(int from, int to) const noexcept {
    return at<std::atomic<std::uint8_t>>(
        layout_.open_flags())[static_cast<std::size_t>(to) * layout_.size + static_cast<std::size_t>(from)];
  }
  /// How `rank` took part in an even- or odd-numbered decision, as `decider` saw it.
  std::atomic<attendance>& attended(bool odd, int decider, int rank) const noexcept {
    const std::size_t table = (odd ? layout_.size : 0) + static_cast<std::size_t>(decider);
    return at<std::atomic<attendance>>(
        layout_.attendances())[table * layout_.size + static_cast<std::size_t>(rank)];
  }
  std::byte* chunk(int rank, int number) const noexcept {
    return base_ + layout_.pools() + static_cast<std::size_t>(rank) * fabric_layout::pool_bytes +
           static_cast<std::size_t>(number) * fabric_chunk_bytes;
  }
  fabric_ring& make_ring(int from, int to) {
    reserve(layout_.ring(from, to), sizeof(fabric_ring));
    return *new (base_ + layout_.ring(from, to)) fabric_ring;
  }
  fabric_ring& ring(int from, int to) const noexcept { return *at<fabric_ring>(layout_.ring(from, to)); }

  /// The first bytes of that room.
  void reserve_staging(int rank, std::size_t bytes) {
    reserve(layout_.staging() + static_cast<std::size_t>(rank) * most_staging_bytes, bytes);
  }

  /// Room for a rank's slots, the same for all.
  std::size_t staging_bytes() const noexcept { return header().staging_bytes; }
  /// Not touched before its owner has reserved it.
  std::byte* staging(int rank) const noexcept {
    return base_ + layout_.staging() + static_cast<std::size_t>(rank) * most_staging_bytes;
  }

  /// One load.
  bool has_failed() const noexcept { return header().first_failure.load(std::memory_order_seq_cst) != 0; }
  /// Only once it has failed: the cause that was there first.
  failure first_failure() const {
    const std::uint32_t by = header().first_failure.load(std::memory_order_seq_cst);
    const fabric_slot& words = slot(static_cast<int>(by) - 1);
    return {
        words.failure_is, words.failure_rank,
        std::string(words.failure_text, std::min<std::size_t>(words.failure_length, longest_failure_text))};
  }
  /// Puts down why the group fails, unless another rank was first; returns the cause that was. One thread at
  /// a time.
  failure tell_failure(int rank, const failure& cause) {
    fabric_slot& words = slot(rank);
    if (words.failure_is == failure_kind::none) {
      words.failure_is = cause.kind;
      words.failure_rank = cause.rank;
      words.failure_length = cause.text.copy(words.failure_text, longest_failure_text);
      std::uint32_t none = 0;
      header().first_failure.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1,
                                                     std::memory_order_seq_cst);
    }
    return first_failure();
  }

 protected:
  explicit fabric_memory(int ranks) : ranks_(ranks), layout_(ranks) {}

  const fabric_layout& layout() const noexcept { return layout_; }
  std::byte* base() const noexcept { return base_; }
  void set_base(std::byte* base) noexcept { base_ = base; }

  /// Done once per block, by rank 0, in zeroed memory.
  void initialise(const block_name& nonce, std::size_t staging) {
    auto* const header = new (base_) fabric_header{};
    for (int rank = 0; rank < ranks_; ++rank) new (&slot(rank)) fabric_slot;
    header->magic = fabric_header::right_magic;
    header->nonce = nonce;
    header->ranks = static_cast<std::uint32_t>(ranks_);
    header->staging_bytes = staging;
  }

 private:
  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(base_ + offset);
  }

  int ranks_;
  fabric_layout layout_;
  std::byte* base_ = nullptr;
};

}  // namespace ddpp::detail
