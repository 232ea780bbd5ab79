// SPDX-License-Identifier: BSL-1.0
#include "console.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <unistd.h>

namespace launcher {
namespace {

/// A pipe takes so many bytes at once without blocking, and nothing of others between them.
constexpr std::size_t most_at_once = PIPE_BUF;

std::size_t length_of_piece(std::string_view lines) {
  if (lines.size() <= most_at_once) return lines.size();
  const auto end = lines.rfind('\n', most_at_once - 1);
  return end == lines.npos ? most_at_once : end + 1;
}

}  // namespace

console::console() : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool console::wait_until_writable(int fd, int milliseconds) const {
  pollfd entries[] = {{fd, POLLOUT, 0}, {stop_.get(), POLLIN, 0}};
  int ready = 0;
  do ready = ::poll(entries, 2, milliseconds);
  while (ready < 0 && errno == EINTR);
  return entries[0].revents != 0;
}

void console::write(int fd, std::string_view lines) {
  const auto index = static_cast<std::size_t>(fd);
  const std::lock_guard lock(mutexes_[index]);
  while (!lines.empty() && !closed_[index]) {
    if (!wait_until_writable(fd, -1)) return;
    const ssize_t written = ::write(fd, lines.data(), length_of_piece(lines));
    if (written > 0)
      lines.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR && errno != EAGAIN)
      closed_[index] = true;
  }
}

void console::say(std::string_view text) {
  std::string lines = "ddpp-run: ";
  for (const char c : text) {
    lines += c;
    if (c == '\n') lines += "  ";
  }
  lines += '\n';
  for (std::string_view rest(lines); !rest.empty() && wait_until_writable(STDERR_FILENO, 1000);) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), length_of_piece(rest));
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void console::give_up() {
  const std::uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) < 0) return;
}

}  // namespace launcher
