// SPDX-License-Identifier: BSL-1.0
// One rank's part in a group over MPI: messages, what failed the group, and where a rank stands.
//
// MPI's communicators keep apart what must not meet: messages of users, of algorithms, of collectives, of
// checks, and word of failures. All calls may come from any thread (MPI_THREAD_MULTIPLE).
//
// MPI cannot take back a message that it has begun to send, so sends leave from copies: a request that is
// destroyed early leaves its copy to the group.
//
// A failure is told to every rank by a message, for which each looks now and then while it waits here. Inside
// a blocking collective of MPI's own it cannot. For a listener a thread looks.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/mpi_runtime.hpp>
#include <ddpp/detail/staging.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp::detail {

/// What one call of MPI's may count.
inline constexpr std::size_t mpi_most = std::size_t{1} << 30;

class mpi_group {
 public:
  /// Collective over the ranks whose numbers in MPI_COMM_WORLD are given. `tag` is the same on all of them.
  mpi_group(int rank, const std::vector<int>& world_ranks, int tag) : rank_(rank) {
    if (world_ranks.size() == 1) {
      require_mpi(MPI_Comm_dup(MPI_COMM_SELF, &data_), "MPI_Comm_dup");
    } else {
      MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
      require_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
      require_mpi(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members),
                  "MPI_Group_incl");
      const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &data_);
      MPI_Group_free(&members);
      MPI_Group_free(&world);
      require_mpi(code, "MPI_Comm_create_group");
    }
    MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
    for (MPI_Comm* const each : {&user_, &library_, &checks_, &news_})
      require_mpi(MPI_Comm_dup(data_, each), "MPI_Comm_dup");
    require_mpi(MPI_Comm_size(data_, &size_), "MPI_Comm_size");
    int* most = nullptr;
    int known = 0;
    MPI_Comm_get_attr(data_, MPI_TAG_UB, static_cast<void*>(&most), &known);
    if (known) most_tag_ = *most;
    listen();
  }
  mpi_group(const mpi_group&) = delete;
  mpi_group& operator=(const mpi_group&) = delete;

  ~mpi_group() {
    if (guard_.in_child()) (void)watch_.release();  // whose thread, and perhaps its mutex, is the parent's
    watch_.reset();
    if (guard_.in_child() || mpi_runtime::has_ended()) {
      keep();
      return;
    }
    if (news_request_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&news_request_);
      MPI_Wait(&news_request_, MPI_STATUS_IGNORE);
    }
    abandoned_.remove_if([](const auto& each) { return each->finished(); });
    if (!abandoned_.empty() || failed()) {  // MPI may read or write what they use
      keep();
      return;
    }
    for (MPI_Comm* const each : {&news_, &checks_, &library_, &user_, &data_}) MPI_Comm_free(each);
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Of MPI's own collectives.
  MPI_Comm data() const noexcept { return data_; }

  /// A message under way, or a check: memory that MPI uses until it is finished.
  class transfer {
   public:
    transfer() = default;
    transfer(const transfer&) = delete;
    transfer& operator=(const transfer&) = delete;

    bool finished() noexcept {
      int done = 1;
      return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE) ==
                 MPI_SUCCESS &&
             done;
    }

    std::vector<MPI_Request> requests = {};
    staging copy = {};
    std::span<std::byte> into = {};  ///< of a receive
    int peer = -1, tag = 0;
  };

  /// Of a message. Destroying an unfinished one withdraws it.
  class request {
   public:
    request(mpi_group& group, std::unique_ptr<transfer> moving)
        : group_(&group), moving_(std::move(moving)) {}
    request(request&&) noexcept = default;
    request& operator=(request&& other) noexcept {
      request dropped(std::move(*this));
      group_ = other.group_;
      moving_ = std::move(other.moving_);
      return *this;
    }
    ~request() {
      if (moving_ && !group_->guard_.in_child()) group_->withdraw(std::move(moving_));
    }

    bool test() {
      if (moving_ && group_->test(*moving_)) moving_.reset();
      return !moving_;
    }
    void wait(deadline until) {
      group_->wait_until([&] { return test(); }, until);
    }

   private:
    mpi_group* group_;
    std::unique_ptr<transfer> moving_;
  };

  request isend(std::span<const std::byte> data, int peer, int tag) {
    check_peer(peer, tag);
    auto moving = std::make_unique<transfer>();
    moving->peer = peer;
    moving->tag = tag;
    if (!failed()) {
      moving->copy = take_buffer(data.size());
      copy_bytes(moving->copy.data(), data.data(), data.size());
      for_each_part(data.size(), [&](std::size_t at, int bytes) {
        check(MPI_Isend(moving->copy.data() + at, bytes, MPI_BYTE, peer, number_of(tag), where(tag),
                        &moving->requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
      });
    }
    return request(*this, std::move(moving));
  }

  request irecv(std::span<std::byte> data, int peer, int tag) {
    check_peer(peer, tag);
    auto moving = std::make_unique<transfer>();
    moving->peer = peer;
    moving->tag = tag;
    moving->into = data;
    if (!failed()) {
      for_each_part(data.size(), [&](std::size_t at, int bytes) {
        check(MPI_Irecv(data.data() + at, bytes, MPI_BYTE, peer, number_of(tag), where(tag),
                        &moving->requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
      });
    }
    return request(*this, std::move(moving));
  }

  void abort(const failure& cause) {
    if (guard_.in_child() || !accept(cause)) return;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) tell(peer, cause);
    }
  }
  /// f is called under the mutex.
  void on_failure(std::function<void(const failure&)> f) {
    if (guard_.in_child()) return;
    const bool listens = static_cast<bool>(f);
    {
      const std::lock_guard lock(mutex_);
      failure_listener_ = std::move(f);
      if (failed() && failure_listener_) failure_listener_(cause_);
    }
    if (!listens)
      watch_.reset();
    else if (!watch_ && size_ > 1)
      watch_ = std::make_unique<news_watch>(*this);
  }
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  failure cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  void set_state(const fingerprint& print, bool inside) {
    const std::lock_guard lock(mutex_);
    here_ = {rank_state::presence::here, inside, print};
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    here_.inside = false;
  }
  /// MPI tells nothing of the others.
  std::vector<rank_state> survey() const {
    std::vector<rank_state> ranks(static_cast<std::size_t>(size_));
    const std::lock_guard lock(mutex_);
    ranks[static_cast<std::size_t>(rank_)] = here_;
    return ranks;
  }

  /// Collective: whether all ranks say the same; fails the group on all of them if not. Throws `group_failed`
  /// or `deadline_passed`.
  void compare(const fingerprint& print, deadline until) {
    if (size_ == 1) return;
    using pair = std::array<std::uint64_t, 2>;
    const std::uint64_t hash = hash_of(print);
    const pair mine{hash, ~hash};
    auto check_of_all = std::make_unique<transfer>();
    check_of_all->copy = take_buffer(2 * sizeof(pair));
    std::memcpy(check_of_all->copy.data(), &mine, sizeof mine);
    check(MPI_Iallreduce(check_of_all->copy.data(), check_of_all->copy.data() + sizeof(pair), 2, MPI_UINT64_T,
                         MPI_MAX, checks_, &check_of_all->requests.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Iallreduce");
    pair most{};
    staging result = finish(std::move(check_of_all), until);
    std::memcpy(&most, result.data() + sizeof(pair), sizeof most);
    give_back(result);
    if (most[0] != ~most[1]) fail_for_difference(print, until);
  }

  /// For calls of MPI's own collectives.
  void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    abort({kind == MPI_ERR_TRUNCATE ? failure_kind::mismatch : failure_kind::revoked, rank_,
           text("rank ", rank_, ": ", call, " failed: ", mpi_error_text(code))});
    throw group_failed(cause());
  }
  void throw_if_failed() {
    look_for_news();
    if (failed()) throw group_failed(cause());
  }

 private:
  struct news {
    std::int32_t kind = 0, rank = -1;
    std::array<char, longest_failure_text + 1> text{};
  };

  static std::uint64_t hash_of(const fingerprint& print) noexcept {
    std::array<std::byte, sizeof(fingerprint)> bytes{};
    std::memcpy(bytes.data(), &print, sizeof print);
    std::uint64_t hash = 14695981039346656037u;
    for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint8_t>(b)) * 1099511628211u;
    return hash;
  }

  MPI_Comm where(int tag) const noexcept { return tag < 0 ? library_ : user_; }
  static int number_of(int tag) noexcept { return tag < 0 ? -(tag + 1) : tag; }

  void check_peer(int peer, int tag) const {
    if (peer < 0 || peer >= size_)
      throw usage_error(text("rank ", rank_, ": there is no rank ", peer, " in a group of ", size_));
    if (guard_.in_child())
      throw usage_error("this transport was made before fork(): only the parent can use it");
    if (number_of(tag) > most_tag_)
      throw usage_error(text("tag ", tag, " is larger than this MPI permits, which is ", most_tag_));
  }

  /// At least one, so that empty messages travel.
  template <class F>
  static void for_each_part(std::size_t bytes, F f) {
    std::size_t at = 0;
    do {
      const std::size_t part = std::min(bytes - at, mpi_most);
      f(at, static_cast<int>(part));
      at += part;
    } while (at < bytes);
  }

  /// Whether it is done. Throws if it never will be.
  bool test(transfer& moving) {
    while (!moving.requests.empty()) {
      int done = 0;
      MPI_Status status;
      const int code = MPI_Test(&moving.requests.front(), &done, &status);
      if (code != MPI_SUCCESS) fail_receive(moving, code);
      if (!done) {
        throw_if_failed();
        return false;
      }
      if (moving.copy.capacity() == 0) check_size(moving, status);
      moving.requests.erase(moving.requests.begin());
    }
    if (failed()) throw group_failed(cause());
    give_back(moving.copy);
    return true;
  }

  void check_size(const transfer& moving, const MPI_Status& status) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const std::size_t left = moving.into.size() % mpi_most, parts = moving.requests.size();
    const std::size_t expected = parts > 1 || (left == 0 && !moving.into.empty()) ? mpi_most : left;
    if (static_cast<std::size_t>(bytes) != expected) fail_for_size(moving, text(bytes, " bytes"));
  }
  [[noreturn]] void fail_receive(const transfer& moving, int code) {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) fail_for_size(moving, "more");
    check(code, "MPI_Test");
    throw group_failed(cause());
  }
  [[noreturn]] void fail_for_size(const transfer& moving, const std::string& sent) {
    abort({failure_kind::mismatch, moving.peer,
           text("rank ", moving.peer, " sent ", sent, ", but rank ", rank_, " receives ", moving.into.size(),
                " bytes there (tag ", moving.tag, ")")});
    throw group_failed(cause());
  }

  void withdraw(std::unique_ptr<transfer> moving) noexcept {
    const bool receives = moving->copy.capacity() == 0;
    for (MPI_Request& each : moving->requests) {
      if (receives && each != MPI_REQUEST_NULL) {
        MPI_Cancel(&each);
        MPI_Wait(&each, MPI_STATUS_IGNORE);
      }
    }
    if (receives || moving->finished()) return give_back(moving->copy);
    abandon(std::move(moving));
  }
  void abandon(std::unique_ptr<transfer> moving) noexcept {
    const std::lock_guard lock(mutex_);
    abandoned_.remove_if([](const auto& each) { return each->finished(); });
    abandoned_.push_back(std::move(moving));
  }

  staging take_buffer(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return buffers_.take(bytes);
  }
  void give_back(staging& buffer) noexcept {
    const std::lock_guard lock(mutex_);
    buffers_.give_back(std::move(buffer));
    buffer = {};
  }

  /// Polls, gives the core away, and sleeps for moments at last.
  template <class Done>
  void wait_until(Done done, deadline until) {
    using namespace std::chrono_literals;
    constexpr int quick = 200;
    for (int tries = 0; tries < quick; ++tries) {
      if (done()) return;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (auto now = begin;; now = std::chrono::steady_clock::now()) {
      if (done()) return;
      if (now >= until) throw deadline_passed();
      if (now - begin < 5ms)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(100us);
    }
  }

  /// The copy of a check that all have taken part in.
  staging finish(std::unique_ptr<transfer> check_of_all, deadline until) {
    try {
      wait_until(
          [&] {
            if (check_of_all->finished()) return true;
            throw_if_failed();
            return false;
          },
          until);
    } catch (...) {
      abandon(std::move(check_of_all));  // MPI cannot take back its part in a collective
      throw;
    }
    return std::move(check_of_all->copy);
  }

  [[noreturn, gnu::cold]] void fail_for_difference(const fingerprint& print, deadline until) {
    auto gather = std::make_unique<transfer>();
    const auto ranks = static_cast<std::size_t>(size_);
    gather->copy = take_buffer((ranks + 1) * sizeof print);
    std::memcpy(gather->copy.data(), &print, sizeof print);
    std::byte* const all = gather->copy.data() + sizeof print;
    check(MPI_Iallgather(gather->copy.data(), static_cast<int>(sizeof print), MPI_BYTE, all,
                         static_cast<int>(sizeof print), MPI_BYTE, checks_,
                         &gather->requests.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Iallgather");
    const staging prints = finish(std::move(gather), until);
    std::vector<rank_state> states(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      states[r] = {rank_state::presence::here, true, {}};
      std::memcpy(&states[r].last, prints.data() + (r + 1) * sizeof print, sizeof print);
    }
    accept(describe_mismatch(states));  // all find the same
    throw group_failed(cause());
  }

  // Word of failures.

  bool accept(const failure& cause) {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return false;
    cause_ = cause;
    failed_.store(true, std::memory_order_release);
    mpi_runtime::instance().expect_no_good_end();
    if (failure_listener_) failure_listener_(cause_);
    return true;
  }

  void tell(int peer, const failure& cause) {
    auto moving = std::make_unique<transfer>();
    moving->copy = take_buffer(sizeof(news));
    news words;
    words.kind = static_cast<std::int32_t>(cause.kind);
    words.rank = cause.rank;
    std::copy_n(cause.text.begin(), std::min(cause.text.size(), longest_failure_text), words.text.begin());
    std::memcpy(moving->copy.data(), &words, sizeof words);
    MPI_Isend(moving->copy.data(), static_cast<int>(sizeof words), MPI_BYTE, peer, 0, news_,
              &moving->requests.emplace_back(MPI_REQUEST_NULL));
    abandon(std::move(moving));
  }

  void listen() {
    if (size_ == 1) return;
    require_mpi(MPI_Irecv(&heard_, static_cast<int>(sizeof heard_), MPI_BYTE, MPI_ANY_SOURCE, 0, news_,
                          &news_request_),
                "MPI_Irecv");
  }

  void look_for_news() {
    const std::unique_lock lock(listening_, std::try_to_lock);
    if (!lock || news_request_ == MPI_REQUEST_NULL) return;
    int heard = 0;
    if (MPI_Test(&news_request_, &heard, MPI_STATUS_IGNORE) != MPI_SUCCESS || !heard) return;
    accept({static_cast<failure_kind>(heard_.kind), heard_.rank, heard_.text.data()});
  }

  /// Looks for word of a failure while this rank waits for something else than this group's messages.
  class news_watch {
   public:
    explicit news_watch(mpi_group& group) : thread_([this, &group] { look(group); }) {}
    ~news_watch() {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      end_.notify_one();
    }

   private:
    void look(mpi_group& group) {
      std::unique_lock lock(mutex_);
      while (!ended_ && !group.failed() && !mpi_runtime::has_ended()) {
        group.look_for_news();
        end_.wait_for(lock, std::chrono::milliseconds(10));
      }
    }

    std::mutex mutex_;
    std::condition_variable end_;
    bool ended_ = false;
    joining_thread thread_;  // the last, so that it ends first
  };

  struct kept {
    std::list<std::unique_ptr<transfer>> transfers;
    std::unique_ptr<kept> before;
  };
  void keep() noexcept {
    static std::atomic<kept*> last{nullptr};  // reachable, so not a leak
    auto* const mine = new kept{std::move(abandoned_), nullptr};
    mine->before.reset(last.exchange(mine));
  }

  const fork_guard guard_;
  const int rank_;
  int size_ = 1, most_tag_ = std::numeric_limits<std::int16_t>::max();
  MPI_Comm data_ = MPI_COMM_NULL, user_ = MPI_COMM_NULL, library_ = MPI_COMM_NULL, checks_ = MPI_COMM_NULL,
           news_ = MPI_COMM_NULL;

  std::mutex listening_;  // guards the next two
  MPI_Request news_request_ = MPI_REQUEST_NULL;
  news heard_ = {};

  mutable std::mutex mutex_;  // guards all below that is not atomic
  staging_pool buffers_;
  std::list<std::unique_ptr<transfer>> abandoned_;
  rank_state here_ = {rank_state::presence::here, false, {}};
  failure cause_;
  std::function<void(const failure&)> failure_listener_;
  std::atomic<bool> failed_{false};

  std::unique_ptr<news_watch> watch_;
};

}  // namespace ddpp::detail
