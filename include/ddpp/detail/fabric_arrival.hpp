// SPDX-License-Identifier: BSL-1.0
// How ranks come together at a block of memory: each says that it is here, and waits until all have been.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/fingerprint_text.hpp>
#include <ddpp/detail/futex.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddpp::detail {

inline void announce_arrival(fabric_memory& memory, int rank) {
  memory.slot(rank).presence.store(fabric_presence::here, std::memory_order_seq_cst);
  DDPP_PROBE(presence_shown);
  memory.header().attached.fetch_add(1, std::memory_order_seq_cst);
  DDPP_PROBE(attached);
  futex_wake_all(memory.header().attached);
}

/// This rank goes, and the others are told why they need not wait.
[[gnu::cold]] inline void cancel_arrival(fabric_memory& memory, int rank, const failure& cause) {
  memory.tell_failure(rank, cause);
  memory.slot(rank).presence.store(fabric_presence::left, std::memory_order_seq_cst);
  futex_wake_all(memory.header().attached);
}

/// A rank that has announced itself and died since.
[[gnu::cold]] inline std::optional<int> dead_rank(const fabric_memory& memory, int rank) {
  for (int peer = 0; peer < memory.ranks(); ++peer) {
    const auto& presence = memory.slot(peer).presence;
    if (presence.load(std::memory_order_seq_cst) == fabric_presence::here && peer != rank &&
        !memory.exists(peer) && presence.load(std::memory_order_seq_cst) == fabric_presence::here) {
      return peer;
    }
  }
  return std::nullopt;
}

/// Throws what keeps the ranks from coming together, if anything is known to.
[[gnu::cold]] inline void check_arrivals(const fabric_memory& memory, int rank) {
  const auto did_not = [rank](const auto&... why) {
    return text("rank ", rank, ": the group did not come together: ", why...);
  };
  // Once all have come nothing keeps them: their group may have failed since.
  const auto some_have_not_come = [&] {
    return memory.header().attached.load(std::memory_order_seq_cst) <
           static_cast<std::uint32_t>(memory.ranks());
  };
  if (memory.has_failed() && some_have_not_come()) {
    const failure cause = memory.first_failure();
    if (cause.kind == failure_kind::timeout) throw timeout_error(did_not(cause.text));
    throw init_error(did_not(cause.text));
  }
  const std::optional<int> dead = dead_rank(memory, rank);
  if (dead && some_have_not_come()) throw init_error(did_not("rank ", *dead, " died"));
}

[[gnu::cold]] inline std::string absent_ranks(const fabric_memory& memory) {
  std::vector<int> absent;
  for (int peer = 0; peer < memory.ranks(); ++peer) {
    if (memory.slot(peer).presence.load(std::memory_order_seq_cst) == fabric_presence::absent)
      absent.push_back(peer);
  }
  return list_of_ranks(absent);
}

/// Waits until all ranks have announced themselves. False: they are to meet at another block. Calls
/// `meanwhile()` every now and then. Throws `timeout_error` that names who is missing, or `init_error` when
/// someone cannot come.
[[gnu::cold]] inline bool await_arrivals(fabric_memory& memory, int rank, deadline until,
                                         const std::function<void()>& meanwhile) {
  constexpr std::chrono::milliseconds nap{20};
  for (;;) {
    const std::uint32_t attached = memory.header().attached.load(std::memory_order_seq_cst);
    if (attached == static_cast<std::uint32_t>(memory.ranks())) return true;
    if (memory.header().moved.load(std::memory_order_seq_cst) != 0) return false;
    check_arrivals(memory, rank);
    const auto now = std::chrono::steady_clock::now();
    if (now >= until)
      throw timeout_error(text("rank ", rank, ": ", absent_ranks(memory),
                               " did not come in time to the group of ", memory.ranks()));
    futex_wait(memory.header().attached, attached, std::min<std::chrono::nanoseconds>(nap, until - now));
    if (memory.header().attached.load(std::memory_order_seq_cst) == attached) meanwhile();
  }
}

/// What rank 0 has put under the group's `key`. Blocks; `timeout_error` says that rank 0 did not come.
[[gnu::cold]] inline std::string first_word_of_rank_0(const bootstrap& boot, const std::string& key) {
  if (await_key(boot, key)) return boot.store->get(key);
  throw timeout_error(text("rank ", boot.rank, ": rank 0 did not come in time to the group of ", boot.size));
}

inline constexpr const char* refused_key = "refused";

/// Tells the ranks that wait at the block why this one cannot come to it; returns the same.
[[gnu::cold]] inline std::string tell_refusal(const bootstrap& boot, const std::string& why) {
  const std::string whole = text("rank ", boot.rank, ": ", why);
  boot.store->set(refused_key, whole);
  return whole;
}
[[noreturn, gnu::cold]] inline void refuse(const bootstrap& boot, const std::string& why) {
  throw init_error(tell_refusal(boot, why));
}

/// Looks for reasons elsewhere. Of one that has ended, and perhaps the store with it, the block may tell
/// more.
[[gnu::cold]] inline void look_elsewhere(const fabric_memory& memory, const bootstrap& boot,
                                         const std::function<void()>& meanwhile) {
  try {
    boot.check_peers();
    if (boot.store->check({refused_key})) throw init_error(boot.store->get(refused_key));
    meanwhile();
  } catch (const error&) {
    check_arrivals(memory, boot.rank);
    throw;
  }
}

/// Announces this rank and waits for the others; who fails at it tells them. Otherwise as await_arrivals.
[[gnu::cold]] inline bool come_together(fabric_memory& memory, const bootstrap& boot,
                                        const std::function<void()>& meanwhile) {
  announce_arrival(memory, boot.rank);
  try {
    const bool stays =
        await_arrivals(memory, boot.rank, boot.deadline, [&] { look_elsewhere(memory, boot, meanwhile); });
    if (!stays) memory.slot(boot.rank).presence.store(fabric_presence::left, std::memory_order_seq_cst);
    return stays;
  } catch (const timeout_error& error) {
    cancel_arrival(memory, boot.rank, {failure_kind::timeout, boot.rank, error.what()});
    throw;
  } catch (const std::exception& error) {
    // The last may have come meanwhile: then some have a group, in which they hear of the death as of any.
    const std::optional<int> dead = dead_rank(memory, boot.rank);
    cancel_arrival(memory, boot.rank,
                   dead ? failure{failure_kind::peer_lost, *dead, text("rank ", *dead, " died")}
                        : failure{failure_kind::revoked, boot.rank, error.what()});
    throw;
  }
}

}  // namespace ddpp::detail
