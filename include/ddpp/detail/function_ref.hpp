// SPDX-License-Identifier: BSL-1.0
// A callable that lives elsewhere, of whatever type: what is written over it is compiled once, not once per
// callable.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

namespace ddpp::detail {

template <class Signature>
class function_ref;

/// Valid as long as what it refers to. One indirect call, nothing is allocated.
template <class R, class... Arguments>
class function_ref<R(Arguments...)> {
 public:
  template <class F>
  requires(!std::same_as<F, function_ref>) function_ref(const F& f)
  noexcept
      : object_(std::addressof(f)), call_([](const void* object, Arguments... arguments) -> R {
          return (*static_cast<const F*>(object))(arguments...);
        }) {}

  R operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  const void* object_;
  R (*call_)(const void*, Arguments...);
};

}  // namespace ddpp::detail
