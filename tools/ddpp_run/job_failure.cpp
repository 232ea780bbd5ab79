// SPDX-License-Identifier: BSL-1.0
#include "job_failure.hpp"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "signals.hpp"

namespace launcher {

// NOLINTNEXTLINE
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(job_failure, rank, local_rank, node, process, host, exit_code, signal,
                                   message, error_file, last_lines, follows_another, is_final)

int exit_status(const job_failure& failure) {
  return failure.signal != 0 ? 128 + failure.signal : failure.exit_code;
}

std::string text_of_end(const job_failure& failure) {
  if (failure.signal == 0) return "exit code " + std::to_string(failure.exit_code);
  return signal_name(failure.signal) + " (" + ::strsignal(failure.signal) + ")";
}

std::string report(const job_failure& failure) {
  if (failure.rank < 0) return failure.message;
  std::string text = "rank " + std::to_string(failure.rank) + " failed first: " + text_of_end(failure) +
                     " (local rank " + std::to_string(failure.local_rank) + " of node " +
                     std::to_string(failure.node) + ", process " + std::to_string(failure.process) + " on " +
                     failure.host + ")";
  if (!failure.message.empty()) text += "\nits error: " + failure.message;
  if (!failure.error_file.empty()) text += "\nits error file: " + failure.error_file;
  if (!failure.last_lines.empty()) {
    text += "\nits last lines of stderr:\n| ";
    for (const char c : failure.last_lines) {
      text += c;
      if (c == '\n') text += "| ";
    }
  }
  return text;
}

std::string encode(const job_failure& failure) {
  return nlohmann::json(failure).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

job_failure decode_failure(const std::string& text) { return nlohmann::json::parse(text).get<job_failure>(); }

void read_error_file(job_failure& failure, const std::string& path) {
  std::ifstream file(path);
  if (!file) return;
  const auto content = nlohmann::json::parse(file, nullptr, false);
  if (!content.is_object() || !content.contains("message")) return;
  const auto& message = content["message"];
  if (message.is_string()) failure.message = message;
  if (!message.is_object()) return;
  if (message.contains("message") && message["message"].is_string()) failure.message = message["message"];
  if (!message.contains("extraInfo") || !message["extraInfo"].is_object()) return;
  failure.follows_another = message["extraInfo"].value("ddpp_follows_another", nlohmann::json()) == "1";
}

}  // namespace launcher
