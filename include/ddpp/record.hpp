// SPDX-License-Identifier: BSL-1.0
// The last words of a rank for the launcher that has started it, as torch.distributed.elastic's @record.
#pragma once

#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/rank_report.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/environment.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddpp {
namespace detail {

/// In the format of torchrun's error files. `follows_another` is ours: whether another rank had failed
/// before.
[[gnu::cold]] inline void write_error_file(const char* path, std::string_view message, bool follows_another) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string json =
      text("{\"message\": {\"message\": ", json_string(message), ", \"extraInfo\": {\"timestamp\": \"",
           std::chrono::duration_cast<std::chrono::seconds>(now).count(), "\", \"ddpp_follows_another\": \"",
           follows_another ? "1" : "0", "\"}}}\n");
  std::FILE* const file = std::fopen(path, "we");
  if (!file) return;
  std::fwrite(json.data(), 1, json.size(), file);
  std::fclose(file);
}

[[gnu::cold]] inline int record_current_exception() {
  const std::string message = current_exception_text();
  if (const char* const path = variable("TORCHELASTIC_ERROR_FILE"))
    write_error_file(path, message, current_exception_follows_another());
  std::fprintf(stderr, "%s\n", message.c_str());
  return 1;
}

}  // namespace detail

/// Calls main_function() and returns its status, or 0 when it returns none. What it throws goes to stderr and
/// to the file TORCHELASTIC_ERROR_FILE, if a launcher (ddpp-run, torchrun) has named one, and the status
/// is 1. So the launcher can say what went wrong first, and tell a rank that only lost its peer from the one
/// that failed:
///
///     int main() { return ddpp::record([] { train(); }); }
template <class F>
int record(F&& main_function) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      std::invoke(std::forward<F>(main_function));
      return 0;
    } else {
      return std::invoke(std::forward<F>(main_function));
    }
  } catch (...) {
    return detail::record_current_exception();
  }
}

}  // namespace ddpp
