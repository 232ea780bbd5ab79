// SPDX-License-Identifier: BSL-1.0
// How the ranks of one group find each other in a store that may hold what an earlier run left behind.
//
// Rank 0 draws a nonce and publishes it under the group's key. The others read it, announce themselves by
// adding to the counter nonce/rank, and wait for rank 0's word at nonce/go. When all have announced
// themselves, rank 0 deletes the group's key and gives the word. So the group's key exists only while a group
// forms, a nonce that has had its word is never read again, and the next group under the same key is a new
// one: unnamed groups need no numbers. A nonce left by a run that died while forming never gets its word; who
// follows it looks at the group's key now and then, and goes over to the new nonce. A counter of 2 tells that
// two processes have the same rank: the second says so at nonce/clash and never joins. So does who counts
// other ranks than rank 0, whose number ends the nonce. After a clash rank 0, which may serve the store,
// waits a moment for the others to come and hear of it. So it does when its word is that somebody is missing,
// or has died meanwhile (see presence.hpp). Once all have become members, the last of them deletes the word
// and then the counters: who has the rank of one of them, and announces itself so late that it finds no word,
// finds that rank 0 is a member, and that is its answer.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/presence.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ddpp::detail {

[[gnu::cold]] inline std::string random_nonce() {
  std::uint64_t bits[2];
  fill_random(std::as_writable_bytes(std::span(bits)));
  std::string text;
  for (std::uint64_t word : bits) {
    for (int i = 0; i < 16; ++i, word >>= 4) text += "0123456789abcdef"[word & 15];
  }
  return text;
}

/// Two processes have the same rank, or count different ranks: nothing that trying again could mend.
class rank_taken : public init_error {
  using init_error::init_error;
};

class group_formation {
 public:
  /// `timeout` is what `until` came from, for error texts.
  group_formation(store& meeting, const std::string& name, int rank, int size, deadline until,
                  std::chrono::milliseconds timeout)
      : store_(meeting),
        key_(name.empty() ? "ddpp/group" : "ddpp/group/" + name),
        rank_(rank),
        size_(size),
        until_(until),
        timeout_(timeout) {}

  /// Blocks until all ranks have come and returns the nonce, a prefix for the group's keys. Throws
  /// `timeout_error` naming who is missing, `peer_lost` when a rank that had come is there no more,
  /// `init_error` when one is there twice.
  [[gnu::cold]] std::string run() { return rank_ == 0 ? lead() : follow(); }

  /// Afterwards: shows that this rank is there until it has become a member.
  presence take_presence() { return std::move(*presence_); }

 private:
  using milliseconds = std::chrono::milliseconds;

  /// How long to wait at a time before looking for what else may have happened: 10 ms doubling to 250 ms.
  class patience {
   public:
    milliseconds next(deadline until) {
      const milliseconds now = length_;
      length_ = std::min(2 * length_, presence::interval);
      return std::min(now, time_left(until));
    }

   private:
    milliseconds length_{10};
  };

  [[gnu::cold]] std::string lead() {
    nonce_ = text(random_nonce(), "-", size_);
    come();
    store_.set(key_, nonce_);
    std::vector<std::string> members;
    for (int r = 1; r < size_; ++r) members.push_back(member(r));
    patience slice;
    for (;;) {
      const bool all_here = came(members, slice.next(until_));
      check_sole_leader();
      if (store_.check({word("clash")})) {
        const std::string why = store_.get(word("clash"));
        store_.set(word("go"), why);
        await_hearing(1);
        store_.delete_key(key_);
        throw rank_taken(why);
      }
      if (all_here) break;
      const bool one_gave_up = store_.check({word("gave up")});
      if (one_gave_up || time_left(until_) == milliseconds(0)) {
        const std::string why = one_gave_up ? store_.get(word("gave up")) : missing_ranks();
        give_word(text(timed_out, why));
        await_hearing(0);
        throw timeout_error(why);
      }
      if (const std::optional<int> gone = presence_->first_gone()) {
        give_word(text(lost, *gone));
        await_hearing(0);
        throw_lost_in_init(*gone, rank_);
      }
    }
    give_word(go);
    return nonce_;
  }

  [[gnu::cold]] void give_word(const std::string& verdict) {
    store_.delete_key(key_);
    store_.set(word("go"), verdict);
  }

  /// Waits a second at most until all that have come have heard, but for those that are gone; of each rank
  /// `least` are waited for.
  [[gnu::cold]] void await_hearing(std::int64_t least) {
    const deadline until = deadline_after(std::chrono::seconds(1));
    for (; time_left(until).count() > 0; std::this_thread::sleep_for(milliseconds(10))) {
      std::int64_t expected = 0;
      for (int r = 1; r < size_; ++r) {
        if (!presence_->is_gone(r)) expected += std::max(store_.add(member(r), 0), least);
      }
      if (store_.add(word("heard"), 0) >= expected) return;
    }
  }

  [[gnu::cold]] void check_sole_leader() {
    const std::string current = store_.compare_set(key_, no_nonce, no_nonce);
    if (current == nonce_) return;
    const std::string why = taken_twice();
    if (!current.empty()) store_.set(current + "/clash", why);
    throw rank_taken(why);
  }

  [[gnu::cold]] std::string follow() {
    try {
      return follow_word();
    } catch (const rank_taken&) {
      throw;
    } catch (const init_error&) {  // the store has gone, and rank 0 with it
      if (!clash_.empty()) throw rank_taken(clash_);
      if (leader_was_there_) throw_lost_in_init(0, rank_);
      throw;
    }
  }

  [[gnu::cold]] std::string follow_word() {
    patience slice;
    for (;;) {
      if (nonce_.empty()) {
        if (!came({key_}, time_left(until_))) throw timeout_error(missing_ranks());
        nonce_ = store_.compare_set(key_, no_nonce, no_nonce);
        if (nonce_.empty()) continue;  // that group has formed; the key was about to be deleted
        clash_ = announce();
        slice = {};
      }
      if (came({word("go")}, slice.next(until_))) return obey(store_.get(word("go")));
      if (time_left(until_) == milliseconds(0)) {
        const std::string why = missing_ranks();
        store_.set(word("gave up"), why);
        throw timeout_error(why);
      }
      const bool leader_is_gone = leader_was_there_ && presence_->is_gone(0);
      const std::string current = store_.compare_set(key_, no_nonce, no_nonce);
      if (store_.check({word("go")})) continue;
      if (current != nonce_ && !current.empty()) {
        nonce_.clear();  // the one followed was an earlier run's
      } else if (leader_is_gone) {
        throw_lost_in_init(0, rank_);
      } else if (presence_->is_member(0) && !store_.check({word("go")})) {
        throw rank_taken(taken_twice());
      }
    }
  }

  [[gnu::cold]] void come() {
    presence_.emplace(store_, nonce_, rank_, size_);
    presence_->come();
    leader_was_there_ = presence_->is_there(0);  // else it died in an earlier run
  }

  /// Returns why this rank cannot be a member, if there is a reason.
  [[gnu::cold]] std::string announce() {
    come();
    const std::string size = nonce_.substr(nonce_.find('-') + 1);
    std::string why;
    if (size != text(size_)) {
      why = text("rank ", rank_, " counts ", size_, " ranks, rank 0 counts ", size, " (key ", key_, ")");
      store_.set(word("clash"), why);  // before rank 0 may count this rank as one that has come
    }
    if (store_.add(member(rank_), 1) > 1 && why.empty()) store_.set(word("clash"), why = taken_twice());
    return why;
  }

  [[gnu::cold]] std::string taken_twice() const {
    return text("two processes are rank ", rank_, " of ", size_, " (key ", key_, ")");
  }

  [[gnu::cold]] std::string obey(const std::string& verdict) {
    if (verdict != go) store_.add(word("heard"), 1);
    if (verdict.starts_with(timed_out))
      throw timeout_error(verdict.substr(std::string_view(timed_out).size()));
    if (verdict.starts_with(lost)) {
      throw_lost_in_init(std::atoi(verdict.c_str() + std::string_view(lost).size()), rank_);
    }
    if (verdict != go) throw rank_taken(verdict);
    if (!clash_.empty()) throw rank_taken(clash_);
    return nonce_;
  }

  [[gnu::cold]] bool came(const std::vector<std::string>& keys, milliseconds timeout) {
    try {
      store_.wait(keys, timeout);
      return true;
    } catch (const timeout_error&) {
      return store_.check(keys);
    }
  }

  [[gnu::cold]] std::string missing_ranks() {
    std::string list;
    const auto name = [&](int r) { append_text(list, list.empty() ? "rank " : ", rank ", r); };
    if (nonce_.empty()) {
      name(0);
    } else {
      for (int r = 1; r < size_; ++r) {
        if (!store_.check({member(r)})) name(r);
      }
    }
    const std::string who = text("rank ", rank_, " of ", size_);
    if (list.empty())
      return text(who, " waited ", text_of(timeout_), " in vain for rank 0 to let the group begin");
    return text(list, list.find(',') == std::string::npos ? " has" : " have", " not come within ",
                text_of(timeout_), " (", who, " waited; key ", key_, ")");
  }

  std::string member(int rank) const { return text(nonce_, "/rank/", rank); }
  std::string word(const char* name) const { return text(nonce_, "/", name); }

  static constexpr const char *go = "go", *timed_out = "timeout: ", *lost = "lost: ";
  /// No nonce looks like this: comparing with it reads the key without waiting for it.
  static constexpr std::string_view no_nonce = "-";

  store& store_;
  std::string key_;
  int rank_, size_;
  deadline until_;
  milliseconds timeout_;
  std::string nonce_;
  std::string clash_;  // why this rank does not join
  std::optional<presence> presence_;
  bool leader_was_there_ = false;
};

}  // namespace ddpp::detail
