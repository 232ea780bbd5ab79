// SPDX-License-Identifier: BSL-1.0
// Checks for code that runs on ranks, which may be other processes: a failed one throws, `launch` and `spawn`
// carry its text back to the test.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace support {

class failed_expectation : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool good, const char* condition, const char* file, int line) {
  if (!good)
    throw failed_expectation(std::string(file) + ":" + std::to_string(line) + ": not true: " + condition);
}

/// The text of the exception of type Error that f must throw.
template <class Error, class F>
std::string text_of(F&& f, const char* file, int line) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    throw failed_expectation(std::string(file) + ":" + std::to_string(line) +
                             ": another exception: " + e.what());
  }
  throw failed_expectation(std::string(file) + ":" + std::to_string(line) + ": nothing was thrown");
}

inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace support

#define EXPECT(...) ::support::expect(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define EXPECT_THROWS(Error, ...) ::support::text_of<Error>([&] { __VA_ARGS__; }, __FILE__, __LINE__)
