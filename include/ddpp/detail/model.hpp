// SPDX-License-Identifier: BSL-1.0
// The parameters and buffers that a distributed_data_parallel keeps alike on all ranks.
#pragma once

#include <ddpp/error.hpp>
#include <ddpp/parameter.hpp>

#include <cstddef>
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
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].has_gradient()) {
        slot_of_.push_back(no_slot);
      } else if (const std::size_t same = find_shared(i); same != no_slot) {
        slot_of_.push_back(same);
      } else {
        slot_of_.push_back(listed_.size());
        listed_.push_back(i);
      }
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
  std::size_t find_shared(std::size_t i) const {
    const auto bytes = parameters_[i].value().bytes();
    for (std::size_t slot = 0; slot < listed_.size() && !bytes.empty(); ++slot) {
      const auto other = (*this)[slot].value().bytes();
      if (other.data() == bytes.data() && other.size() == bytes.size()) return slot;
    }
    return no_slot;
  }

  std::vector<parameter> parameters_;
  std::vector<model_buffer> buffers_;
  std::vector<std::size_t> listed_;   // by slot
  std::vector<std::size_t> slot_of_;  // by number in the list
};

}  // namespace ddpp::detail
