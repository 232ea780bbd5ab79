// SPDX-License-Identifier: BSL-1.0
// What is being thrown, for a person.
#pragma once

#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <memory>
#include <string>
#include <typeinfo>

namespace ddpp::detail {

/// The text of the exception being handled, or its type where it has none.
inline std::string current_exception_text() {
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
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(type->name(), nullptr, nullptr, nullptr), std::free);
    return std::string("an exception of type ") + (name ? name.get() : type->name());
  }
}

}  // namespace ddpp::detail
