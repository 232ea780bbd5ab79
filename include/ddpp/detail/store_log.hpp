// SPDX-License-Identifier: BSL-1.0
// The file behind a log_store: a log of changes that every process reads and appends to.
//
//     "ddpp store 1\n\0\0\0", then records: checksum, kind, key bytes, value bytes (all little end first),
//     key, value
//
// Two byte ranges far beyond the end of the file serve as locks, which the kernel drops when their holder
// dies:
// - `turn`: shared by readers, exclusive for a writer. A writer killed in mid-record leaves a torn tail,
// which readers
//   ignore (nobody is writing while they read) and the next writer cuts off.
// - `members`: held shared by everybody who has the file open under a path. Who leaves and can get it
// exclusively is the
//   last and removes the file. Who has opened a file that was removed before it got the lock opens anew.
// They belong to the open file (F_OFD_*), so several stores in one process are as separate as processes are.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/store_table.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
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

/// Where the log is: under a path, where it is made if it is missing, or in an anonymous file whose
/// descriptor this process has inherited.
struct log_place {
  std::string name;         ///< the path, or what errors call the file
  int inherited_file = -1;  ///< stays the owner's
};

/// Not thread-safe. Every function but the destructor may throw `timeout_error` when another process keeps a
/// lock.
class store_log {
 public:
  [[gnu::cold]] store_log(const log_place& place, deadline until)
      : path_(place.name), has_path_(place.inherited_file < 0) {
    if (has_path_)
      open_path(until);
    else
      open_anew(place.inherited_file);
    const lock_holder turn_taken(*this, F_WRLCK, until);
    check_magic();
  }
  store_log(const store_log&) = delete;
  store_log& operator=(const store_log&) = delete;
  [[gnu::cold]] ~store_log() {
    if (guard_.in_child() || !has_path_) return;
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

  class change;

  /// An open file with a lock of its own on the key's byte, which goes with the last process that has it
  /// open.
  std::shared_ptr<void> hold(const std::string& key) {
    auto file =
        std::make_shared<descriptor>(::open(text("/proc/self/fd/", file_.get()).c_str(), O_RDWR | O_CLOEXEC));
    if (!*file) {
      refuse_lack_of_descriptors();
      return nullptr;  // no /proc
    }
    struct flock byte = byte_at(place_of(key), F_WRLCK);
    return ::fcntl(file->get(), F_OFD_SETLK, &byte) == 0 ? file : nullptr;
  }
  bool is_held(const std::string& key) const {
    struct flock byte = byte_at(place_of(key), F_WRLCK);
    return ::fcntl(file_.get(), F_OFD_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
  }

  const std::string& path() const noexcept { return path_; }

 private:
  static constexpr std::string_view magic{"ddpp store 1\n\0\0\0", 16};
  static constexpr off_t turn = off_t{1} << 62, members = turn + 1;
  static constexpr off_t held_keys = off_t{1} << 61;  ///< that many bytes from there, below the two above

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

  [[noreturn, gnu::cold]] void refuse(const std::string& why) const {
    throw init_error(text("the store ", path_, " cannot be used: ", why));
  }

  [[gnu::cold]] void open_path(deadline until) {
    for (poll_pause pause; !try_open_path(until); pause.sleep(until)) {
      if (time_left(until).count() == 0)
        throw timeout_error(text("the store ", path_, " is removed again and again"));
    }
  }

  /// False when the last member has removed the file meanwhile.
  [[gnu::cold]] bool try_open_path(deadline until) {
    const int fd =
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) {
      refuse_lack_of_descriptors();
      refuse(errno == ELOOP ? "it is a symbolic link" : system_text(errno));
    }
    file_ = descriptor(fd);
    const struct stat status = status_of_file();
    if (!S_ISREG(status.st_mode)) refuse("it is no regular file");
    if (status.st_uid != ::geteuid()) {
      refuse(text("it belongs to user ", status.st_uid, ", and this is user ", ::geteuid()));
    }
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) refuse("other users may write to it");
    lock(members, F_RDLCK, until);
    return is_still_at_path();
  }

  /// Locks belong to an open file description, and an inherited descriptor shares its owner's.
  [[gnu::cold]] void open_anew(int inherited) {
    file_ = descriptor(::open(text("/proc/self/fd/", inherited).c_str(), O_RDWR | O_CLOEXEC));
    if (file_) return;
    refuse_lack_of_descriptors();
    refuse(text("it cannot be opened through /proc: ", system_text(errno)));
  }

  void refuse_lack_of_descriptors() const {
    if (errno == EMFILE || errno == ENFILE)
      throw_out_of_descriptors(text("could not open the store ", path_), errno);
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

  [[gnu::cold]] void check_magic() {
    char start[magic.size()];
    const std::size_t length = std::min<std::size_t>(size(), magic.size());
    read_at(0, start, length);
    if (std::string_view(start, length) != magic.substr(0, length))
      refuse("it holds something else than a store");
    if (length < magic.size()) write_at(0, magic);
    end_ = magic.size();
  }

  static struct flock byte_at(off_t which, short how) noexcept {
    struct flock range {};
    range.l_type = how;
    range.l_whence = SEEK_SET;
    range.l_start = which;
    range.l_len = 1;
    return range;
  }
  static off_t place_of(const std::string& key) {
    return held_keys + static_cast<off_t>(checksum({}, key, {}) % static_cast<std::uint64_t>(held_keys));
  }

  bool try_lock(off_t which, short how) noexcept {
    struct flock range = byte_at(which, how);
    return ::fcntl(file_.get(), F_OFD_SETLK, &range) == 0;
  }

  void lock(off_t which, short how, deadline until) {
    for (poll_pause pause; !try_lock(which, how); pause.sleep(until)) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR)
        refuse(text("it cannot be locked: ", system_text(errno)));
      if (time_left(until).count() == 0)
        throw timeout_error(text("the store ", path_, " is locked by another process"));
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
        throw resource_error(
            text("could not write ", bytes.size(), " bytes to the store ", path_, ": ", system_text(errno)));
      }
    }
  }

  std::string path_;
  bool has_path_;
  fork_guard guard_;
  descriptor file_;
  store_table table_;
  std::uint64_t end_ = 0;  ///< of the records in `table_`
};

/// Nobody else writes while it is there.
class store_log::change {
 public:
  change(store_log& log, deadline until) : log_(log), turn_taken_(log, F_WRLCK, until) {
    log.apply_new_records();
  }

  const store_table& now() const noexcept { return log_.table_; }
  void write(log_record kind, const std::string& key, std::string_view value) {
    log_.append(kind, key, value);
  }

 private:
  store_log& log_;
  const lock_holder turn_taken_;
};

}  // namespace ddpp::detail
