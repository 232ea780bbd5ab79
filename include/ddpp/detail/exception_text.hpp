// SPDX-License-Identifier: BSL-1.0
// What is being thrown, for a person.
#pragma once

#include <ddpp/detail/text.hpp>

#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <string>
#include <typeinfo>

namespace ddpp::detail {

/// The text of the exception being handled, or its type where it has none.
[[gnu::cold]] inline std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text;
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    if (!type) return "an exception of another language";
    char* const name = abi::__cxa_demangle(type->name(), nullptr, nullptr, nullptr);
    const std::string result = text("an exception of type ", name ? name : type->name());
    std::free(name);
    return result;
  }
}

}  // namespace ddpp::detail
