// SPDX-License-Identifier: BSL-1.0
// The job's secret: DDPP_SECRET, else what the file DDPP_SECRET_FILE holds, else none. It is never printed.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/small_file.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>

namespace ddpp::detail {

inline std::mutex& job_secret_mutex() {
  static std::mutex only;
  return only;
}

inline secret read_job_secret() {
  if (const char* value = std::getenv("DDPP_SECRET"); value != nullptr && *value != '\0') return value;
  const char* path = std::getenv("DDPP_SECRET_FILE");
  if (path == nullptr || *path == '\0') return {};
  secret content = read_small_file(path);
  while (!content.empty() && (content.back() == '\n' || content.back() == '\r')) content.pop_back();
  if (content.empty()) {
    throw authentication_error(std::string("DDPP_SECRET_FILE names ") + path +
                               ", which cannot be read or is empty");
  }
  return content;
}

/// The job's secret, or an empty one when there is none. Throws authentication_error when DDPP_SECRET_FILE is
/// set and cannot be read.
inline secret job_secret() {
  const std::lock_guard lock(job_secret_mutex());
  return read_job_secret();
}

/// 32 random bytes in hexadecimal.
[[gnu::cold]] inline secret random_secret() {
  std::array<std::byte, 32> random;
  fill_random(random);
  secret made;
  for (const std::byte each : random) {
    made += "0123456789abcdef"[std::to_integer<unsigned>(each) >> 4];
    made += "0123456789abcdef"[std::to_integer<unsigned>(each) & 15u];
  }
  return made;
}

/// The job's secret, but makes a random one when there is none, and puts it into this process's environment
/// as DDPP_SECRET, so that children have it. Changes the environment: not while another thread reads it.
inline secret ensure_job_secret() {
  const std::lock_guard lock(job_secret_mutex());
  if (secret existing = read_job_secret(); !existing.empty()) return existing;
  secret made = random_secret();
  if (::setenv("DDPP_SECRET", made.c_str(), 1) != 0) {
    throw resource_error("could not put a secret into the environment: " + system_text(errno));
  }
  return made;
}

}  // namespace ddpp::detail
