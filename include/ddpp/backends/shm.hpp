// SPDX-License-Identifier: BSL-1.0
// Ranks that are processes of one host and talk through shared memory.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/fabric_arrival.hpp>
#include <ddpp/detail/fabric_memory.hpp>
#include <ddpp/detail/memory_transport.hpp>
#include <ddpp/detail/named_file.hpp>
#include <ddpp/detail/probe.hpp>
#include <ddpp/detail/shared_file.hpp>
#include <ddpp/detail/shared_segment.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/store.hpp>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace ddpp {

namespace detail {

// Rank 0 makes an anonymous segment and publishes where it is. A rank that cannot reach it says so; then rank
// 0 makes one with a name, and all who have come to the first move over. If rank 0 is killed meanwhile, those
// who wait for it in vain see to it that the name goes.
class segment_meeting {
 public:
  explicit segment_meeting(const bootstrap& boot) : boot_(boot) {}

  std::unique_ptr<fabric_memory> join() {
    try {
      return boot_.rank == 0 ? lead() : follow();
    } catch (const std::exception& e) {
      if (boot_.rank == 0) tell_latecomers(e.what());
      remove_abandoned_files();
      throw;
    }
  }

 private:
  static constexpr const char* first_key = "shm/segment";
  static constexpr const char* named_key = "shm/named";
  static constexpr const char* unreachable_key = "shm/unreachable";
  static constexpr const char* gone_key = "shm/gone";

  [[gnu::cold]] std::unique_ptr<fabric_memory> lead() {
    auto segment = publish(first_key, file_kind::anonymous);
    std::atomic<std::uint32_t>& moved = segment->header().moved;
    if (!meet(*segment, [&] {
          if (boot_.store->check({unreachable_key})) moved.store(1, std::memory_order_seq_cst);
        })) {
      segment = publish(named_key, file_kind::named);
      meet(*segment, [] {});
    }
    segment->close_doors();
    if (boot_.size > 1) forget_keys(boot_, {first_key, named_key, unreachable_key});
    return segment;
  }

  /// Whoever has not found the segment yet will not: it goes with rank 0.
  [[gnu::cold]] void tell_latecomers(const char* why) noexcept {
    try {
      if (boot_.size > 1) boot_.store->set(gone_key, why);
    } catch (const std::exception&) {  // the store has gone, too
    }
  }

  [[gnu::cold]] std::unique_ptr<fabric_memory> follow() {
    auto segment = open(first_key);
    if (segment == nullptr) {
      boot_.store->set(unreachable_key, text(boot_.rank));
    } else if (meet(*segment, [] {})) {
      return segment;
    }
    segment = open(named_key);
    if (segment == nullptr) {
      const int code = errno;
      refuse(boot_, text("cannot open rank 0's shared memory (", system_text(code), "): ",
                         code == EACCES
                             ? "the ranks run as different users. Run them as one, or use the backend `tcp`"
                             : "the ranks share a host but neither processes nor /dev/shm. Use the backend "
                               "`tcp`"));
    }
    meet(*segment, [] {});
    return segment;
  }

  bool meet(shared_segment& segment, const std::function<void()>& meanwhile) {
    or_tell([&] { segment.show_life(boot_.rank); });
    return come_together(segment, boot_, meanwhile);
  }

  [[gnu::cold]] std::unique_ptr<shared_segment> publish(const char* key, file_kind kind) {
    try {
      auto segment = shared_segment::create(kind, boot_.size);
      if (boot_.size > 1) boot_.store->set(key, segment->address().text());
      DDPP_PROBE(segment_published);
      return segment;
    } catch (const resource_error& error) {
      const std::string why = text("rank 0: ", error.what());
      if (boot_.size > 1) boot_.store->set(key, failed + why);
      throw resource_error(why);
    }
  }

  // Null if it is out of reach. Throws what keeps it from existing.
  [[gnu::cold]] std::unique_ptr<shared_segment> open(const char* key) {
    const std::string word = first_word(key);
    if (word.starts_with(failed)) throw resource_error(word.substr(std::string_view(failed).size()));
    std::unique_ptr<shared_segment> segment;
    or_tell([&] { segment = open_at(shared_file_address::parse(word)); });
    return segment;
  }

  /// Waits for it, but not if rank 0 or another has given up. (Where a process that has ended is still to be
  /// seen, its descriptors look like another user's, so that one waits for a name that nobody will give.)
  std::string first_word(const char* key) const {
    bootstrap boot = boot_;
    boot.check_peers = [this] {
      if (const std::string why = reason_given(); !why.empty())
        throw init_error(text("rank ", boot_.rank, ": the group did not come together: ", why));
      boot_.check_peers();
    };
    return first_word_of_rank_0(boot, key);
  }

  std::unique_ptr<shared_segment> open_at(const shared_file_address& there) {
    const shared_file_address here = shared_file_address::here();
    if (there.host != here.host) {
      refuse(boot_,
             "this rank is on another host than rank 0. The backend `shm` joins processes of one host; use "
             "`tcp`");
    }
    auto segment = shared_segment::open(boot_.size, there);
    if (segment == nullptr && errno == ENOENT && there.processes == here.processes) {
      const std::string why = reason_given();
      throw init_error(text("rank ", boot_.rank, ": rank 0 died or gave up while the group came together",
                            why.empty() ? "" : ": ", why));
    }
    return segment;
  }

  /// Why there will be no group, if a rank has said so.
  std::string reason_given() const {
    for (const char* const key : {refused_key, gone_key}) {
      if (boot_.store->check({key})) return boot_.store->get(key);
    }
    return {};
  }

  /// What this rank lacks keeps the others from having a group.
  template <class F>
  void or_tell(F f) {
    try {
      f();
    } catch (const resource_error& error) {
      throw resource_error(boot_.size > 1 ? tell_refusal(boot_, error.what()) : error.what());
    }
  }

  static constexpr const char* failed = "failed: ";

  const bootstrap& boot_;
};

}  // namespace detail

class shm : public detail::memory_transport {
 public:
  struct options {};

  static constexpr std::string_view name = "shm";
  static constexpr memory_space memory = memory_space::host;
  static constexpr launch_kind launch = launch_kind::processes;
  static constexpr std::size_t preferred_segment = detail::fabric_chunk_bytes;

  /// Collective over all ranks of `boot`, which are processes (or threads) of this host. Blocks until all
  /// have come, until boot.deadline at most: `timeout_error` names who is missing. Throws `init_error` where
  /// a rank is on another host or has died, `resource_error` with the bytes needed and available where there
  /// is too little memory.
  shm(const bootstrap& boot, const options&)
      : memory_transport(detail::segment_meeting(boot).join(), boot.rank, boot.timeout) {}
};

static_assert(transport<shm>);
static_assert(has_control_plane<shm>);
static_assert(has_agreement<shm>);
static_assert(has_receive_view<shm>);
static_assert(has_shared_slots<shm>);
static_assert(has_symmetric_memory<shm>);
static_assert(has_background_progress<shm>);
static_assert(has_failure_listener<shm>);
static_assert(!has_barrier<shm>);
static_assert(!has_broadcast<shm, float>);
static_assert(!has_all_gather<shm, float>);

}  // namespace ddpp
