// SPDX-License-Identifier: BSL-1.0
// A library to preload (LD_PRELOAD): system calls fail, are interrupted and do less than they were asked for,
// now and then, as the system's manual permits. What a seed decides is the same in each run, but for the
// order of threads.
//
// DDPP_TEST_SEED     a number; without it nothing happens
// DDPP_TEST_FAULTS   names with commas between them: short, interrupt, again, reset, descriptors, space; all
// but the
//                    last three change nothing for a correct program
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum class fault : unsigned { brief = 1, interrupt = 2, again = 4, reset = 8, descriptors = 16, space = 32 };

unsigned chosen_faults() {
  const char* const said = std::getenv("DDPP_TEST_FAULTS");
  if (said == nullptr || std::getenv("DDPP_TEST_SEED") == nullptr) return 0;
  constexpr const char* names[] = {"short", "interrupt", "again", "reset", "descriptors", "space"};
  unsigned all = 0;
  for (unsigned i = 0; i < std::size(names); ++i) {
    if (std::strstr(said, names[i]) != nullptr) all |= 1u << i;
  }
  return all;
}

const unsigned faults = chosen_faults();
std::atomic<std::uint64_t> calls{0};

/// The next of a sequence that seed and process begin (splitmix64).
std::uint64_t random_number() {
  static const std::uint64_t seed = [] {
    const char* const said = std::getenv("DDPP_TEST_SEED");
    return said == nullptr ? 0 : std::strtoull(said, nullptr, 10);
  }();
  const char* const rank = std::getenv("RANK");
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 +
                    (rank == nullptr ? 0 : std::strtoull(rank, nullptr, 10) + 1) * 0xd1b54a32d192ed03 +
                    ++calls * 0x8cb92ba72f3d8dd7;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool happens(fault what, unsigned once_in) {
  return (faults & static_cast<unsigned>(what)) != 0 && random_number() % once_in == 0;
}

/// Sets errno and says that the call fails, or does not.
bool fails(bool is_patient) {
  if (happens(fault::interrupt, 11)) return errno = EINTR, true;
  if (!is_patient && happens(fault::again, 7)) return errno = EAGAIN, true;
  if (happens(fault::reset, 2000)) return errno = ECONNRESET, true;
  return false;
}

std::size_t shortened(std::size_t bytes) {
  return bytes > 1 && happens(fault::brief, 3) ? 1 + random_number() % bytes : bytes;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

/// A message whose pieces are cut off somewhere.
struct short_message {
  explicit short_message(const msghdr& whole) : message(whole) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < whole.msg_iovlen; ++i) all += whole.msg_iov[i].iov_len;
    std::size_t left = shortened(all);
    message.msg_iovlen = std::min<std::size_t>(whole.msg_iovlen, std::size(pieces));
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
      pieces[i] = whole.msg_iov[i];
      pieces[i].iov_len = std::min(pieces[i].iov_len, left);
      left -= pieces[i].iov_len;
    }
    message.msg_iov = pieces;
  }
  msghdr message;
  iovec pieces[8];
};

/// Whether there is no descriptor, or no room, for a new one.
bool refuses_descriptor() {
  if (!happens(fault::descriptors, 40)) return false;
  errno = EMFILE;
  return true;
}

}  // namespace

#define REAL(name) static auto* const real = next<decltype(::name)>(#name)

extern "C" {

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  REAL(send);
  if (fails((flags & MSG_DONTWAIT) == 0)) return -1;
  return real(fd, data, shortened(bytes), flags);
}

ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  REAL(recv);
  if (fails((flags & MSG_DONTWAIT) == 0)) return -1;
  return real(fd, data, (flags & MSG_PEEK) != 0 ? bytes : shortened(bytes), flags);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  REAL(sendmsg);
  if (fails((flags & MSG_DONTWAIT) == 0)) return -1;
  const short_message part(*message);
  return real(fd, &part.message, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  REAL(recvmsg);
  if (fails((flags & MSG_DONTWAIT) == 0)) return -1;
  short_message part(*message);
  return real(fd, &part.message, flags);
}

int poll(pollfd* entries, nfds_t count, int timeout) {
  REAL(poll);
  if (happens(fault::interrupt, 5)) return errno = EINTR, -1;
  return real(entries, count, timeout);
}

int connect(int fd, const sockaddr* to, socklen_t length) {
  REAL(connect);
  const int result = real(fd, to, length);
  return result == 0 && happens(fault::interrupt, 3) ? (errno = EINTR, -1)
                                                     : result;  // it goes on all the same
}

int accept4(int fd, sockaddr* from, socklen_t* length, int flags) {
  REAL(accept4);
  if (fails(false) || refuses_descriptor()) return -1;
  return real(fd, from, length, flags);
}

int socket(int family, int kind, int protocol) {
  REAL(socket);
  return refuses_descriptor() ? -1 : real(family, kind, protocol);
}

int eventfd(unsigned count, int flags) {
  REAL(eventfd);
  return refuses_descriptor() ? -1 : real(count, flags);
}

ssize_t read(int fd, void* data, size_t bytes) {
  REAL(read);
  if (happens(fault::interrupt, 5)) return errno = EINTR, -1;
  return real(fd, data,
              bytes > sizeof(eventfd_t) ? shortened(bytes) : bytes);  // of an eventfd: all or nothing
}

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(write);
  if (happens(fault::interrupt, 5)) return errno = EINTR, -1;
  if (fd > STDERR_FILENO && happens(fault::space, 10)) return errno = ENOSPC, -1;
  return real(fd, data, fd > STDERR_FILENO && bytes > sizeof(eventfd_t) ? shortened(bytes) : bytes);
}
}
