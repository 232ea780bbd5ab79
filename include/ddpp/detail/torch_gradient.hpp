// SPDX-License-Identifier: BSL-1.0
// A parameter's gradient and its place in a bucket. Autograd gives the gradient memory of its own whenever
// there is none; from there it is copied to the bucket and back, or, with bucket views, the gradient is made
// to lie in the bucket, where autograd accumulates from then on.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
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
    // No view of another tensor, which could not be detached in place as optimizers do.
    const at::Tensor here = at::from_blob(memory, parameter_.sizes(), parameter_.strides(),
                                          parameter_.options().requires_grad(false));
    if (place_.defined())
      place_.set_data(here);
    else
      place_ = here;
  }

  /// Autograd has accumulated: the bucket gets the gradient.
  void bring() {
    const c10::NoGradGuard no_grad;
    if (!gradient().defined()) {
      place_.zero_();
    } else if (gradient().layout() != at::kStrided) {
      throw usage_error(text("the gradient of parameter \"", name_,
                             "\" is sparse: buckets are dense (an Embedding has sparse(false) for it)"));
    } else if (!gradient().is_same(place_)) {
      place_.copy_(gradient());
    }
    if (in_bucket_) gradient() = place_;
  }

  /// The bucket holds the average.
  void fetch() {
    const c10::NoGradGuard no_grad;
    if (in_bucket_) {
      gradient() = place_;
      return;
    }
    if (!gradient().defined()) gradient() = at::empty_like(place_);
    gradient().copy_(place_);
  }

  /// The bucket goes. Whoever has the gradient keeps it.
  void leave_bucket() {
    if (place_.defined() && place_.use_count() > 1) place_.set_data(place_.clone());
    place_ = at::Tensor();
  }

 private:
  at::Tensor& gradient() const { return parameter_.mutable_grad(); }

  std::string name_;
  at::Tensor parameter_;
  at::Tensor place_;  // with bucket views the gradient itself, which so can be told of other memory
  bool in_bucket_;
};

}  // namespace ddpp::detail
