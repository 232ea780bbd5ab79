// SPDX-License-Identifier: BSL-1.0
// Where the processes of one `launch` meet: a log in an anonymous file that they inherit. Nobody serves it,
// it cannot die with a rank, and it goes with the last process that has it open, whatever ends them.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/log_store.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <cerrno>
#include <chrono>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

namespace ddpp::detail {

/// What a rank is given by the parent that has forked it.
struct launch_meeting {
  std::shared_ptr<ddpp::store> store;
  ddpp::secret secret;
};

/// Of the rank that this process is, for `init` in it; null where it is none.
inline const launch_meeting* meeting_of_this_rank = nullptr;

/// Made by the parent, inherited by the children that are forked while it is there.
class inherited_meeting {
 public:
  [[gnu::cold]] inherited_meeting()
      : file_(::memfd_create("ddpp-store", MFD_CLOEXEC)), secret_(random_secret()) {
    if (file_ < 0) throw_out_of_descriptors("launch: could not make an anonymous file", errno);
  }
  inherited_meeting(const inherited_meeting&) = delete;
  inherited_meeting& operator=(const inherited_meeting&) = delete;
  ~inherited_meeting() { ::close(file_); }

  /// In a child, once: what it stays with until it ends.
  [[gnu::cold]] const launch_meeting& enter(std::chrono::milliseconds timeout) const {
    const log_place place{"of launch (an anonymous file)", file_};
    meeting_of_this_rank = new launch_meeting{std::make_shared<log_store>(place, timeout), secret_};
    return *meeting_of_this_rank;
  }

 private:
  int file_;  // no `descriptor`, which would be closed in the children
  ddpp::secret secret_;
};

}  // namespace ddpp::detail
