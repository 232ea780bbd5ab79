// SPDX-License-Identifier: BSL-1.0
// Files in /dev/shm that have a random name for as long as others have to find them.
//
// A file is made without a name and locked before it gets one, and loses the name before the lock. So one
// that has a name and no lock was left behind: its maker was killed meanwhile. It is removed by whoever of
// the same user comes across it.
#pragma once

#include <ddpp/detail/block_name.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <cerrno>
#include <cstddef>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace ddpp::detail {

inline constexpr std::string_view named_file_folder = "/dev/shm/", named_file_prefix = "ddpp-";

/// Throws `resource_error` if errno says that this process has no descriptor or no memory left. Else errno
/// stays.
[[gnu::cold]] inline void throw_if_exhausted(const std::string& what) {
  const int code = errno;
  if (code == EMFILE || code == ENFILE) throw_out_of_descriptors(what, code);
  if (code == ENOMEM) throw resource_error(text(what, ": ", system_text(code)));
  errno = code;
}

/// The lock of one who makes a file known; the bytes before it are free for other purposes.
[[gnu::cold]] inline struct flock named_file_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = off_t{1} << 62;
  lock.l_len = 1;
  return lock;
}

/// A file without a name yet, for this user only. Throws `resource_error`.
[[gnu::cold]] inline descriptor create_file_to_be_named() {
  const std::string folder(named_file_folder);
  descriptor file = descriptor::open(
      [&] { return ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, S_IRUSR | S_IWUSR); });
  struct flock lock = named_file_lock();
  if (!file || ::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) {
    throw_if_exhausted(text("cannot create a file in ", folder));
    throw resource_error(text("cannot create a file in ", folder, ": ", system_text(errno)));
  }
  return file;
}

/// From now on others can open it. Throws `resource_error`.
[[gnu::cold]] inline void give_name(const descriptor& file, const std::string& path) {
  const std::string nameless = text("/proc/self/fd/", file.get());
  if (::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0)
    throw resource_error(text("cannot create ", path, ": ", system_text(errno)));
  DDPP_PROBE(file_named);
}

/// Removes this user's files that were left behind. Leaves alone what it cannot judge.
[[gnu::cold]] inline void remove_abandoned_files() noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(named_file_folder.data()), ::closedir);
  if (folder == nullptr) return;
  const int at = ::dirfd(folder.get());
  while (const dirent* const entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    struct stat found {};
    if (!name.starts_with(named_file_prefix) ||
        name.size() != named_file_prefix.size() + block_name{}.size() ||
        ::fstatat(at, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode) ||
        found.st_uid != ::geteuid()) {
      continue;
    }
    const int file = ::openat(at, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct flock lock = named_file_lock();
    if (file >= 0 && ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
      ::unlinkat(at, entry->d_name, 0);
    if (file >= 0) ::close(file);
  }
}

}  // namespace ddpp::detail
