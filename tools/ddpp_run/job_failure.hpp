// SPDX-License-Identifier: BSL-1.0
// Why a job ends before its ranks are done, as nodes tell each other and users.
#pragma once

#include <string>

namespace launcher {

struct job_failure {
  int rank = -1;  ///< -1: not a rank's; then `message` says it all
  int local_rank = -1;
  int node = 0;
  int process = 0;
  std::string host = {};
  int exit_code = 1;
  int signal = 0;
  std::string message = {};      ///< from the error file, or why it could not be started
  std::string error_file = {};   ///< where it is kept; empty: not kept
  std::string last_lines = {};   ///< of its stderr
  bool follows_another = false;  ///< says itself that another rank had failed before
  bool is_final = false;         ///< no restart helps
};

/// A job's exit status: the failure's, 128 + n for signal n.
int exit_status(const job_failure& failure);

/// "exit code 3", "SIGSEGV (Segmentation fault)".
std::string text_of_end(const job_failure& failure);

/// All that is known, in several lines.
std::string report(const job_failure& failure);

/// For the store.
std::string encode(const job_failure& failure);
job_failure decode_failure(const std::string& text);

/// Takes what the rank has put into its error file, in torchrun's format, if it has.
void read_error_file(job_failure& failure, const std::string& path);

}  // namespace launcher
