// SPDX-License-Identifier: BSL-1.0
// The sentences and tables that errors are made of: where each rank stands, and who is the odd one out.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace ddpp {

namespace detail {

/// The name behind a fingerprint's algorithm, where it is one of ours.
[[gnu::cold]] inline std::string algorithm_name(std::uint32_t code) {
  for (const std::string_view name :
       {"ring", "recursive_doubling", "halving_doubling", "tree", "reproducible", "direct", "staged"}) {
    if (hash_of_name(name) == code) return std::string(name);
  }
  return detail::text("of the user's, ", hex(code));
}

}  // namespace detail

[[gnu::cold]] inline std::string describe(const fingerprint& print) {
  std::string text = detail::text(name_of(print.op), " #", print.sequence);
  if (print.step != 0) detail::append_text(text, ".", print.step);
  const std::size_t name_ends = text.size();
  const auto detail = [&](const auto&... pieces) {
    detail::append_text(text, text.size() == name_ends ? " (" : ", ", pieces...);
  };
  const std::string reduction = print.reduction != 0 ? detail::reduction_name(print.reduction) : "";
  if (print.element_size != 0) {
    detail(reduction, reduction.empty() ? "" : " of ", print.count, " ",
           detail::type_name(print.type, print.element_size));
  } else if (!reduction.empty()) {
    detail(reduction);
  }
  if (print.root >= 0) detail("root ", print.root);
  if (print.algorithm != 0) detail("algorithm ", detail::algorithm_name(print.algorithm));
  if (print.counts != 0) detail("counts or bucket with hash ", detail::hex(print.counts));
  if (text.size() != name_ends) text += ')';
  return text;
}

namespace detail {

[[gnu::cold]] inline std::string describe(const rank_state& state) {
  switch (state.is) {
    case rank_state::presence::unknown:
      return "no answer";
    case rank_state::presence::left:
      return state.last.op == collective::none ? "left the group"
                                               : "left the group after " + ddpp::describe(state.last);
    case rank_state::presence::lost:
      return "died";
    case rank_state::presence::here:
    case rank_state::presence::stopped:
      break;
  }
  const std::string stopped = state.is == rank_state::presence::stopped ? "stopped, " : "";
  if (state.last.op == collective::none) return stopped + "has begun no collective";
  return stopped + (state.inside ? "in " : "has finished ") + ddpp::describe(state.last);
}

inline bool same_collective(const fingerprint& a, const fingerprint& b) {
  return a.sequence == b.sequence && a.step == b.step;
}

/// "rank 1, rank 2"
[[gnu::cold]] inline std::string list_of_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) append_text(text, text.empty() ? "rank " : ", rank ", rank);
  return text;
}

[[gnu::cold]] inline std::string table_of(const std::vector<rank_state>& ranks) {
  std::string table;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    append_text(table, "\n  rank ", r, ": ", describe(ranks[r]));
  }
  return table;
}

}  // namespace detail

[[gnu::cold]] inline failure describe_mismatch(const std::vector<rank_state>& ranks) {
  // Of those in the same collective, the odd ones differ from what most say; of equal camps the one with the
  // lowest rank counts as right. Who is in another one says nothing about this.
  const auto differs = [&](const fingerprint& a, const fingerprint& b) {
    return detail::same_collective(a, b) && a != b;
  };
  const auto is_contested = [&](const rank_state& one) {
    return one.last.op != collective::none &&
           std::any_of(ranks.begin(), ranks.end(),
                       [&](const rank_state& other) { return differs(one.last, other.last); });
  };
  std::size_t best = ranks.size(), most = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!is_contested(ranks[r])) continue;
    const auto votes = static_cast<std::size_t>(std::count_if(
        ranks.begin(), ranks.end(), [&](const rank_state& other) { return other.last == ranks[r].last; }));
    if (votes > most) best = r, most = votes;
  }
  std::vector<int> odd;
  for (std::size_t r = 0; best < ranks.size() && r < ranks.size(); ++r) {
    if (differs(ranks[r].last, ranks[best].last)) odd.push_back(static_cast<int>(r));
  }
  std::string text = detail::text(detail::list_of_ranks(odd), " called something else than the others:");
  if (odd.empty()) text = "ranks called different collectives:";
  return {failure_kind::mismatch, odd.empty() ? -1 : odd.front(),
          detail::text(
              text, detail::table_of(ranks),
              "\nAll ranks must call the same collectives in the same order with the same counts, types, "
              "reductions and roots.")};
}

[[gnu::cold]] inline failure describe_timeout(const fingerprint& waiting,
                                              const std::vector<rank_state>& ranks,
                                              std::chrono::milliseconds timeout) {
  std::vector<int> missing;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const fingerprint& last = ranks[r].last;
    const bool came = last.sequence > waiting.sequence || (detail::same_collective(last, waiting)) ||
                      (last.sequence == waiting.sequence && last.step > waiting.step);
    if (ranks[r].is != rank_state::presence::here || !came) missing.push_back(static_cast<int>(r));
  }
  std::string text =
      detail::text(describe(waiting), " did not finish within ", detail::text_of(timeout), ": ");
  text += missing.empty() ? "all ranks are in it, but no data came"
                          : detail::text(detail::list_of_ranks(missing),
                                         missing.size() == 1 ? " has" : " have", " not come");
  return {failure_kind::timeout, missing.empty() ? -1 : missing.front(), text + detail::table_of(ranks)};
}

}  // namespace ddpp
