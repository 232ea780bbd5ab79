// SPDX-License-Identifier: BSL-1.0
// Going on after a failure: the members decide who is left, where to meet, and whether all have met.
//
// Each step is one decision (agreement.hpp), so all survivors take the same one, whoever dies in between:
//
//     who comes?            those who vote; yes: the store that they met in before cannot have died with a
//     rank where do we meet?     only if the store can have died: the lowest rank serves a new one, whose
//     address
//                           is its note
//     have all of us met?   if somebody has died meanwhile, all over again
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/fingerprint_text.hpp>
#include <ddpp/detail/group.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/prefix_store.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// Those whose attendance is `which`.
inline std::vector<int> ranks_that_are(attendance which, const verdict& found) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < found.ranks.size(); ++r) {
    if (found.ranks[r] == which) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

template <transport T>
class regrouping {
 public:
  /// For decision::recover or decision::shrink.
  regrouping(group<T>& from, ddpp::decision what) : from_(from), what_(what) {}

  /// Collective over those who are left. Blocks. The new group has those who came, in the old order.
  std::shared_ptr<group<T>> form() {
    for (;;) {
      const bool store_stays = from_.origin().store == nullptr || from_.origin().store->outlives_ranks();
      const verdict who = from_.decide(what_, store_stays, {});
      if (what_ == decision::recover) require_everyone(who);
      if (!who.alike) continue;  // others ask for less: they are told, and come
      members_ = ranks_that_are(attendance::voted, who);
      bootstrap boot = bootstrap_for_members();
      error_ = nullptr;
      if (boot.size > 1 && !who.yes && !move_to_new_store(boot)) continue;
      if (boot.store)
        boot.store = std::make_shared<prefix_store>(text("regroup.", from_.decisions_made()), boot.store);
      std::shared_ptr<group<T>> made;
      boot.deadline = from_.deadline_from_now();
      guarded([&] { made = meet(boot); });
      if (all_did(from_.decide(what_, !error_, {}))) return made;
    }
  }

 private:
  void require_everyone(const verdict& who) const {
    const std::vector<int> gone = ranks_that_are(attendance::gone, who);
    const std::vector<int> absent = ranks_that_are(attendance::absent, who);
    const std::string whose = text("rank ", from_.rank(), ", recover: ");
    if (!gone.empty()) {
      throw peer_lost(
          text(whose, list_of_ranks(gone),
               " died or left, so the same members cannot go on; shrink() goes on with the others"),
          gone.front(), "recover", 0);
    }
    if (who.decision != decision::recover) {
      throw mismatch_error(text(whose, "others called shrink(), which goes on once this rank calls it too"),
                           from_.rank(), "recover", 0);
    }
    if (!absent.empty()) {
      throw timeout_error(text(whose, list_of_ranks(absent), " did not call it within ",
                               text_of(from_.timeout()), "; shrink() goes on with the others"));
    }
  }

  /// False: it is all to do again, since a member has died, or may have: one that has voted and died at once
  /// is known only when all vote again. Throws what keeps the same members from it a second time.
  bool all_did(const verdict& step) {
    for (const int member : members_) {
      if (step.ranks[static_cast<std::size_t>(member)] != attendance::voted) return false;
    }
    if (step.yes) return true;
    if (std::exchange(failed_with_, members_) != members_) return false;
    if (error_) std::rethrow_exception(error_);
    throw init_error(text("rank ", from_.rank(), ", ", name_of(what_),
                          ": another rank could not join the new group; its own error says why"));
  }

  bootstrap bootstrap_for_members() const {
    bootstrap boot = from_.origin();
    const auto self = std::find(members_.begin(), members_.end(), from_.rank());
    boot.rank = static_cast<int>(self - members_.begin());
    boot.size = static_cast<int>(members_.size());
    if (!boot.flight_recorder.empty()) boot.flight_recorder += text(".regroup.", from_.decisions_made());
    return boot;
  }

  /// Puts it into `boot`. The results are as all_did's.
  bool move_to_new_store(bootstrap& boot) {
    std::string address;
    if (boot.rank == 0) guarded([&] { address = serve(boot); });
    const verdict served = from_.decide(what_, !error_, address);
    if (!all_did(served)) return false;
    boot.deadline = from_.deadline_from_now();  // each decision has waited for those who do not come
    if (boot.rank != 0) guarded([&] { join(boot, served.note); });
    return all_did(from_.decide(what_, !error_, {}));
  }

  static std::string serve(bootstrap& boot) {
    const std::string host = boot.host.empty() ? "127.0.0.1" : boot.host;
    const auto made =
        std::make_shared<tcp_store>(host, std::uint16_t{0}, tcp_store::server,
                                    tcp_store_options{.timeout = boot.timeout, .secret = boot.secret});
    boot.store = made;
    return text(made->port(), " ", host);
  }

  void join(bootstrap& boot, const std::string& address) {
    std::uint16_t port = 0;
    const std::size_t space = std::min(address.find(' '), address.size());
    std::from_chars(address.data(), address.data() + space, port);
    if (port == 0 || space == address.size()) throw init_error("the new store's address is none: " + address);
    for (;;) {
      const auto slice = std::min<std::chrono::milliseconds>(time_left(boot.deadline), death_watch);
      try {
        boot.store = std::make_shared<tcp_store>(address.substr(space + 1), port, tcp_store::client,
                                                 tcp_store_options{.timeout = slice, .secret = boot.secret});
        return boot.store->set_timeout(boot.timeout);
      } catch (const timeout_error&) {
        look_for_deaths();
        if (time_left(boot.deadline).count() == 0) throw;
      }
    }
  }

  std::shared_ptr<group<T>> meet(bootstrap& boot) {
    static constexpr const char* gave_up = "gave up";
    boot.check_peers = [&] {
      look_for_deaths();
      if (boot.size > 1 && boot.store->check({gave_up})) throw init_error(boot.store->get(gave_up));
    };
    try {
      return group<T>::make(boot, from_.options());
    } catch (...) {
      if (boot.size > 1) {
        boot.store->set(gave_up, text("rank ", from_.rank(),
                                      " could not join the new group: ", current_exception_text()));
      }
      throw;
    }
  }

  void look_for_deaths() const {
    if constexpr (has_control_plane<T>) {
      const auto ranks = from_.transport().survey(std::chrono::steady_clock::now());
      for (const int member : members_) {
        const auto is = ranks[static_cast<std::size_t>(member)].is;
        if (is == rank_state::presence::lost || is == rank_state::presence::left)
          throw init_error(text("rank ", member, " died or left while the others formed a new group"));
      }
    }
  }

  template <class F>
  void guarded(F&& f) {
    try {
      error_ = nullptr;
      f();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  static constexpr std::chrono::milliseconds death_watch{200};

  group<T>& from_;
  const ddpp::decision what_;
  std::vector<int> members_, failed_with_;
  std::exception_ptr error_;  // what kept this rank from the last step
};

}  // namespace ddpp::detail
