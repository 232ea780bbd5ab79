// SPDX-License-Identifier: BSL-1.0
// What a communication hook is given.
#pragma once

#include <ddpp/detail/scaling.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/error.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace ddpp {

/// Gradients that are reduced together. A hook finds this rank's gradients in data() and leaves there, on all
/// ranks the same, the sum over ranks of scale() times the gradients.
class gradient_bucket {
 public:
  /// `data`: `count` elements of `type`. `parameters`, `offsets` and `rows`: whose gradients they are, where
  /// each begins, and its shape.
  gradient_bucket(ddpp::dtype type, std::byte* data, std::size_t count, double scale, std::size_t index,
                  bool is_last, std::span<const std::size_t> parameters, std::span<const std::size_t> offsets,
                  std::span<const std::size_t> rows)
      : data_(data),
        count_(count),
        scale_(scale),
        index_(index),
        parameters_(parameters),
        offsets_(offsets),
        rows_(rows),
        dtype_(type),
        is_last_(is_last) {}

  /// The same gradients in another representation, for a hook that hands on to another one. `data` holds as
  /// many elements, to which `scale` is still to be applied.
  template <class T>
  gradient_bucket represented_by(std::span<T> data, double scale) const {
    return {dtype_of<T>, reinterpret_cast<std::byte*>(data.data()),
            count_,      scale,
            index_,      is_last_,
            parameters_, offsets_,
            rows_};
  }

  ddpp::dtype dtype() const noexcept { return dtype_; }
  std::size_t count() const noexcept { return count_; }
  /// Throws `usage_error` when T is not the gradients' type.
  template <class T>
  std::span<T> data() const {
    if (dtype_of<T> != dtype_) {
      throw usage_error("bucket " + std::to_string(index_) + " holds " + name_of(dtype_) + ", asked for as " +
                        name_of(dtype_of<T>));
    }
    return {reinterpret_cast<T*>(data_), count_};
  }
  /// f(span of T), T being float, double, half or bfloat16.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return detail::visit_gradient_type(
        dtype_, [&]<class T>(std::type_identity<T>) -> decltype(auto) { return f(data<T>()); });
  }

  /// What each rank's gradients count in the sum: 1 / size() for the mean, unless that has been applied
  /// already.
  double scale() const noexcept { return scale_; }
  /// In the order in which buckets are reduced, from 0.
  std::size_t index() const noexcept { return index_; }
  bool is_last() const noexcept { return is_last_; }
  /// The numbers of the parameters, as in the list that the model was constructed from.
  std::span<const std::size_t> parameters() const noexcept { return parameters_; }
  /// Where the gradient of parameters()[k] begins in data(), in elements; one more than there are, the last
  /// count().
  std::span<const std::size_t> offsets() const noexcept { return offsets_; }
  /// How many rows the gradient of parameters()[k] has, row by row in memory; 1 if it is no matrix.
  std::span<const std::size_t> rows() const noexcept { return rows_; }

 private:
  std::byte* data_;
  std::size_t count_;
  double scale_;
  std::size_t index_;
  std::span<const std::size_t> parameters_, offsets_, rows_;
  ddpp::dtype dtype_;
  bool is_last_;
};

}  // namespace ddpp
