// SPDX-License-Identifier: BSL-1.0
// The parameters and buffers of a torch module as the training layer wants them, and whether the module still
// has the same ones.
#pragma once

#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/detail/torch_tensor.hpp>
#include <ddpp/error.hpp>
#include <ddpp/parameter.hpp>

#include <ATen/core/Tensor.h>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <torch/nn/module.h>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddpp::detail {

inline bool is_parameter_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

/// f(std::type_identity<T>{}) for the type of a parameter of a torch_model.
template <class F>
decltype(auto) visit_parameter_type(const at::Tensor& tensor, F&& f) {
  const dtype type =
      visit_scalar_type(tensor.scalar_type(), []<class T>(std::type_identity<T>) { return dtype_of<T>; });
  return visit_gradient_type(type, std::forward<F>(f));
}

/// A parameter that is registered under several names counts once, under the first.
class torch_model {
 public:
  struct named_parameter {
    std::string name;
    at::Tensor tensor;
    const void* memory;
    bool is_trained;
  };

  /// Throws `usage_error` naming what a transport of such memory could not move.
  torch_model(const torch::nn::Module& module, memory_space where) : where_(where) {
    std::map<const at::TensorImpl*, std::size_t> known;
    std::map<const void*, std::string> owners;  // of memory
    for (const auto& each : module.named_parameters()) {
      const auto [at, is_new] = known.try_emplace(each.value().unsafeGetTensorImpl(), parameters_.size());
      registered_.push_back(at->second);
      if (is_new) add_parameter(each.key(), each.value(), owners);
    }
    for (const auto& each : module.named_buffers()) {
      const at::Tensor& tensor = each.value();
      if (!tensor.defined()) continue;
      if (const std::string objection = objection_to_memory(tensor, where_); !objection.empty())
        throw usage_error(text("buffer \"", each.key(), "\" ", objection));
      buffers_.push_back({each.key(), tensor, tensor.data_ptr(), false});
    }
  }

  const std::vector<named_parameter>& parameters() const noexcept { return parameters_; }

  /// For a layer that keeps gradients in its buckets: it makes no use of the memory that is given for them.
  std::vector<parameter> list_parameters() const {
    std::vector<parameter> list;
    for (const named_parameter& each : parameters_) {
      visit_parameter_type(each.tensor, [&]<class T>(std::type_identity<T>) {
        const auto values = elements_in_memory<T>(each.tensor, each.name, where_);
        parameter made =
            each.is_trained ? parameter(each.name, values, values) : parameter(each.name, values);
        list.push_back(std::move(made).as_matrix(rows_of(each.tensor)));
      });
    }
    return list;
  }

  std::vector<model_buffer> list_buffers() const {
    std::vector<model_buffer> list;
    for (const named_parameter& each : buffers_) {
      auto* const first = static_cast<std::byte*>(each.tensor.data_ptr());
      list.emplace_back(std::span(first, each.tensor.nbytes()));
    }
    return list;
  }

  /// Throws `reducer_error` naming the first difference between what the module has and what it had.
  void require_unchanged(const torch::nn::Module& module) const {
    const auto now = module.named_parameters();
    for (std::size_t k = 0; k < registered_.size(); ++k) {
      const std::size_t i = registered_[k];
      const named_parameter& had = parameters_[i];
      if (k >= now.size() || !now[k].value().is_same(had.tensor)) refuse_parameter(i, "has been replaced");
      if (had.tensor.data_ptr() != had.memory) refuse_parameter(i, "has moved to other memory");
      if (had.tensor.requires_grad() && !had.is_trained) refuse_parameter(i, "has been unfrozen");
    }
    if (now.size() > registered_.size()) {
      throw reducer_error(text("parameter \"", now[registered_.size()].key(),
                               "\" has been added since construction: make a new torch_ddp"));
    }
    for (const named_parameter& had : buffers_) {
      if (had.tensor.data_ptr() != had.memory) {
        throw reducer_error(text("buffer \"", had.name,
                                 "\" has moved to other memory since construction: make a new torch_ddp"));
      }
    }
  }

 private:
  void add_parameter(const std::string& registered_name, const at::Tensor& tensor,
                     std::map<const void*, std::string>& owners) {
    const std::string name = name_with_strides(registered_name, tensor);
    if (const std::string objection = objection_to_memory(tensor, where_); !objection.empty())
      throw usage_error(text("parameter \"", name, "\" ", objection));
    if (!is_parameter_type(tensor.scalar_type())) {
      throw usage_error(text("parameter \"", name, "\" is of ", at::toString(tensor.scalar_type()),
                             ": parameters are Float, Double, Half or BFloat16"));
    }
    const auto [owner, is_new] = owners.try_emplace(tensor.data_ptr(), name);
    if (!is_new && tensor.numel() > 0) {
      throw usage_error(text("parameters \"", owner->second, "\" and \"", name,
                             "\" are two tensors in the same memory: to share a parameter, register one "
                             "tensor under both names"));
    }
    parameters_.push_back({name, tensor, tensor.data_ptr(), tensor.requires_grad()});
  }

  [[noreturn, gnu::cold]] void refuse_parameter(std::size_t i, const char* what) const {
    throw reducer_error(text("parameter ", i, " (\"", parameters_[i].name, "\") ", what,
                             " since construction: make a new torch_ddp"));
  }

  /// Elements travel in the order of memory: ranks that differ in it must find out when they compare names.
  static std::string name_with_strides(const std::string& name, const at::Tensor& tensor) {
    if (tensor.is_contiguous()) return name;
    std::string strides;
    for (const auto stride : tensor.strides()) strides += text(strides.empty() ? "" : ", ", stride);
    return text(name, " (strides ", strides, ")");
  }

  /// The first dimension against all others, as torch's PowerSGD has it.
  static std::size_t rows_of(const at::Tensor& tensor) {
    if (tensor.dim() < 2 || tensor.numel() == 0) return 1;
    const auto rows = tensor.size(0);
    return tensor.stride(0) * rows == tensor.numel() ? static_cast<std::size_t>(rows) : 1;
  }

  const memory_space where_;
  std::vector<named_parameter> parameters_, buffers_;
  std::vector<std::size_t> registered_;  // which of parameters_ each name of the module stands for
};

}  // namespace ddpp::detail
