// SPDX-License-Identifier: BSL-1.0
// Ranks that are threads of one process. The same code as `shm`, over ordinary memory.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/fabric_arrival.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/mapping.hpp>
#include <ddpp/detail/memory_transport.hpp>
#include <ddpp/detail/symmetric_window.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace ddpp {

namespace detail {

/// What the ranks of this process share, by name, for as long as one of them has it.
template <class T>
class process_wide {
 public:
  static process_wide& instance() {
    static process_wide* const only = new process_wide;  // never destroyed: used until the process ends
    return *only;
  }

  void add(const std::string& name, const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [](const auto& entry) { return entry.second.expired(); });
    objects_[name] = object;
  }
  std::shared_ptr<T> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    return at == objects_.end() ? nullptr : at->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<T>> objects_;
};

/// A rank's hold on memory of this process.
class thread_memory final : public fabric_memory {
 public:
  /// Zeroed memory, made into a block by rank 0.
  thread_memory(int ranks, const block_name& name) : fabric_memory(ranks) {
    mapping_ = std::make_shared<mapping>(mapping::of_this_process(layout().total_bytes()));
    set_base(mapping_->data());
    initialise(name, staging_bytes_for(ranks, std::numeric_limits<std::size_t>::max()));
  }
  /// The same block for another rank.
  thread_memory(int ranks, std::shared_ptr<mapping> block)
      : fabric_memory(ranks), mapping_(std::move(block)) {
    set_base(mapping_->data());
  }

  const std::shared_ptr<mapping>& block() const noexcept { return mapping_; }

  void reserve(std::size_t, std::size_t) override {}
  bool exists(int) const override { return true; }

  window_offer offer_window(std::size_t bytes) override {
    const block_name name = random_block_name();
    auto window = std::make_shared<symmetric_window>(
        mapping::of_this_process(symmetric_window::total(bytes, ranks())), bytes);
    std::string address(name.begin(), name.end());
    process_wide<symmetric_window>::instance().add(address, window);
    return {std::move(address), window, window};
  }
  std::shared_ptr<symmetric_window> accept_window(const std::string& address, int, std::size_t) override {
    auto window = process_wide<symmetric_window>::instance().find(address);
    if (window == nullptr) throw resource_error("rank 0 has given up the memory that it offered");
    return window;
  }

 private:
  std::shared_ptr<mapping> mapping_;
};

inline std::unique_ptr<fabric_memory> join_threads(const bootstrap& boot) {
  static constexpr const char* key = "threads/block";
  const std::string process = std::to_string(::getpid());
  std::unique_ptr<thread_memory> memory;
  if (boot.rank == 0) {
    const block_name name = random_block_name();
    memory = std::make_unique<thread_memory>(boot.size, name);
    if (boot.size > 1) {
      const std::string id(name.begin(), name.end());
      process_wide<mapping>::instance().add(id, memory->block());
      boot.store->set(key, process + " " + id);
    }
  } else {
    const std::string found = first_word_of_rank_0(boot, key);
    const std::size_t space = found.find(' ');
    if (found.substr(0, space) != process) {
      refuse(boot,
             "this is process " + process + ", but rank 0 is in process " + found.substr(0, space) +
                 ". The backend `threads` joins threads of one process; for several processes use `shm`");
    }
    std::shared_ptr<mapping> block = process_wide<mapping>::instance().find(found.substr(space + 1));
    if (block == nullptr) {
      throw init_error("rank " + std::to_string(boot.rank) + ": rank 0 has given up before this rank came");
    }
    memory = std::make_unique<thread_memory>(boot.size, std::move(block));
  }
  come_together(*memory, boot, [] {});
  return memory;
}

}  // namespace detail

class threads : public detail::memory_transport {
 public:
  struct options {};

  static constexpr std::string_view name = "threads";
  static constexpr memory_space memory = memory_space::host;
  static constexpr launch_kind launch = launch_kind::threads;
  static constexpr std::size_t preferred_segment = detail::fabric_chunk_bytes;

  /// Collective over all ranks of `boot`, which are threads of this process. Blocks until all have come,
  /// until boot.deadline at most: `timeout_error` names who is missing. Throws `init_error` where a rank is
  /// elsewhere.
  threads(const bootstrap& boot, const options&)
      : memory_transport(detail::join_threads(boot), boot.rank, boot.timeout) {}
};

static_assert(transport<threads>);
static_assert(has_control_plane<threads>);
static_assert(has_agreement<threads>);
static_assert(has_receive_view<threads>);
static_assert(has_shared_slots<threads>);
static_assert(has_symmetric_memory<threads>);
static_assert(has_background_progress<threads>);
static_assert(has_failure_listener<threads>);
static_assert(!has_barrier<threads>);
static_assert(!has_broadcast<threads, float>);
static_assert(!has_all_gather<threads, float>);

}  // namespace ddpp
