// SPDX-License-Identifier: BSL-1.0
// Which gradients this rank has marked ready: in the step under way, since the last synchronised one, and in
// the first. It knows what a program may do wrong here, and says so; it communicates nothing.
#pragma once

#include <ddpp/detail/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// What may differ from step to step.
enum class graph_kind : std::uint8_t {
  complete,  ///< every step marks all
  changing,  ///< any step may leave any out
  fixed      ///< every step marks what the first one marked, in that order
};

/// All by slot.
class step_record {
 public:
  /// `watch_memory`: whether gradients must still be where they were at construction.
  step_record(const model& of, graph_kind graph, bool watch_memory)
      : model_(of),
        graph_(graph),
        watch_memory_(watch_memory),
        marked_(model_.slots()),
        used_(model_.slots()) {
    order_.reserve(model_.slots());
  }

  /// A step begins. What was used accumulates from a step that did not synchronise to the next one.
  void begin(bool synchronised) {
    marked_.assign(model_.slots(), 0);
    order_.clear();
    if (!accumulating_) used_.assign(model_.slots(), 0);
    was_accumulating_ = std::exchange(accumulating_, !synchronised);
  }
  /// The step that has just begun has not.
  void take_back() noexcept { accumulating_ = was_accumulating_; }
  /// The step is dropped, and with it what was accumulated before.
  void forget() noexcept { accumulating_ = false; }

  /// Empty if the slot may be marked now, else the mistake.
  std::string objection_to_mark(std::size_t slot) const {
    if (marked_[slot]) return label(slot) + " was marked ready twice in one step";
    if (has_moved(slot)) return "the gradient of " + label(slot) + moved_text;
    if (!is_fixed_) return {};
    if (!in_graph_[slot]) return label(slot) + " is used now and was not in the first step" + broken_promise;
    if (const std::size_t due = fixed_order_[order_.size()]; due != slot) {
      return label(slot) + " became ready where " + label(due) + " did in the first step" + broken_promise;
    }
    return {};
  }
  void mark(std::size_t slot) {
    marked_[slot] = used_[slot] = 1;
    order_.push_back(slot);
  }

  /// Empty if the step may end with what has been marked, else the mistake.
  std::string objection_to_end() const {
    std::vector<std::size_t> missing = unmarked();
    const auto moved = std::ranges::find_if(missing, [&](std::size_t slot) { return has_moved(slot); });
    if (moved != missing.end()) return "the gradient of " + label(*moved) + moved_text;
    if (graph_ != graph_kind::complete && !is_fixed_) return {};
    if (is_fixed_) std::erase_if(missing, [&](std::size_t slot) { return !in_graph_[slot]; });
    if (missing.empty()) return {};
    return "wait() was called but no gradient came for " + model_.labels(missing) +
           (is_fixed_ ? ", which the first step used" + std::string(broken_promise)
                      : ". If not every step uses every parameter, set find_unused_parameters");
  }
  /// The first step ends: a fixed graph is what it marked.
  void fix_graph() {
    if (graph_ != graph_kind::fixed || is_fixed_) return;
    in_graph_ = marked_;
    fixed_order_ = order_;
    is_fixed_ = true;
  }

  bool is_fixed() const noexcept { return is_fixed_; }
  bool is_in_graph(std::size_t slot) const noexcept { return in_graph_[slot] != 0; }
  bool is_marked(std::size_t slot) const noexcept { return marked_[slot] != 0; }
  /// Since the last synchronised step.
  bool is_used(std::size_t slot) const noexcept { return used_[slot] != 0; }
  bool are_all_used() const { return std::ranges::find(used_, 0) == used_.end(); }
  /// As they were marked in this step.
  const std::vector<std::size_t>& order() const noexcept { return order_; }
  std::vector<std::size_t> unmarked() const {
    std::vector<std::size_t> missing;
    for (std::size_t slot = 0; slot < marked_.size(); ++slot) {
      if (!marked_[slot]) missing.push_back(slot);
    }
    return missing;
  }

  std::string label(std::size_t slot) const { return model_.label(model_.listed(slot)); }

 private:
  static constexpr const char* moved_text = " has moved to other memory since construction";
  static constexpr const char* broken_promise = ", but the graph was promised to be static";

  /// The gradient's container has got itself other memory. What is given and not used may do so.
  bool has_moved(std::size_t slot) const { return watch_memory_ && model_[slot].gradient().replaced(); }

  const model& model_;
  const graph_kind graph_;
  const bool watch_memory_;
  std::vector<std::uint8_t> marked_;
  std::vector<std::uint8_t> used_;
  std::vector<std::size_t> order_;
  bool accumulating_ = false, was_accumulating_ = false;  // the latter: before the step that began last
  bool is_fixed_ = false;
  std::vector<std::uint8_t> in_graph_;
  std::vector<std::size_t> fixed_order_;
};

}  // namespace ddpp::detail
