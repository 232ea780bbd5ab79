// SPDX-License-Identifier: BSL-1.0
// The job's secret: DDPP_SECRET, else what the file DDPP_SECRET_FILE holds, else none. It is never printed,
// and a file that others may read or change holds no secret.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace ddpp::detail {

inline std::mutex& job_secret_mutex() {
  static std::mutex only;
  return only;
}

inline constexpr std::size_t longest_secret = 4096;

[[noreturn, gnu::cold]] inline void refuse_secret_file(const char* path, const std::string& why) {
  throw authentication_error(text("DDPP_SECRET_FILE names ", path, ", which ", why));
}

/// Members of the file's group may read it, as where a cluster hands secrets out by group.
[[gnu::cold]] inline void check_secret_file(const char* path, const struct stat& status) {
  if (!S_ISREG(status.st_mode)) refuse_secret_file(path, "is no regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    refuse_secret_file(path, text("belongs to user ", status.st_uid, ", who is neither this one nor root"));
  }
  if ((status.st_mode & (S_IWGRP | S_IROTH | S_IWOTH)) != 0) {
    refuse_secret_file(path, "others may read or change: chmod 600 it, and use a new secret");
  }
}

/// What the file holds, without the end of its last line. Throws authentication_error.
[[gnu::cold]] inline secret read_secret_file(const char* path) {
  const descriptor file =
      descriptor::open([=] { return ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    refuse_secret_file(path, "cannot be read: " + system_text(errno));
  }
  check_secret_file(path, status);
  secret content(longest_secret + 3, '\0');
  std::size_t length = 0;
  while (length < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + length, content.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_secret_file(path, "cannot be read: " + system_text(errno));
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  content.resize(length);
  while (!content.empty() && (content.back() == '\n' || content.back() == '\r')) content.pop_back();
  if (content.empty()) refuse_secret_file(path, "is empty");
  if (content.size() > longest_secret) {
    refuse_secret_file(path, text("holds more than ", longest_secret, " bytes"));
  }
  return content;
}

inline secret read_job_secret() {
  if (const char* value = std::getenv("DDPP_SECRET"); value != nullptr && *value != '\0') return value;
  const char* const path = std::getenv("DDPP_SECRET_FILE");
  return path == nullptr || *path == '\0' ? secret() : read_secret_file(path);
}

/// The job's secret, or an empty one when there is none. Throws authentication_error when DDPP_SECRET_FILE is
/// set and cannot be read, or can be read by others.
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
