// SPDX-License-Identifier: BSL-1.0
#include "rank_output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace launcher {
namespace {

constexpr std::size_t longest_line = std::size_t{1} << 20;
constexpr std::size_t longest_tail = 4096;
constexpr int most_tail_lines = 20;

void write_to_file(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string last_lines_of(std::string_view tail, bool is_cut) {
  if (is_cut) tail.remove_prefix(std::min(tail.find('\n') + 1, tail.size()));
  while (tail.ends_with('\n')) tail.remove_suffix(1);
  std::size_t begin = tail.size();
  for (int lines = 0; lines < most_tail_lines && begin != 0; ++lines) {
    const auto newline = tail.rfind('\n', begin - 1);
    begin = newline == tail.npos ? 0 : newline;
  }
  tail.remove_prefix(begin);
  return std::string(tail.starts_with('\n') ? tail.substr(1) : tail);
}

}  // namespace

rank_output::rank_output(console& to) : console_(to), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

rank_output::~rank_output() {
  const std::uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) < 0) return;
  if (thread_.joinable()) thread_.join();
}

file_descriptor rank_output::add(int local_rank, stream treated) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  file_descriptor from(ends[0]), to(ends[1]), log;
  if (!treated.file.empty()) {
    log = file_descriptor(::open(treated.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!log) throw std::runtime_error("could not write " + treated.file + ": " + std::strerror(errno));
  }
  sources_.push_back(
      std::make_unique<source>(source{local_rank, std::move(treated), std::move(from), std::move(log)}));
  return to;
}

void rank_output::start() {
  thread_ = std::thread([this] { run(); });
}

bool rank_output::finish(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, limit, [&] {
    return std::none_of(sources_.begin(), sources_.end(), [](const auto& each) { return bool(each->from); });
  });
}

std::string rank_output::last_lines(int local_rank, std::chrono::milliseconds limit) {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const auto& each) {
    return each->local_rank == local_rank && each->treated.fd == STDERR_FILENO;
  });
  if (found == sources_.end()) return {};
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, limit, [&] { return !(*found)->from; });
  const std::string& tail = (*found)->tail;
  return last_lines_of(tail, tail.size() == longest_tail);
}

void rank_output::run() {
  for (;;) {
    std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}};
    std::vector<source*> open;
    for (const auto& each : sources_) {
      if (!each->from) continue;
      entries.push_back({each->from.get(), POLLIN, 0});
      open.push_back(each.get());
    }
    if (open.empty()) return;
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[0].revents != 0) return;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (entries[i + 1].revents != 0 && !read_some(*open[i])) end(*open[i]);
    }
  }
}

bool rank_output::read_some(source& one) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(one.from.get(), buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  take(one, {buffer.data(), static_cast<std::size_t>(got)});
  return true;
}

void rank_output::take(source& one, std::string_view text) {
  if (one.log) write_to_file(one.log.get(), text);
  if (one.treated.fd == STDERR_FILENO) {
    const std::lock_guard lock(mutex_);
    one.tail.append(text);
    if (one.tail.size() > longest_tail) one.tail.erase(0, one.tail.size() - longest_tail);
  }
  if (one.treated.shown) show(one, text);
}

void rank_output::show(source& one, std::string_view text) {
  std::string lines;
  for (auto end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    lines += one.treated.prefix;
    lines += one.begun;
    lines += text.substr(0, end + 1);
    one.begun.clear();
    text.remove_prefix(end + 1);
  }
  one.begun += text;
  if (one.begun.size() > longest_line) lines += one.treated.prefix + std::exchange(one.begun, {}) + '\n';
  if (!lines.empty()) console_.write(one.treated.fd, lines);
}

void rank_output::end(source& one) {
  if (!one.begun.empty()) show(one, "\n");
  const std::lock_guard lock(mutex_);
  one.from.reset();
  one.log.reset();
  ended_.notify_all();
}

}  // namespace launcher
