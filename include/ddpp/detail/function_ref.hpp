// SPDX-License-Identifier: BSL-1.0
// A callable that lives elsewhere, of whatever type: what is written over it is compiled once, not once per
// callable.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace ddpp::detail {

template <class Signature>
class function_ref;

/// Valid as long as what it refers to. One indirect call, nothing is allocated.
template <class R, class... Arguments>
class function_ref<R(Arguments...)> {
 public:
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, function_ref>) function_ref(F&& f)
  noexcept : object_(std::addressof(f)), call_(call<std::remove_reference_t<F>>) {}

  R operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  template <class F>
  static R call(const void* object, Arguments... arguments) {
    auto& f = *static_cast<F*>(const_cast<void*>(object));
    if constexpr (std::is_void_v<R>)
      f(std::forward<Arguments>(arguments)...);
    else
      return f(std::forward<Arguments>(arguments)...);
  }

  const void* object_;
  R (*call_)(const void*, Arguments...);
};

}  // namespace ddpp::detail
