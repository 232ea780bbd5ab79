// SPDX-License-Identifier: BSL-1.0
// While ranks of a group come together as another one, nobody waits in the first for those who have died or
// left: a look around has to find them.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/group.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp::detail {

template <transport T>
class member_watch {
 public:
  /// `members` are ranks of `from`, and `operation` what they do.
  member_watch(group<T>& from, std::vector<int> members, const char* operation)
      : from_(from), members_(std::move(members)), operation_(operation) {}

  /// Throws what has failed the group. Fails it first if a member has died or left.
  void look() {
    if constexpr (has_control_plane<T>) {
      if (!from_.has_failed()) look_at(from_.transport().survey(std::chrono::steady_clock::now()));
    }
    from_.check_usable([&] { return std::string(operation_); }, operation_);
  }

  /// After a timeout: throws the death that brought it about, or a timeout_error that names who does not
  /// answer.
  void look_for_absence(const std::string& what_timed_out) {
    looks_at_leaver_ = std::numeric_limits<int>::min();  // who leaves now has given up, too
    look_for_cause();
    if constexpr (has_control_plane<T>) {
      const auto ranks = from_.transport().survey(deadline_after(std::chrono::seconds(1)));
      std::vector<int> absent;
      for (const int member : members_) {
        const auto is = ranks[static_cast<std::size_t>(member)].is;
        if (is == rank_state::presence::unknown || is == rank_state::presence::stopped)
          absent.push_back(member);
      }
      if (absent.empty()) return;
      throw timeout_error(text("rank ", from_.rank(), ", ", operation_, ": ", list_of_ranks(absent),
                               absent.size() == 1 ? " does" : " do", " not answer; ", what_timed_out));
    }
  }

  /// The same as look(), for as long as a death may take to become known: a better reason than what it
  /// brought about.
  void look_for_cause() {
    const deadline until = deadline_after(std::chrono::seconds(1));
    do {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (time_left(until).count() > 0);
  }

 private:
  /// Who has left may have come before: others then hear of it in a moment, if they have not yet.
  static constexpr int most_looks_at_leaver = 10;

  void look_at(const std::vector<rank_state>& ranks) {
    bool someone_left = false;
    for (const int member : members_) {
      const auto is = ranks[static_cast<std::size_t>(member)].is;
      if (is == rank_state::presence::lost) return give_up_on(member, " died");
      if (is != rank_state::presence::left) continue;
      someone_left = true;
      if (looks_at_leaver_ >= most_looks_at_leaver) return give_up_on(member, " left");
    }
    looks_at_leaver_ += someone_left ? 1 : 0;
  }

  void give_up_on(int member, const char* how) {
    from_.fail({failure_kind::peer_lost, member,
                text("rank ", member, how, " while others waited for it in ", operation_)});
  }

  group<T>& from_;
  const std::vector<int> members_;
  const char* const operation_;
  int looks_at_leaver_ = 0;
};

}  // namespace ddpp::detail
