// SPDX-License-Identifier: BSL-1.0
// The block of memory of one host's processes, and who of them lives.
//
// Life: each rank holds a lock on the byte of the file that has its number. The lock belongs to an open file
// description of the rank's own, which neither a mapping nor a forked child shares; so it goes exactly when
// the rank's process does, and no thread or socket is needed to notice.
#pragma once

#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/mapping.hpp>
#include <ddpp/detail/named_file.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/shared_file.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/symmetric_window.hpp>
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
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace ddpp::detail {

class shared_segment final : public fabric_memory {
 public:
  /// Throws `resource_error` with the bytes needed and available.
  [[gnu::cold]] static std::unique_ptr<shared_segment> create(file_kind kind, int ranks) {
    shared_file file = shared_file::create(kind, fabric_layout(ranks).total_bytes());
    shared_file::reserve(file.get(), 0, fabric_layout(ranks).initial_bytes());
    const std::size_t staging = staging_bytes_for(ranks, shared_file::available(file.get()));
    std::unique_ptr<shared_segment> segment(new shared_segment(ranks, std::move(file)));
    block_name nonce{};
    segment->address().name.copy(nonce.data(), nonce.size());
    segment->initialise(nonce, staging);
    segment->file_.open_doors();
    DDPP_PROBE(segment_created);
    return segment;
  }

  /// Null, with errno, if this process cannot get at it, or if it is not there any more.
  [[gnu::cold]] static std::unique_ptr<shared_segment> open(int ranks, const shared_file_address& address) {
    shared_file file = shared_file::open(address);
    if (!file) return nullptr;
    if (!is_block(file.get(), ranks, address.name)) {
      errno = ENOENT;
      return nullptr;
    }
    std::unique_ptr<shared_segment> segment(new shared_segment(ranks, std::move(file)));
    segment->close_doors();
    return segment;
  }

  /// Another rank may have been killed while a window had a name.
  ~shared_segment() override {
    if (address().has_file_name()) remove_abandoned_files();
  }

  const shared_file_address& address() const noexcept { return file_.address(); }

  /// All who belong here have come: from now on nobody else can.
  void close_doors() noexcept { file_.close_doors(); }

  /// Says by the lock that this rank lives. Throws `init_error` if another process says so already.
  void show_life(int rank) {
    struct flock lock = byte_of(rank);
    if (::fcntl(life_.get(), F_OFD_SETLK, &lock) == 0) {
      slot(rank).process.store(number_in(shared_file_address::here().process), std::memory_order_release);
      DDPP_PROBE(life_shown);
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
    if (process == 0 || address().has_file_name()) return false;  // such ranks may see different processes
    const descriptor file(::open(text("/proc/", process, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 256> status{};
    const ssize_t length = file ? ::read(file.get(), status.data(), status.size()) : 0;
    const std::string_view shown(status.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    const std::size_t name_end = shown.rfind(") ");
    return name_end != shown.npos && name_end + 2 < shown.size() &&
           (shown[name_end + 2] == 'T' || shown[name_end + 2] == 't');
  }

  void reserve(std::size_t offset, std::size_t bytes) override {
    shared_file::reserve(life_.get(), offset, bytes);
  }

  window_offer offer_window(std::size_t bytes) override {
    const file_kind kind = address().has_file_name() ? file_kind::named : file_kind::anonymous;
    const std::size_t total = symmetric_window::total(bytes, ranks());
    auto file = std::make_shared<shared_file>(shared_file::create(kind, total));
    shared_file::check_room(file->get(), total);
    window_offer offer{file->address().text(), map_window(*file, 0, bytes), file};
    file->open_doors();
    DDPP_PROBE(window_offered);
    return offer;
  }

  std::shared_ptr<symmetric_window> accept_window(const std::string& address, int rank,
                                                  std::size_t bytes) override {
    const shared_file file = shared_file::open(shared_file_address::parse(address));
    if (!file) throw resource_error(text("cannot open rank 0's shared memory: ", system_text(errno)));
    auto window = map_window(file, rank, bytes);
    DDPP_PROBE(window_accepted);
    return window;
  }

 private:
  [[gnu::cold]] shared_segment(int ranks, shared_file file)
      : fabric_memory(ranks),
        file_(std::move(file)),
        life_(descriptor::open(
            [this] { return ::open(text("/proc/self/fd/", file_.get()).c_str(), O_RDWR | O_CLOEXEC); })),
        mapping_(mapping::of_file(file_.get(), layout().total_bytes())) {
    if (!life_) {
      const char* const what = "cannot open the shared memory segment through /proc";
      throw_if_exhausted(what);
      throw resource_error(text(what, ": ", system_text(errno)));
    }
    set_base(mapping_.data());
    DDPP_PROBE(segment_mapped);
  }

  /// Each rank reserves its own part, whose pages are then near it.
  [[gnu::cold]] std::shared_ptr<symmetric_window> map_window(const shared_file& file, int rank,
                                                             std::size_t bytes) {
    const std::size_t stride = symmetric_window::stride(bytes), number = static_cast<std::size_t>(ranks());
    shared_file::reserve(file.get(), stride * static_cast<std::size_t>(rank), stride);
    return std::make_shared<symmetric_window>(mapping::of_file(file.get(), stride * number), bytes);
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

  shared_file file_;  // rank 0's keeps a descriptor until all have come
  descriptor life_;
  mapping mapping_;
};

}  // namespace ddpp::detail
