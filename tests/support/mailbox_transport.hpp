// SPDX-License-Identifier: BSL-1.0
// The least that a transport can be: threads that leave copies of messages in each other's mailboxes. It has
// none of the optional capabilities, so it shows that the library needs none.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/store.hpp>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace support {

class mailbox_transport {
  struct office {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;  // (from, to, tag)
    std::optional<ddpp::failure> failed;
  };

 public:
  static constexpr std::string_view name = "mailbox";
  static constexpr ddpp::memory_space memory = ddpp::memory_space::host;
  static constexpr ddpp::launch_kind launch = ddpp::launch_kind::threads;
  struct options {};

  class request {
   public:
    request() = default;
    request(std::shared_ptr<office> where, std::tuple<int, int, int> box, std::span<std::byte> into)
        : office_(std::move(where)), box_(box), into_(into) {}

    bool test() {
      if (!office_) return true;
      const std::lock_guard lock(office_->mutex);
      return take();
    }
    void wait(ddpp::deadline until) {
      if (!office_) return;
      std::unique_lock lock(office_->mutex);
      while (!take()) {
        if (office_->failed) throw ddpp::group_failed(*office_->failed);
        if (office_->changed.wait_until(lock, until) == std::cv_status::timeout && !take())
          throw ddpp::deadline_passed();
      }
    }

   private:
    bool take() {
      if (!office_) return true;
      auto& box = office_->boxes[box_];
      if (box.empty()) return false;
      if (box.front().size() != into_.size()) {
        office_->failed = {ddpp::failure_kind::mismatch, std::get<0>(box_), "sizes differ"};
        office_->changed.notify_all();
        throw ddpp::group_failed(*office_->failed);
      }
      if (!into_.empty()) std::memcpy(into_.data(), box.front().data(), into_.size());
      box.pop_front();
      office_ = nullptr;
      return true;
    }

    std::shared_ptr<office> office_;
    std::tuple<int, int, int> box_;
    std::span<std::byte> into_;
  };

  mailbox_transport(const ddpp::bootstrap& boot, const options&) : rank_(boot.rank), size_(boot.size) {
    // Ranks of one process hand each other the address of the office.
    if (size_ == 1) {
      office_ = std::make_shared<office>();
    } else if (rank_ == 0) {
      office_ = std::make_shared<office>();
      auto* const shared = new std::shared_ptr<office>(office_);
      boot.store->set("office", std::to_string(reinterpret_cast<std::uintptr_t>(shared)));
      for (int r = 1; r < size_; ++r)
        boot.store->wait({"in." + std::to_string(r)}, ddpp::detail::time_left(boot.deadline));
      delete shared;
    } else {
      boot.store->wait({"office"}, ddpp::detail::time_left(boot.deadline));
      office_ = *reinterpret_cast<std::shared_ptr<office>*>(std::stoull(boot.store->get("office")));
      boot.store->set("in." + std::to_string(rank_), "");
    }
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  request isend(std::span<const std::byte> data, int peer, int tag) {
    {
      const std::lock_guard lock(office_->mutex);
      office_->boxes[{rank_, peer, tag}].emplace_back(data.begin(), data.end());
    }
    office_->changed.notify_all();
    return {};
  }
  request irecv(std::span<std::byte> data, int peer, int tag) { return {office_, {peer, rank_, tag}, data}; }

  void abort(const ddpp::failure& cause) {
    {
      const std::lock_guard lock(office_->mutex);
      if (!office_->failed) office_->failed = cause;
    }
    office_->changed.notify_all();
  }

 private:
  int rank_, size_;
  std::shared_ptr<office> office_;
};

static_assert(ddpp::transport<mailbox_transport>);
static_assert(!ddpp::has_control_plane<mailbox_transport> && !ddpp::has_receive_view<mailbox_transport> &&
              !ddpp::has_background_progress<mailbox_transport>);

}  // namespace support
