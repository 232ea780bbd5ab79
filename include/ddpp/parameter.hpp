// SPDX-License-Identifier: BSL-1.0
// What a model is made of, for the training layer: named parameters with their gradients, and buffers.
#pragma once

#include <ddpp/buffer.hpp>
#include <ddpp/error.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

/// A buffer that says of itself that the host may not look into it.
template <class X>
inline constexpr bool is_device_buffer = requires {
  requires buffer_traits<X>::on_device;
};

/// Memory that belongs to the user. Of a container it remembers the container too, so that it can tell when
/// that has got itself other memory; of a span or another view, only the elements.
class user_memory {
 public:
  user_memory() = default;

  template <mutable_buffer B>
  explicit user_memory(B&& b) : bytes_(std::as_writable_bytes(as_span(b))) {
    using X = std::remove_reference_t<B>;
    is_on_device_ = is_device_buffer<std::remove_cv_t<X>>;
    static_assert(
        outlives_the_call<B>,
        "this temporary owns its elements and is gone after the call: pass a variable, or a span of one");
    if constexpr (!is_borrowed<std::remove_cv_t<X>>) {
      owner_ = std::addressof(b);
      read_ = [](void* owner) { return std::as_writable_bytes(as_span(*static_cast<X*>(owner))); };
    }
  }

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// Whether it was given as a device's. A pointer alone does not tell.
  bool is_on_device() const noexcept { return is_on_device_; }
  bool replaced() const {
    if (read_ == nullptr) return false;
    const auto now = read_(owner_);
    return now.data() != bytes_.data() || now.size() != bytes_.size();
  }

 private:
  std::span<std::byte> bytes_;
  bool is_on_device_ = false;
  void* owner_ = nullptr;
  std::span<std::byte> (*read_)(void*) = nullptr;
};

/// Of a matrix type that tells its shape and order, as Eigen's; else 1.
template <class V>
std::size_t rows_in_memory(const V& value, std::size_t count) {
  if constexpr (requires { V::IsRowMajor, value.rows(), value.cols(); }) {
    const auto lines = static_cast<std::size_t>(V::IsRowMajor ? value.rows() : value.cols());
    if (lines > 0 && lines < count) return lines;
  }
  return 1;
}

}  // namespace detail

/// A trainable parameter: its name, its value and its gradient, which have the same element type (float,
/// double, half or bfloat16) and the same number of elements; else `usage_error`. Without a gradient it is
/// frozen: it is synchronised at construction and takes no part in a step.
///
/// A device's memory is given as a `device_span`, or as any buffer of it.
///
/// Containers passed as variables must stay where they are and keep their memory; of spans only the elements
/// must.
class parameter {
 public:
  template <mutable_buffer V, mutable_buffer G>
  parameter(std::string name, V&& value, G&& gradient) : parameter(std::move(name), std::forward<V>(value)) {
    static_assert(std::same_as<element_t<V>, element_t<G>>,
                  "a value and its gradient have the same element type");
    gradient_ = detail::user_memory(std::forward<G>(gradient));
    has_gradient_ = true;
    if (gradient_.bytes().size() != value_.bytes().size()) {
      throw usage_error("parameter \"" + name_ + "\" has " + std::to_string(count_) +
                        " elements, its gradient has " +
                        std::to_string(gradient_.bytes().size() / element_size_));
    }
  }

  template <mutable_buffer V>
  parameter(std::string name, V&& value)
      : name_(std::move(name)),
        value_(std::forward<V>(value)),
        element_size_(sizeof(element_t<V>)),
        count_(value_.bytes().size() / sizeof(element_t<V>)),
        dtype_(dtype_of<element_t<V>>),
        rows_(detail::rows_in_memory(value, count_)) {
    static_assert(std::floating_point<element_t<V>> || is_16_bit_float<element_t<V>>,
                  "parameters are float, double, half or bfloat16");
  }

  /// Tells hooks that it is a matrix: `rows` rows of count() / rows elements, one after the other in memory.
  /// (Eigen's matrices say so themselves; a column-major one has its columns in the place of rows.) Throws
  /// `usage_error` when the rows are not equally long.
  parameter as_matrix(std::size_t rows) && {
    if (rows == 0 || count_ % rows != 0) {
      throw usage_error("parameter \"" + name_ + "\": its " + std::to_string(count_) + " elements are not " +
                        std::to_string(rows) + " equal rows");
    }
    rows_ = rows;
    return std::move(*this);
  }

  const std::string& name() const noexcept { return name_; }
  std::size_t count() const noexcept { return count_; }
  std::size_t element_size() const noexcept { return element_size_; }
  ddpp::dtype dtype() const noexcept { return dtype_; }
  /// 1 if it is no matrix.
  std::size_t rows() const noexcept { return rows_; }
  bool has_gradient() const noexcept { return has_gradient_; }
  const detail::user_memory& value() const noexcept { return value_; }
  const detail::user_memory& gradient() const noexcept { return gradient_; }

 private:
  std::string name_;
  detail::user_memory value_, gradient_;
  std::size_t element_size_, count_;
  ddpp::dtype dtype_;
  std::size_t rows_;
  bool has_gradient_ = false;
};

/// State of a model that is not trained but shared, as the running mean of a batch normalisation: any buffer.
/// The elements must outlive the model; see `parameter` for containers.
class model_buffer {
 public:
  template <class B>
  requires(!std::same_as<std::remove_cvref_t<B>, model_buffer>) && mutable_buffer<B> model_buffer(B&& b)
      : memory_(std::forward<B>(b)) {}

  const detail::user_memory& memory() const noexcept { return memory_; }

 private:
  detail::user_memory memory_;
};

}  // namespace ddpp
