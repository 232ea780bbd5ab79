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

/// What is in a bucket: `count` elements of `type`. `parameters`, `offsets` and `rows` say whose gradients
/// they are, where each begins, and its shape.
struct bucket_contents {
  ddpp::dtype type = {};
  std::size_t count = 0, index = 0;
  bool is_last = false;
  std::span<const std::size_t> parameters = {}, offsets = {}, rows = {};
};

/// Gradients that are reduced together. A hook finds this rank's gradients in data() and leaves there, on all
/// ranks the same, the sum over ranks of scale() times the gradients. On a device's transport the spans are
/// of its memory.
class gradient_bucket {
 public:
  /// `is_mean`: `scale` is 1 / size() on all ranks.
  gradient_bucket(const bucket_contents& contents, std::byte* data, double scale, bool is_mean)
      : contents_(contents), data_(data), scale_(scale), is_mean_(is_mean) {}

  /// The same gradients in another representation, for a hook that hands on to another one. `data` holds as
  /// many elements, to which `scale` is still to be applied.
  template <class T>
  gradient_bucket represented_by(std::span<T> data, double scale) const {
    bucket_contents contents = contents_;
    contents.type = dtype_of<T>;
    return {contents, reinterpret_cast<std::byte*>(data.data()), scale, false};
  }

  ddpp::dtype dtype() const noexcept { return contents_.type; }
  std::size_t count() const noexcept { return contents_.count; }
  /// Throws `usage_error` when T is not the gradients' type.
  template <class T>
  std::span<T> data() const {
    if (dtype_of<T> != dtype()) {
      throw usage_error("bucket " + std::to_string(index()) + " holds " + name_of(dtype()) +
                        ", asked for as " + name_of(dtype_of<T>));
    }
    return {reinterpret_cast<T*>(data_), count()};
  }
  /// f(span of T), T being float, double, half or bfloat16.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return detail::visit_gradient_type(
        dtype(), [&]<class T>(std::type_identity<T>) -> decltype(auto) { return f(data<T>()); });
  }

  /// What each rank's gradients count in the sum: 1 / size() for the mean, unless that has been applied
  /// already.
  double scale() const noexcept { return scale_; }
  /// Whether scale() is 1 / size() on all ranks: what all_reduce with `avg` does by itself.
  bool is_mean() const noexcept { return is_mean_; }
  /// In the order in which buckets are reduced, from 0.
  std::size_t index() const noexcept { return contents_.index; }
  bool is_last() const noexcept { return contents_.is_last; }
  /// The numbers of the parameters, as in the list that the model was constructed from.
  std::span<const std::size_t> parameters() const noexcept { return contents_.parameters; }
  /// Where the gradient of parameters()[k] begins in data(), in elements; one more than there are, the last
  /// count().
  std::span<const std::size_t> offsets() const noexcept { return contents_.offsets; }
  /// How many rows the gradient of parameters()[k] has, row by row in memory; 1 if it is no matrix.
  std::span<const std::size_t> rows() const noexcept { return contents_.rows; }

 private:
  bucket_contents contents_;
  std::byte* data_;
  double scale_;
  bool is_mean_;
};

}  // namespace ddpp
