// SPDX-License-Identifier: BSL-1.0
// Finds members of a subgroup who call it with different lists: each would wait for the other for ever.
//
// Each rank publishes in the parent's store which call it is in: the list, and how often it has made that
// call. A rank waits for a member in vain if that member is in a call with another list that has this rank in
// it and that this rank has not made: neither can come to the other's.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp::detail {

class subgroup_call {
 public:
  /// `calls_made(list)` is how often this rank has called subgroup with that list.
  subgroup_call(std::shared_ptr<store> parent, int rank, std::vector<int> members, std::string list,
                std::uint64_t number, std::function<std::uint64_t(const std::string&)> calls_made)
      : store_(std::move(parent)),
        rank_(rank),
        members_(std::move(members)),
        list_(std::move(list)),
        name_(text(list_, "#", number)),
        calls_made_(std::move(calls_made)) {
    while_store_is_there([&] { store_->set(place_of(rank_), name_); });
  }

  /// Throws `usage_error` if this rank or another member has found that the lists differ.
  void look() const {
    while_store_is_there([&] { look_for_verdict(); });
  }

 private:
  /// That the store has gone with the rank that served it is for those to report who know the rank.
  template <class F>
  static void while_store_is_there(F&& f) {
    try {
      f();
    } catch (const init_error&) {
    }
  }

  void look_for_verdict() const {
    if (store_->check({verdict_on(name_)})) throw usage_error(store_->get(verdict_on(name_)));
    for (const int member : members_) {
      if (member == rank_ || !store_->check({place_of(member)})) continue;
      const std::string theirs = store_->get(place_of(member));
      if (!excludes(theirs)) continue;
      const std::string why =
          text("subgroup: its members disagree: rank ", std::min(rank_, member), " lists ",
               rank_ < member ? list_ : list_of(theirs), ", rank ", std::max(rank_, member), " lists ",
               rank_ < member ? list_of(theirs) : list_, "; all must call it with the same list");
      for (const std::string& call : {name_, theirs}) store_->set(verdict_on(call), why);
      throw usage_error(why);
    }
  }

  static std::string place_of(int rank) { return text("subgroup/in/", rank); }
  static std::string verdict_on(const std::string& call) { return text("subgroup/wrong/", call); }
  static std::string list_of(const std::string& call) { return call.substr(0, call.find('#')); }

  bool excludes(const std::string& theirs) const {
    const std::string list = list_of(theirs);
    std::uint64_t number = 0;
    const char* const digits = theirs.data() + std::min(list.size() + 1, theirs.size());
    std::from_chars(digits, theirs.data() + theirs.size(), number);
    const bool has_me = text(",", list, ",").find(text(",", rank_, ",")) != std::string::npos;
    return list != list_ && has_me && calls_made_(list) < number;
  }

  const std::shared_ptr<store> store_;
  const int rank_;
  const std::vector<int> members_;
  const std::string list_, name_;
  const std::function<std::uint64_t(const std::string&)> calls_made_;
};

}  // namespace ddpp::detail
