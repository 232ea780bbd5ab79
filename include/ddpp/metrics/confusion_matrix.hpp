// SPDX-License-Identifier: BSL-1.0
// How often each class was taken for each. See metrics.hpp.
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddpp::metrics {

/// counts(label, predicted), as scikit-learn's confusion_matrix.
class confusion_counts {
 public:
  confusion_counts(std::size_t classes, std::vector<std::uint64_t> counts)
      : classes_(classes), counts_(std::move(counts)) {}

  std::size_t classes() const noexcept { return classes_; }
  std::uint64_t operator()(std::size_t label, std::size_t predicted) const {
    return counts_[label * classes_ + predicted];
  }
  /// Of what was predicted as `label`, the share that is; NaN where nothing was.
  double precision(std::size_t label) const {
    std::uint64_t predicted = 0;
    for (std::size_t other = 0; other < classes_; ++other) predicted += (*this)(other, label);
    return static_cast<double>((*this)(label, label)) / static_cast<double>(predicted);
  }
  /// Of what is `label`, the share that was predicted as that; NaN where nothing is.
  double recall(std::size_t label) const {
    std::uint64_t there = 0;
    for (std::size_t other = 0; other < classes_; ++other) there += (*this)(label, other);
    return static_cast<double>((*this)(label, label)) / static_cast<double>(there);
  }

 private:
  std::size_t classes_;
  std::vector<std::uint64_t> counts_;
};

class confusion_matrix {
 public:
  explicit confusion_matrix(std::size_t classes) : classes_(classes), counts_(classes * classes) {
    if (classes == 0) throw usage_error("confusion_matrix: there must be at least one class");
  }

  /// Classes count from 0. Throws `usage_error` for one that is not there.
  void update(std::size_t predicted, std::size_t label) {
    if (predicted >= classes_ || label >= classes_) {
      throw usage_error(detail::text("confusion_matrix: class ", predicted >= classes_ ? predicted : label,
                                     " is none of the ", classes_, ", which count from 0"));
    }
    ++counts_[label * classes_ + predicted];
  }
  void reset() { counts_.assign(counts_.size(), 0); }

  template <class C>
  confusion_counts compute(C& comm) const {
    std::vector<std::uint64_t> total = counts_;
    ddpp::all_reduce(comm, total, sum, ddpp::detail::in_host_memory<C>);
    return {classes_, std::move(total)};
  }

 private:
  std::size_t classes_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace ddpp::metrics
