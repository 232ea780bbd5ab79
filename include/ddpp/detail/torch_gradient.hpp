// SPDX-License-Identifier: BSL-1.0
// A parameter's gradient and its place in a bucket. Autograd gives the gradient memory of its own whenever
// there is none; from there it is copied to the bucket and back, or, with bucket views, the gradient is made
// to lie in the bucket, where autograd accumulates from then on.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <ATen/ATen.h>
#include <string>
#include <utility>

namespace ddpp::detail {

class torch_gradient {
 public:
  torch_gradient(std::string name, at::Tensor parameter, bool in_bucket)
      : name_(std::move(name)), parameter_(std::move(parameter)), in_bucket_(in_bucket) {}

  /// Its place in the bucket is here now; what was there has been brought along.
  void place_at(void* memory) {
    if (place_.defined() && place_.data_ptr() == memory) return;
    const at::NoGradGuard no_grad;
    at::Tensor place = tensor_at(memory);
    if (lies_in_bucket()) gradient().set_data(place);
    place_ = std::move(place);
  }

  /// Autograd has accumulated: the bucket gets the gradient.
  void bring() {
    const at::NoGradGuard no_grad;
    if (!gradient().defined()) {
      place_.zero_();
    } else if (gradient().layout() != at::kStrided) {
      throw usage_error(text("the gradient of parameter \"", name_,
                             "\" is sparse: buckets are dense (an Embedding has sparse(false) for it)"));
    } else if (!lies_in_bucket()) {
      place_.copy_(gradient());
    }
    if (in_bucket_) settle_in_bucket();
  }

  /// The bucket holds the average.
  void fetch() {
    const at::NoGradGuard no_grad;
    if (in_bucket_) return settle_in_bucket();
    if (!gradient().defined()) gradient() = at::empty_like(place_);
    gradient().copy_(place_);
  }

  /// The bucket goes; the gradient stays.
  void leave_bucket() {
    const at::NoGradGuard no_grad;
    if (lies_in_bucket()) gradient().set_data(place_.clone());
    place_ = at::Tensor();
  }

 private:
  at::Tensor& gradient() const { return parameter_.mutable_grad(); }

  /// No view of another tensor, which could not be detached in place as optimizers do.
  at::Tensor tensor_at(void* memory) const {
    return at::from_blob(memory, parameter_.sizes(), parameter_.strides(),
                         parameter_.options().requires_grad(false));
  }
  bool lies_in_bucket() const {
    return in_bucket_ && place_.defined() && gradient().defined() && gradient().layout() == at::kStrided &&
           gradient().data_ptr() == place_.data_ptr();
  }
  void settle_in_bucket() {
    if (!lies_in_bucket()) gradient() = tensor_at(place_.data_ptr());
  }

  std::string name_;
  at::Tensor parameter_, place_;
  bool in_bucket_;
};

}  // namespace ddpp::detail
