// SPDX-License-Identifier: BSL-1.0
// The last words of forked ranks. They lie in memory shared with the parent, not in a pipe: a child that
// closes every descriptor can still say why it fails, and nobody has to read while it writes.
#pragma once

#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <sys/mman.h>

namespace ddpp::detail {

/// Why a rank failed, seen from outside: of its own accord, or because another had failed before.
enum class rank_end : std::uint32_t { none, finished, failed, followed };

/// Whether what is being thrown is another rank's failure as it arrives here: that rank is the one to report.
[[gnu::cold]] inline bool current_exception_follows_another() {
  try {
    throw;
  } catch (const peer_lost&) {
    return true;
  } catch (const revoked_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Written by one child, read by the parent once the child has ended.
class rank_report {
 public:
  void finish() noexcept { end_.store(rank_end::finished, std::memory_order_release); }

  void fail(std::string_view text, bool follows_another) noexcept {
    length_ = static_cast<std::uint32_t>(std::min(text.size(), sizeof(text_)));
    std::memcpy(text_, text.data(), length_);
    end_.store(follows_another ? rank_end::followed : rank_end::failed, std::memory_order_release);
  }

  rank_end end() const noexcept { return end_.load(std::memory_order_acquire); }
  /// Meaningful for failed and followed. At most 4000 bytes.
  std::string text() const { return {text_, std::min<std::size_t>(length_, sizeof(text_))}; }

 private:
  std::atomic<rank_end> end_{rank_end::none};
  std::uint32_t length_ = 0;
  char text_[4000];
};
static_assert(std::atomic<rank_end>::is_always_lock_free);

/// One report per rank and which rank failed first, shared with the children forked while it is there.
class rank_reports {
 public:
  [[gnu::cold]] explicit rank_reports(std::size_t ranks) : size_(ranks) {
    void* const memory =
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw resource_error(text("could not map ", bytes(), " bytes for the reports of ", ranks,
                                " ranks: ", system_text(errno)));
    }
    reports_ = static_cast<rank_report*>(memory);
    for (std::size_t i = 0; i < ranks; ++i) new (reports_ + i) rank_report;
    failed_first_ = new (reports_ + ranks) std::atomic<std::size_t>(ranks);
  }
  rank_reports(const rank_reports&) = delete;
  rank_reports& operator=(const rank_reports&) = delete;
  ~rank_reports() { ::munmap(reports_, bytes()); }

  std::size_t size() const noexcept { return size_; }
  rank_report& operator[](std::size_t rank) noexcept { return reports_[rank]; }
  const rank_report& operator[](std::size_t rank) const noexcept { return reports_[rank]; }

  /// By the parent: tells the ranks that still run of the first failure.
  void announce_failure(std::size_t rank) noexcept { failed_first_->store(rank, std::memory_order_release); }
  /// Nothing when there is no failure yet.
  std::optional<std::size_t> failed_first() const noexcept {
    const std::size_t rank = failed_first_->load(std::memory_order_acquire);
    return rank < size_ ? std::optional(rank) : std::nullopt;
  }

 private:
  static_assert(sizeof(rank_report) % alignof(std::atomic<std::size_t>) == 0);
  std::size_t bytes() const noexcept { return size_ * sizeof(rank_report) + sizeof *failed_first_; }

  std::size_t size_;
  rank_report* reports_;
  std::atomic<std::size_t>* failed_first_;  // behind the reports
};

}  // namespace ddpp::detail
