// SPDX-License-Identifier: BSL-1.0
// The block of memory of one host's processes, and who of them lives.
//
// It is an anonymous file (memfd), which the system frees with its last user, whatever happens. Peers open it
// through rank 0's /proc/PID/fd. Where they cannot see that, it is a file with a random name in /dev/shm
// until all have come.
//
// Life: each rank holds a lock on the byte of the file that has its number. The lock belongs to an open file
// description of the rank's own, which neither a mapping nor a forked child shares; so it goes exactly when
// the rank's process does, and no thread or socket is needed to notice.
#pragma once

#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/mapping.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <utility>

namespace ddpp::detail {

/// Where rank 0's segment is, as it travels through the store.
struct segment_address {
  std::string host;       ///< of this boot of this kernel
  std::string processes;  ///< which table of processes `process` is a number in
  std::string process;
  std::string fd;    ///< "-" for a segment with a name in the file system
  std::string name;  ///< a block_name

  std::string text() const { return detail::text(host, " ", processes, " ", process, " ", fd, " ", name); }

  [[gnu::cold]] static segment_address parse(const std::string& text) {
    segment_address address;
    std::size_t begin = 0;
    for (std::string* field :
         {&address.host, &address.processes, &address.process, &address.fd, &address.name}) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      *field = text.substr(begin, end - begin);
      begin = std::min(end + 1, text.size());
    }
    return address;
  }

  /// Of this process, but for fd and name.
  [[gnu::cold]] static segment_address here() {
    segment_address address;
    std::array<char, 36> boot{};
    const descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
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
    return has_file_name() ? detail::text("/dev/shm/ddpp-", name)
                           : detail::text("/proc/", process, "/fd/", fd);
  }
};

class shared_segment final : public fabric_memory {
 public:
  /// Throws `resource_error` with the bytes needed and available.
  [[gnu::cold]] static std::unique_ptr<shared_segment> create_anonymous(int ranks) {
    descriptor file(::memfd_create("ddpp", MFD_CLOEXEC));
    if (!file) return create_named(ranks);  // an old kernel, or not allowed
    segment_address address = segment_address::here();
    address.fd = text(file.get());
    return create(ranks, std::move(file), std::move(address), random_block_name());
  }

  [[gnu::cold]] static std::unique_ptr<shared_segment> create_named(int ranks) {
    const block_name name = random_block_name();
    segment_address address = segment_address::here();
    address.fd = "-";
    address.name.assign(name.begin(), name.end());
    descriptor file(::open(address.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) throw resource_error(text("cannot create ", address.path(), ": ", system_text(errno)));
    try {
      return create(ranks, std::move(file), address, name);
    } catch (...) {
      ::unlink(address.path().c_str());
      throw;
    }
  }

  /// Null, with errno, if this process cannot get at it, or if it is not there any more.
  [[gnu::cold]] static std::unique_ptr<shared_segment> open(int ranks, const segment_address& address) {
    if (!address.has_file_name() && !is_anonymous_segment(address.path())) return nullptr;
    descriptor file(::open(address.path().c_str(),
                           O_RDWR | O_CLOEXEC | O_NOCTTY | (address.has_file_name() ? O_NOFOLLOW : 0)));
    if (!file) return nullptr;
    if (!is_block(file.get(), ranks, address.name)) {
      errno = ENOENT;
      return nullptr;
    }
    std::unique_ptr<shared_segment> segment(new shared_segment(ranks, std::move(file), address));
    segment->file_.reset();
    return segment;
  }

  ~shared_segment() override { forget_name(); }

  const segment_address& address() const noexcept { return address_; }

  /// All who belong here have come: from now on nobody else can.
  void close_doors() noexcept {
    forget_name();
    file_.reset();
  }

  /// Says by the lock that this rank lives. Throws `init_error` if another process says so already.
  void show_life(int rank) {
    struct flock lock = byte_of(rank);
    if (::fcntl(life_.get(), F_OFD_SETLK, &lock) == 0) {
      slot(rank).process.store(number_in(segment_address::here().process), std::memory_order_release);
      return;
    }
    if (errno == EAGAIN || errno == EACCES) {
      throw init_error(text("rank ", rank, " is there twice: another process has joined as that rank"));
    }
    throw resource_error(text("cannot lock the shared memory segment: ", system_text(errno)));
  }

  bool exists(int rank) const override {
    struct flock lock = byte_of(rank);
    return ::fcntl(life_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

  /// The letter of its state follows the name, which may itself hold anything but ends with the last ')'.
  bool is_stopped(int rank) const override {
    const std::int64_t process = slot(rank).process.load(std::memory_order_acquire);
    if (process == 0 || address_.has_file_name()) return false;  // such ranks may see different processes
    const descriptor file(::open(text("/proc/", process, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 256> status{};
    const ssize_t length = file ? ::read(file.get(), status.data(), status.size()) : 0;
    const std::string_view shown(status.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    const std::size_t name_end = shown.rfind(") ");
    return name_end != shown.npos && name_end + 2 < shown.size() &&
           (shown[name_end + 2] == 'T' || shown[name_end + 2] == 't');
  }

  void reserve(std::size_t offset, std::size_t bytes) override { allocate(life_.get(), offset, bytes); }

 private:
  [[gnu::cold]] shared_segment(int ranks, descriptor file, segment_address address)
      : fabric_memory(ranks),
        address_(std::move(address)),
        file_(std::move(file)),
        life_(::open(text("/proc/self/fd/", file_.get()).c_str(), O_RDWR | O_CLOEXEC)),
        mapping_(mapping::of_file(file_.get(), layout().total_bytes())) {
    if (!life_)
      throw resource_error(text("cannot open the shared memory segment through /proc: ", system_text(errno)));
    set_base(mapping_.data());
  }

  [[gnu::cold]] static std::unique_ptr<shared_segment> create(int ranks, descriptor file,
                                                              segment_address address,
                                                              const block_name& name) {
    const fabric_layout layout(ranks);
    address.name.assign(name.begin(), name.end());
    if (::ftruncate(file.get(), static_cast<off_t>(layout.total_bytes())) != 0) {
      throw resource_error(text("cannot size the shared memory segment to ", layout.total_bytes(),
                                " bytes: ", system_text(errno)));
    }
    allocate(file.get(), 0, layout.initial_bytes());
    const bool has_file_name = address.has_file_name();
    std::unique_ptr<shared_segment> segment(new shared_segment(ranks, std::move(file), std::move(address)));
    segment->owns_name_ = has_file_name;
    segment->initialise(name);
    return segment;
  }

  // Pages are there before anyone touches them: a full file system is an error here, not a SIGBUS later.
  [[gnu::cold]] static void allocate(int fd, std::size_t offset, std::size_t bytes) {
    while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      const int code = errno;
      throw resource_error(text("cannot reserve shared memory: ", bytes, " bytes needed, ", available(fd),
                                " bytes available: ", system_text(code)));
    }
  }

  [[gnu::cold]] static std::string available(int fd) {
    struct statvfs space {};
    if (::fstatvfs(fd, &space) == 0 && space.f_blocks != 0) return text(space.f_bavail * space.f_frsize);
    struct sysinfo memory {};
    if (::sysinfo(&memory) != 0) return "unknown";
    return text((memory.freeram + memory.bufferram) * memory.mem_unit);
  }

  // Another process may have the number by now: nothing of another kind is opened.
  [[gnu::cold]] static bool is_anonymous_segment(const std::string& path) {
    constexpr std::string_view expected = "/memfd:ddpp";
    std::array<char, expected.size()> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    if (length < 0) return false;
    errno = ENOENT;
    return std::string_view(target.data(), static_cast<std::size_t>(length)) == expected;
  }

  [[gnu::cold]] static bool is_block(int fd, int ranks, const std::string& name) {
    struct stat file {};
    if (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
        static_cast<std::size_t>(file.st_size) != fabric_layout(ranks).total_bytes()) {
      return false;
    }
    std::array<char, sizeof(fabric_header)> bytes{};
    if (::pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return false;
    std::uint64_t magic = 0;
    block_name nonce{};
    std::memcpy(&magic, bytes.data() + offsetof(fabric_header, magic), sizeof magic);
    std::memcpy(&nonce, bytes.data() + offsetof(fabric_header, nonce), sizeof nonce);
    return magic == fabric_header::right_magic && std::string_view(nonce.data(), nonce.size()) == name;
  }

  static std::int64_t number_in(const std::string& digits) {
    std::int64_t number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return number;
  }

  static struct flock byte_of(int rank) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
  }

  void forget_name() noexcept {
    if (std::exchange(owns_name_, false) && !guard_.in_child()) ::unlink(address_.path().c_str());
  }

  fork_guard guard_;
  segment_address address_;
  bool owns_name_ = false;
  descriptor file_;  // rank 0's, until all have come
  descriptor life_;
  mapping mapping_;
};

}  // namespace ddpp::detail
