// SPDX-License-Identifier: BSL-1.0
// The file behind a file_store: a log of changes that every process reads and appends to.
//
//     "ddpp store 1\n\0\0\0", then records: checksum, kind, key bytes, value bytes (all little end first),
//     key, value
//
// Two byte ranges far beyond the end of the file serve as locks, which the kernel drops when their holder
// dies:
// - `turn`: shared by readers, exclusive for a writer. A writer killed in mid-record leaves a torn tail,
// which readers
//   ignore (nobody is writing while they read) and the next writer cuts off.
// - `members`: held shared by everybody who has the file open. Who leaves and can get it exclusively is the
// last and
//   removes the file. Who has opened a file that was removed before it got the lock opens anew.
// They belong to the open file (F_OFD_*), so several stores in one process are as separate as processes are.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// From 100 us doubling to 10 ms: short enough for a rendezvous, long enough to cost nothing.
class poll_pause {
 public:
  void sleep(deadline until) {
    std::this_thread::sleep_until(std::min(until, std::chrono::steady_clock::now() + length_));
    length_ = std::min(2 * length_, std::chrono::microseconds(10'000));
  }

 private:
  std::chrono::microseconds length_{100};
};

enum class log_record : std::uint32_t { set = 1, append, erase, push, pop };

/// Not thread-safe. Every function but the destructor may throw `timeout_error` when another process keeps a
/// lock.
class store_log {
 public:
  store_log(std::string path, deadline until) : path_(std::move(path)) {
    for (poll_pause pause; !open(until); pause.sleep(until)) {
      if (time_left(until).count() == 0)
        throw timeout_error("the store " + path_ + " is removed again and again");
    }
  }
  store_log(const store_log&) = delete;
  store_log& operator=(const store_log&) = delete;
  ~store_log() {
    if (guard_.in_child()) return;
    try {
      leave();
    } catch (const error&) {  // somebody keeps the lock, or the file system is gone: the file stays
    }
  }

  /// The contents as all finished changes have left them.
  const store_table& read(deadline until) {
    if (size() != end_) {
      const lock_holder turn_taken(*this, F_RDLCK, until);
      apply_new_records();
    }
    return table_;
  }

  /// Runs change(const store_table&, write), where write(kind, key, value) appends a change, with nobody else
  /// writing.
  template <class F>
  auto change(deadline until, F&& f) {
    const lock_holder turn_taken(*this, F_WRLCK, until);
    apply_new_records();
    return f(std::as_const(table_), [this](log_record kind, const std::string& key, std::string_view value) {
      append(kind, key, value);
    });
  }

  const std::string& path() const noexcept { return path_; }

 private:
  static constexpr std::string_view magic{"ddpp store 1\n\0\0\0", 16};
  static constexpr off_t turn = off_t{1} << 62, members = turn + 1;

  struct record_header {
    std::uint64_t checksum;
    std::uint32_t kind;
    std::uint32_t key_bytes;
    std::uint64_t value_bytes;
  };
  static_assert(sizeof(record_header) == 24);

  class lock_holder {
   public:
    lock_holder(store_log& log, short how, deadline until) : log_(log) { log_.lock(turn, how, until); }
    lock_holder(const lock_holder&) = delete;
    lock_holder& operator=(const lock_holder&) = delete;
    ~lock_holder() { log_.try_lock(turn, F_UNLCK); }

   private:
    store_log& log_;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    throw init_error("the store " + path_ + " cannot be used: " + why);
  }

  /// False when the last member has removed the file meanwhile.
  bool open(deadline until) {
    const int fd =
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE)
        throw_out_of_descriptors("could not open the store " + path_, errno);
      refuse(errno == ELOOP ? "it is a symbolic link" : system_text(errno));
    }
    file_ = descriptor(fd);
    const struct stat status = status_of_file();
    if (!S_ISREG(status.st_mode)) refuse("it is no regular file");
    if (status.st_uid != ::geteuid()) {
      refuse("it belongs to user " + std::to_string(status.st_uid) + ", and this is user " +
             std::to_string(::geteuid()));
    }
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) refuse("other users may write to it");
    lock(members, F_RDLCK, until);
    if (!is_still_at_path()) return false;
    const lock_holder turn_taken(*this, F_WRLCK, until);
    check_magic();
    return true;
  }

  struct stat status_of_file() const {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) refuse(system_text(errno));
    return status;
  }

  void leave() {
    const lock_holder turn_taken(*this, F_WRLCK, deadline_after(std::chrono::seconds(1)));
    if (try_lock(members, F_WRLCK) && is_still_at_path()) ::unlink(path_.c_str());
    try_lock(members, F_UNLCK);
  }

  std::uint64_t size() const { return static_cast<std::uint64_t>(status_of_file().st_size); }

  bool is_still_at_path() const noexcept {
    struct stat mine {
    }, there{};
    return ::fstat(file_.get(), &mine) == 0 && ::lstat(path_.c_str(), &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  }

  void check_magic() {
    char start[magic.size()];
    const std::size_t length = std::min<std::size_t>(size(), magic.size());
    read_at(0, start, length);
    if (std::string_view(start, length) != magic.substr(0, length))
      refuse("it holds something else than a store");
    if (length < magic.size()) write_at(0, magic);
    end_ = magic.size();
  }

  bool try_lock(off_t which, short how) noexcept {
    struct flock range {};
    range.l_type = how;
    range.l_whence = SEEK_SET;
    range.l_start = which;
    range.l_len = 1;
    return ::fcntl(file_.get(), F_OFD_SETLK, &range) == 0;
  }

  void lock(off_t which, short how, deadline until) {
    for (poll_pause pause; !try_lock(which, how); pause.sleep(until)) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR)
        refuse("it cannot be locked: " + system_text(errno));
      if (time_left(until).count() == 0)
        throw timeout_error("the store " + path_ + " is locked by another process");
    }
  }

  static std::uint64_t checksum(record_header header, std::string_view key, std::string_view value) {
    header.checksum = 0;
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    const auto mix = [&](const char* bytes, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3;
    };
    mix(reinterpret_cast<const char*>(&header), sizeof(header));
    mix(key.data(), key.size());
    mix(value.data(), value.size());
    return hash;
  }

  void apply_new_records() {
    const std::uint64_t size_now = size();
    if (size_now <= end_) return;
    std::string bytes(size_now - end_, '\0');
    bytes.resize(read_at(end_, bytes.data(), bytes.size()));
    std::string_view rest = bytes;
    for (;;) {
      record_header header{};
      if (rest.size() < sizeof(header)) return;
      std::memcpy(&header, rest.data(), sizeof(header));
      const std::size_t body = rest.size() - sizeof(header);
      if (header.key_bytes > body || header.value_bytes > body - header.key_bytes) return;
      const std::string_view key = rest.substr(sizeof(header), header.key_bytes);
      const std::string_view value = rest.substr(sizeof(header) + header.key_bytes, header.value_bytes);
      if (checksum(header, key, value) != header.checksum) return;
      apply(static_cast<log_record>(header.kind), std::string(key), value);
      const std::size_t length = sizeof(header) + key.size() + value.size();
      rest.remove_prefix(length);
      end_ += length;
    }
  }

  void apply(log_record kind, const std::string& key, std::string_view value) {
    switch (kind) {
      case log_record::set:
        table_.set(key, value);
        break;
      case log_record::append:
        table_.append(key, value);
        break;
      case log_record::erase:
        table_.erase(key);
        break;
      case log_record::push:
        table_.push(key, value);
        break;
      case log_record::pop:
        table_.pop(key);
        break;
    }
  }

  void append(log_record kind, const std::string& key, std::string_view value) {
    record_header header{0, static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(key.size()),
                         value.size()};
    header.checksum = checksum(header, key, value);
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes += key;
    bytes += value;
    write_at(end_, bytes);
    apply(kind, key, value);
    end_ += bytes.size();
  }

  std::size_t read_at(std::uint64_t offset, char* to, std::size_t count) const {
    std::size_t done = 0;
    while (done < count) {
      const ssize_t got = ::pread(file_.get(), to + done, count - done, static_cast<off_t>(offset + done));
      if (got == 0) break;
      if (got > 0)
        done += static_cast<std::size_t>(got);
      else if (errno != EINTR)
        refuse(system_text(errno));
    }
    return done;
  }

  /// Cuts off what is behind `offset` and writes there.
  void write_at(std::uint64_t offset, std::string_view bytes) {
    if (::ftruncate(file_.get(), static_cast<off_t>(offset)) != 0) refuse(system_text(errno));
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t put =
          ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (put > 0) {
        done += static_cast<std::size_t>(put);
      } else if (errno != EINTR) {
        throw resource_error("could not write " + std::to_string(bytes.size()) + " bytes to the store " +
                             path_ + ": " + system_text(errno));
      }
    }
  }

  std::string path_;
  fork_guard guard_;
  descriptor file_;
  store_table table_;
  std::uint64_t end_ = 0;  ///< of the records in `table_`
};

}  // namespace ddpp::detail
