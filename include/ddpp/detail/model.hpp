// SPDX-License-Identifier: BSL-1.0
// The parameters and buffers that a distributed_data_parallel keeps alike on all ranks.
#pragma once

#include <ddpp/error.hpp>
#include <ddpp/parameter.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// A slot is a gradient that is reduced: those of parameters that have one, shared parameters once. Slots are
/// numbered without gaps in the order of the list; the user's numbers are those of the list.
class model {
 public:
  static constexpr std::size_t no_slot = static_cast<std::size_t>(-1);

  model(std::vector<parameter> parameters, std::vector<model_buffer> buffers)
      : parameters_(std::move(parameters)), buffers_(std::move(buffers)) {
    std::map<std::pair<const std::byte*, std::size_t>, std::size_t> slot_with;  // values at, of so many bytes
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].has_gradient()) {
        slot_of_.push_back(no_slot);
        continue;
      }
      const auto values = parameters_[i].value().bytes();
      const auto [known, is_new] = slot_with.try_emplace({values.data(), values.size()}, listed_.size());
      slot_of_.push_back(is_new || values.empty() ? listed_.size() : known->second);
      if (slot_of_.back() == listed_.size()) listed_.push_back(i);
    }
  }

  std::size_t slots() const noexcept { return listed_.size(); }
  /// The number in the user's list.
  std::size_t listed(std::size_t slot) const noexcept { return listed_[slot]; }
  const parameter& operator[](std::size_t slot) const noexcept { return parameters_[listed_[slot]]; }
  const std::vector<parameter>& parameters() const noexcept { return parameters_; }
  const std::vector<model_buffer>& buffers() const noexcept { return buffers_; }

  /// Throws `usage_error` beyond the list, `reducer_error` for a parameter without a gradient.
  std::size_t slot_of(std::size_t listed) const {
    if (listed >= slot_of_.size()) {
      throw usage_error("there is no parameter " + std::to_string(listed) + ": the model has " +
                        std::to_string(slot_of_.size()));
    }
    if (slot_of_[listed] == no_slot) {
      throw reducer_error(label(listed) + " is frozen: it was given without a gradient");
    }
    return slot_of_[listed];
  }

  std::string label(std::size_t listed) const {
    return "parameter " + std::to_string(listed) + " (\"" + parameters_[listed].name() + "\")";
  }
  /// The first few of some slots, by name.
  std::string labels(const std::vector<std::size_t>& slots) const {
    constexpr std::size_t shown = 8;
    std::string text;
    for (std::size_t k = 0; k < slots.size() && k < shown; ++k) {
      text += (k == 0 ? "" : ", ") + label(listed_[slots[k]]);
    }
    return slots.size() > shown ? text + " and " + std::to_string(slots.size() - shown) + " more" : text;
  }

  /// All memory whose contents the ranks share: values, frozen ones included, and then buffers.
  std::vector<std::span<std::byte>> shared_memory() const {
    std::vector<std::span<std::byte>> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].value().replaced()) {
        throw reducer_error("the values of " + label(i) + " have moved to other memory since construction");
      }
      if (slot_of_[i] == no_slot || listed_[slot_of_[i]] == i) all.push_back(parameters_[i].value().bytes());
    }
    for (const auto& buffer : buffer_memory()) all.push_back(buffer);
    return all;
  }
  std::vector<std::span<std::byte>> buffer_memory() const {
    std::vector<std::span<std::byte>> all;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].memory().replaced()) {
        throw reducer_error("buffer " + std::to_string(i) + " has moved to other memory since construction");
      }
      all.push_back(buffers_[i].memory().bytes());
    }
    return all;
  }

  /// Two parameters whose values, or whose gradients if those are `in_use`, overlap without being one shared
  /// parameter: a sentence about the first such pair found, else empty.
  std::string wrongly_shared_memory(bool gradients_in_use) const {
    std::vector<piece> values, gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::size_t slot = slot_of_[i];
      if (slot == no_slot || listed_[slot] == i) {
        values.push_back({parameters_[i].value().bytes(), i});
        if (slot != no_slot && gradients_in_use) gradients.push_back({parameters_[i].gradient().bytes(), i});
      } else if (gradients_in_use && parameters_[i].gradient().bytes().data() !=
                                         parameters_[listed_[slot]].gradient().bytes().data()) {
        return label(i) + " has the values of " + label(listed_[slot]) +
               " but another gradient: a shared parameter has one gradient, into which all its uses add";
      }
    }
    const std::string text = first_overlap("values", true, std::move(values));
    return text.empty() ? first_overlap("gradients", false, std::move(gradients)) : text;
  }

  /// One sentence per thing that must be alike on all ranks; the first says how many parameters there are.
  std::vector<std::string> description() const {
    std::vector<std::string> lines = {std::to_string(parameters_.size()) + " parameters"};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const parameter& p = parameters_[i];
      std::string line = label(i) + ": " + std::to_string(p.count()) + " " + name_of(p.dtype());
      if (slot_of_[i] == no_slot)
        line += ", frozen";
      else if (listed_[slot_of_[i]] != i)
        line += ", shared with parameter " + std::to_string(listed_[slot_of_[i]]);
      lines.push_back(std::move(line));
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      lines.push_back("buffer " + std::to_string(i) + ": " +
                      std::to_string(buffers_[i].memory().bytes().size()) + " bytes");
    }
    return lines;
  }

 private:
  struct piece {
    std::span<std::byte> memory;
    std::size_t listed;
  };
  std::string first_overlap(const char* what, bool may_be_same, std::vector<piece> pieces) const {
    std::erase_if(pieces, [](const piece& each) { return each.memory.empty(); });
    std::sort(pieces.begin(), pieces.end(),
              [](const piece& a, const piece& b) { return std::less<>{}(a.memory.data(), b.memory.data()); });
    for (std::size_t k = 1; k < pieces.size(); ++k) {
      const piece &before = pieces[k - 1], &after = pieces[k];
      if (may_be_same && is_same(before.memory, after.memory)) continue;
      if (std::less<>{}(after.memory.data(), before.memory.data() + before.memory.size())) {
        return std::string("the ") + what + " of " + label(std::min(before.listed, after.listed)) + " and " +
               label(std::max(before.listed, after.listed)) + " share memory";
      }
    }
    return {};
  }

  static bool is_same(std::span<const std::byte> a, std::span<const std::byte> b) {
    return a.data() == b.data() && a.size() == b.size();
  }

  std::vector<parameter> parameters_;
  std::vector<model_buffer> buffers_;
  std::vector<std::size_t> listed_;   // by slot
  std::vector<std::size_t> slot_of_;  // by number in the list
};

}  // namespace ddpp::detail
