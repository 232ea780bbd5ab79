// SPDX-License-Identifier: BSL-1.0
// Means over all ranks' samples, and shares, which are means. See metrics.hpp.
#pragma once

#include <ddpp/all_reduce.hpp>

#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <utility>

namespace ddpp::detail {

inline double absolute(double difference) { return std::abs(difference); }
inline double square(double difference) { return difference * difference; }

}  // namespace ddpp::detail

namespace ddpp::metrics {

/// sum(weight * value) / sum(weight), in double.
class mean {
 public:
  void update(double value, double weight = 1) {
    sum_ += weight * value;
    weight_ += weight;
  }
  void reset() { *this = {}; }

  template <class C>
  double compute(C& comm) const {
    std::array<double, 2> totals = {sum_, weight_};
    ddpp::all_reduce(comm, totals, sum, ddpp::detail::in_host_memory<C>);
    return totals[0] / totals[1];
  }

 private:
  double sum_ = 0, weight_ = 0;
};

/// The mean of error(prediction - target).
template <double (*error)(double)>
class mean_error {
 public:
  void update(double prediction, double target) { errors_.update(error(prediction - target)); }
  void reset() { errors_.reset(); }
  template <class C>
  double compute(C& comm) const {
    return errors_.compute(comm);
  }

 private:
  mean errors_;
};

/// The mean of |prediction - target|.
class mean_absolute_error : public mean_error<detail::absolute> {};

/// The mean of (prediction - target)^2.
class mean_squared_error : public mean_error<detail::square> {};

/// The share of predictions that equal their label.
class accuracy {
 public:
  template <class P, class L>
  void update(const P& predicted, const L& label) {
    if constexpr (std::integral<P> && std::integral<L>)
      update(std::cmp_equal(predicted, label));
    else
      update(predicted == label);
  }
  void update(bool correct) {
    correct_ += correct ? 1 : 0;
    ++samples_;
  }
  void reset() { *this = {}; }

  template <class C>
  double compute(C& comm) const {
    std::array<std::uint64_t, 2> totals = {correct_, samples_};
    ddpp::all_reduce(comm, totals, sum, ddpp::detail::in_host_memory<C>);
    return static_cast<double>(totals[0]) / static_cast<double>(totals[1]);
  }

 private:
  std::uint64_t correct_ = 0, samples_ = 0;
};

}  // namespace ddpp::metrics
