// SPDX-License-Identifier: BSL-1.0
// A file in memory that the processes of one host map.
//
// It is an anonymous one (memfd), which the system frees with its last user, whatever happens. Peers open it
// through its maker's /proc/PID/fd. Where they cannot see that, it is a file with a random name in /dev/shm
// until all have opened it: see named_file.hpp.
#pragma once

#include <ddpp/detail/available_memory.hpp>
#include <ddpp/detail/block_name.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/named_file.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

namespace ddpp::detail {

/// Where a file is, as its maker tells the others.
struct shared_file_address {
  std::string host;       ///< of this boot of this kernel
  std::string processes;  ///< which table of processes `process` is a number in
  std::string process;
  std::string fd;    ///< "-" for a file with a name
  std::string name;  ///< a block_name
  std::string file;  ///< device and number: nothing else that has come by the name is it

  std::string text() const {
    return detail::text(host, " ", processes, " ", process, " ", fd, " ", name, " ", file);
  }

  [[gnu::cold]] static shared_file_address parse(const std::string& text) {
    shared_file_address address;
    std::size_t begin = 0;
    for (std::string* field :
         {&address.host, &address.processes, &address.process, &address.fd, &address.name, &address.file}) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      *field = text.substr(begin, end - begin);
      begin = std::min(end + 1, text.size());
    }
    return address;
  }

  /// Of this process, but for what says which file. Throws `resource_error` if it can open none.
  [[gnu::cold]] static shared_file_address here() {
    shared_file_address address;
    std::array<char, 36> boot{};
    const char* const path = "/proc/sys/kernel/random/boot_id";
    const descriptor file = descriptor::open([=] { return ::open(path, O_RDONLY | O_CLOEXEC); });
    if (!file) throw_if_exhausted(detail::text("cannot open ", path));
    const bool known = ::read(file.get(), boot.data(), boot.size()) == static_cast<ssize_t>(boot.size());
    address.host = known ? std::string(boot.data(), boot.size()) : "-";
    struct stat table {};
    address.processes = ::stat("/proc", &table) == 0 ? detail::text(table.st_dev) : "-";
    // The number that this process has in /proc, which need not be its own namespace's.
    std::array<char, 32> self{};
    const ssize_t length = ::readlink("/proc/self", self.data(), self.size());
    address.process = length > 0 ? std::string(self.data(), static_cast<std::size_t>(length)) : "-";
    return address;
  }

  bool has_file_name() const { return fd == "-"; }
  std::string path() const {
    return has_file_name() ? detail::text(named_file_folder, named_file_prefix, name)
                           : detail::text("/proc/", process, "/fd/", fd);
  }
};

/// Where memory shared with other processes comes from.
enum class file_kind { anonymous, named };

class shared_file {
 public:
  /// Of so many bytes, of which none are reserved yet. Nobody else can open it before open_doors(). Throws
  /// `resource_error`.
  [[gnu::cold]] static shared_file create(file_kind kind, std::size_t bytes) {
    const block_name random = random_block_name();
    shared_file file;
    file.address_ = shared_file_address::here();
    file.address_.name.assign(random.begin(), random.end());
    if (kind == file_kind::anonymous) {
      const std::string name = text(named_file_prefix, file.address_.name);
      file.descriptor_ = descriptor::open([&] { return ::memfd_create(name.c_str(), MFD_CLOEXEC); });
      if (!file) throw_if_exhausted("cannot make shared memory");
      file.address_.fd = text(file.get());
    }
    if (!file) {  // or an old kernel, or not allowed
      file.address_.fd = "-";
      file.descriptor_ = create_file_to_be_named();
    }
    DDPP_PROBE(file_created);
    resize(file.get(), bytes);
    file.address_.file = identity_of(file.get());
    return file;
  }

  /// All is in it that others expect: from now on they can come. Throws `resource_error`.
  [[gnu::cold]] void open_doors() {
    if (!address_.has_file_name()) return;
    remove_abandoned_files();
    give_name(descriptor_, address_.path());
    owns_name_ = true;
  }

  /// Another process's. Without a descriptor, and with errno, if this process cannot get at it, or if it is
  /// not there any more. Throws `resource_error` if it can open none.
  [[gnu::cold]] static shared_file open(const shared_file_address& address) {
    shared_file file;
    file.address_ = address;
    if (!address.has_file_name() && !is_ours(address)) return file;
    const std::string path = address.path();
    const int flags = O_RDWR | O_CLOEXEC | O_NOCTTY | (address.has_file_name() ? O_NOFOLLOW : 0);
    file.descriptor_ = descriptor::open([&] { return ::open(path.c_str(), flags); });
    if (!file) {
      throw_if_exhausted(text("cannot open ", path));
    } else if (identity_of(file.get()) != address.file) {
      file.descriptor_.reset();
      errno = ENOENT;
    }
    return file;
  }

  shared_file(shared_file&& other) noexcept
      : guard_(other.guard_),
        address_(std::move(other.address_)),
        descriptor_(std::move(other.descriptor_)),
        owns_name_(std::exchange(other.owns_name_, false)) {}
  shared_file& operator=(shared_file&&) = delete;
  ~shared_file() { close_doors(); }

  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }
  int get() const noexcept { return descriptor_.get(); }
  const shared_file_address& address() const noexcept { return address_; }

  /// All who belong here have come: from now on nobody else can.
  void close_doors() noexcept {
    if (std::exchange(owns_name_, false) && !guard_.in_child()) {
      ::unlink(address_.path().c_str());
      DDPP_PROBE(file_unlinked);
    }
    descriptor_.reset();
  }

  /// Pages are there before anyone touches them: a full file system is an error here, not a SIGBUS later.
  /// Throws `resource_error` with the bytes needed and available.
  [[gnu::cold]] static void reserve(int fd, std::size_t offset, std::size_t bytes) {
    constexpr std::size_t piece = std::size_t{1} << 20;  // a signal undoes the call that it interrupts
    check_room(fd, bytes);
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t length = std::min(piece, bytes - done);
      if (::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(length)) == 0) {
        done += length;
      } else if (errno != EINTR) {
        throw_no_room(bytes, available(fd) + done, errno);
      }
    }
  }

  /// Throws what reserve() throws if it is clear that there is not so much. (To reserve more memory than
  /// there is would not be an error, but make the system kill processes.)
  [[gnu::cold]] static void check_room(int fd, std::size_t bytes) {
    constexpr std::size_t too_little_to_ask = std::size_t{8} << 20;
    if (bytes < too_little_to_ask) return;
    if (const std::size_t there = available(fd); there < bytes) throw_no_room(bytes, there, ENOMEM);
  }

  /// How many bytes such a file may still take up.
  [[gnu::cold]] static std::size_t available(int fd) {
    struct statvfs space {};
    const bool limited = ::fstatvfs(fd, &space) == 0 && space.f_blocks != 0;
    return limited ? std::min(available_memory(), space.f_bavail * space.f_frsize) : available_memory();
  }

 private:
  shared_file() = default;

  [[noreturn, gnu::cold]] static void throw_no_room(std::size_t needed, std::size_t there, int code) {
    throw resource_error(text("cannot reserve shared memory: ", needed, " bytes needed, ", there,
                              " bytes available: ", system_text(code)));
  }

  [[gnu::cold]] static void resize(int fd, std::size_t bytes) {
    const std::string what = text("cannot size shared memory to ", bytes, " bytes: ");
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)  // trying would send SIGXFSZ
      throw resource_error(text(what, "a file may have ", limit.rlim_cur, " bytes (see ulimit -f)"));
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw resource_error(what + system_text(errno));
  }

  [[gnu::cold]] static std::string identity_of(int fd) {
    struct stat file {};
    return ::fstat(fd, &file) == 0 ? text(file.st_dev, ":", file.st_ino) : "-";
  }

  // Another process may have the number by now: nothing else is opened.
  [[gnu::cold]] static bool is_ours(const shared_file_address& address) {
    const std::string expected = text("/memfd:", named_file_prefix, address.name, " (deleted)");
    std::array<char, 128> target{};
    const ssize_t length = ::readlink(address.path().c_str(), target.data(), target.size());
    if (length < 0) return false;
    errno = ENOENT;
    return std::string_view(target.data(), static_cast<std::size_t>(length)) == expected;
  }

  fork_guard guard_;
  shared_file_address address_;
  descriptor descriptor_;
  bool owns_name_ = false;
};

}  // namespace ddpp::detail
