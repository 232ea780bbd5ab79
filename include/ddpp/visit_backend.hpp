// SPDX-License-Identifier: BSL-1.0
// From a name known at run time to a transport type.
#pragma once

#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/error.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

template <transport T, transport... Rest, class F>
decltype(auto) visit_named(std::string_view name, const std::string& known, F&& f) {
  if (name == T::name) return std::forward<F>(f)(std::type_identity<T>{});
  if constexpr (sizeof...(Rest) > 0) {
    return visit_named<Rest...>(name, known, std::forward<F>(f));
  } else {
    throw usage_error("there is no backend \"" + std::string(name) + "\"; there are " + known);
  }
}

template <transport... Ts>
std::string backend_names() {
  std::string text;
  ((text += text.empty() ? "" : ", ", text += Ts::name), ...);
  return text;
}

}  // namespace detail

/// Returns f(std::type_identity<T>{}) for the transport T of that name among threads, shm, tcp and More, for
/// example visit_backend<nccl>(name, f). f returns the same type for each. Throws `usage_error` listing the
/// names there are.
template <transport... More, class F>
decltype(auto) visit_backend(std::string_view name, F&& f) {
  static const std::string known = detail::backend_names<threads, shm, tcp, More...>();
  return detail::visit_named<threads, shm, tcp, More...>(name, known, std::forward<F>(f));
}

}  // namespace ddpp
