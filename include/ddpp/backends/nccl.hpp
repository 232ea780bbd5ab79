// SPDX-License-Identifier: BSL-1.0
// Ranks with a CUDA device each: NCCL moves the data, in device memory, on a stream. See docs/nccl.md and
// docs/decisions/0016-nccl-beside-a-control-plane.md.
#pragma once

#include <ddpp/agreement.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/concepts.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/exception_text.hpp>
#include <ddpp/detail/exchange.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/nccl_device.hpp>
#include <ddpp/detail/nccl_handle.hpp>
#include <ddpp/detail/nccl_kernels.hpp>
#include <ddpp/detail/nccl_streams.hpp>
#include <ddpp/detail/nccl_types.hpp>
#include <ddpp/detail/nccl_windows.hpp>
#include <ddpp/detail/partition.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/device_span.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace ddpp {

/// Whether a blocking call, and `work::wait`, waits on the host for the result.
enum class nccl_error_mode : std::uint8_t {
  async_abort,   ///< no: it orders the caller's stream; what fails later is thrown by the next call
  blocking_wait  ///< yes, and throws what went wrong
};

/// Which collectives are compared between the ranks before they are issued. NCCL carries no fingerprints, so
/// a comparison makes each rank wait for the others on the host: log2 n messages over the control plane.
enum class nccl_checks : std::uint8_t {
  off,
  sampled,  ///< the first 32, and one in 32 from there on
  always
};

class nccl {
 public:
  struct options {
    cudaStream_t stream =
        nullptr;                 ///< the caller's, of this rank's device; operations come after what it holds
    bool high_priority = false;  ///< of the internal stream
    nccl_error_mode error_mode = nccl_error_mode::async_abort;
    nccl_checks checks = nccl_checks::sampled;
    int device = -1;  ///< this rank's; -1: by its number among the ranks of this host
  };

  static constexpr std::string_view name = "nccl";
  static constexpr memory_space memory = memory_space::device;
  static constexpr launch_kind launch = launch_kind::threads;

  /// Collective over all ranks of `boot`, which meet over TCP first, as `tcp`'s do. Makes the rank's device
  /// the calling thread's current one. Blocks until all have come, until boot.deadline at most. Throws
  /// `init_error` on all ranks if one has no device, or two have the same.
  nccl(const bootstrap& boot, const options& settings)
      : options_(settings), timeout_(boot.timeout), control_(std::in_place, boot, tcp::options{}) {
    bool is_ready = false;
    try {
      options_.device = detail::choose_device(*control_, settings.device, boot.deadline);
      streams_ = std::make_unique<detail::stream_pair>(settings.stream, settings.high_priority);
      begin(boot);
      is_ready = true;
      static_cast<void>(detail::gather_over_control(*control_, std::byte{}, boot.deadline));
    } catch (const deadline_passed&) {
      give_up("the ranks did not come together in time");
      throw timeout_error("nccl: the ranks did not come together in time");
    } catch (const group_failed& failed) {
      // Once this rank is ready the others may be so too, and have failed or left since: the first call says
      // so.
      if (!is_ready) throw init_error(detail::text("nccl: ", failed.cause().text));
    } catch (const resource_error& error) {
      give_up(error.what());
      throw init_error(detail::text("nccl: rank ", rank(), ": ", error.what()));
    }
    watch_ = std::make_unique<detail::joining_thread>([this] { watch(); });
    control_->on_failure([this](const failure&) { wake_watch(); });
    wake_watch();
  }
  nccl(const nccl&) = delete;
  nccl& operator=(const nccl&) = delete;

  /// Waits until what this rank has issued is done, until the timeout at most; and, as NCCL does, for the
  /// ranks of this host to end theirs. Graphs that have captured its operations must be gone before.
  ~nccl() {
    await_last();
    control_->on_failure({});
    {
      const std::lock_guard lock(watch_mutex_);
      stopping_ = true;
    }
    woken_.notify_all();
    watch_.reset();
    try {
      const detail::current_device mine(options_.device);
      if (!unreached_.empty() && !failed()) give_up_pending();
      if (failed()) cut_short();
      windows_->deregister_all();  // none where NCCL's communicator has been ended
      control_.reset();            // the others hear of it before NCCL waits for them
      handle_.end(detail::deadline_after(timeout_));
    } catch (const std::exception&) {
      detail::nccl_handle::abort(handle_.release());
      windows_->deregister_all();
    }
  }

  int rank() const noexcept { return control_->rank(); }
  int size() const noexcept { return control_->size(); }
  cudaStream_t stream() const noexcept { return streams_->callers(); }
  cudaStream_t internal_stream() const noexcept { return streams_->internal(); }
  /// With the device that was chosen.
  const options& options_in_use() const noexcept { return options_; }

  // Messages in host memory, over the control plane: what the library says between ranks.

  auto isend(std::span<const std::byte> data, int peer, int tag) { return control_->isend(data, peer, tag); }
  auto irecv(std::span<std::byte> data, int peer, int tag) { return control_->irecv(data, peer, tag); }
  void abort(const failure& cause) { control_->abort(cause); }

  void enter(const fingerprint& print) {
    control_->enter(print);
    if (print.step != 0 || print.sequence == compared_) return;
    compared_ = print.sequence;
    if (print.op == collective::barrier) return;  // its own messages compare
    const bool is_sample = print.sequence <= sample || print.sequence % sample == 0;
    compares_ =
        options_.checks == nccl_checks::always || (options_.checks == nccl_checks::sampled && is_sample);
    if (compares_) compare_with_others();
  }
  void leave() { control_->leave(); }
  bool failed() const noexcept { return control_->failed(); }
  failure cause() const { return control_->cause(); }
  std::vector<rank_state> survey(deadline until) { return control_->survey(until); }
  verdict agree(std::uint64_t number, const ballot& mine, deadline until) {
    return control_->agree(number, mine, until);
  }

  // The order of streams; see has_stream_order.

  using mark = std::shared_ptr<detail::stream_mark>;

  class operation {
   public:
    explicit operation(nccl& owner) : lock_(owner.issuing_), device_(owner.options_.device) {
      owner.throw_if_failed();
      owner.issue_messages();
      owner.streams_->follow_caller();
    }

   private:
    std::unique_lock<std::recursive_mutex> lock_;
    detail::current_device device_;
  };

  operation begin_operation() {
    await_room();
    return operation(*this);
  }
  mark end_operation(const fingerprint& print, deadline until) {
    const mark here = streams_->new_mark();
    reach(here, print, until);
    return here;
  }
  void order_caller(const mark& after) {
    const std::lock_guard lock(issuing_);
    const detail::current_device mine(options_.device);
    if (after->is_recorded()) streams_->lead_caller(*after);  // else the group's end does it
  }
  bool is_reached(const mark& place) {
    const std::lock_guard lock(issuing_);
    return place->is_reached();
  }
  /// False if `until` passed before.
  bool await(const mark& place, deadline until) {
    try {
      while (!is_over(place)) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    } catch (const group_failed&) {
      await_end_of_work();
      throw;
    }
    return true;
  }
  /// So that the buffers of what has failed are the caller's again. Not for ever, as an abort of NCCL's may
  /// wait for other ranks.
  void await_end_of_work() const {
    const deadline until = std::chrono::steady_clock::now() + time_to_end;
    while (!has_ended_ && std::chrono::steady_clock::now() < std::min(until, should_end_by_.load()))
      std::this_thread::sleep_for(pause);
  }
  bool waits_on_host() const noexcept { return options_.error_mode == nccl_error_mode::blocking_wait; }

  /// Refuses what the device cannot reach, before NCCL would fault on it.
  void check_memory(const void* data, const char* operation_name) const {
    if (data == nullptr) return;
    cudaPointerAttributes attributes{};
    detail::check_cuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != options_.device) {
      throw usage_error(detail::text(operation_name, ": the buffer is device ", attributes.device,
                                     "'s, and this rank works on device ", options_.device,
                                     "; allocate it there (cudaSetDevice)"));
    }
    if (attributes.type != cudaMemoryTypeUnregistered || reaches_host_memory_) return;
    throw usage_error(
        detail::text(operation_name, ": the buffer is in memory that device ", options_.device,
                     " cannot reach; pass device memory, a ddpp::device_span or allocate_symmetric's"));
  }

  // NCCL's collectives, on the internal stream.

  template <class T, class Op>
  requires detail::nccl_reduces<T, Op>
  void all_reduce(std::span<T> data, const Op& op, deadline until) {
    all_reduce(std::span<const T>(data), data, op, until);
  }
  template <class T, class Op>
  requires detail::nccl_reduces<T, Op>
  void all_reduce(std::span<const T> in, std::span<T> out, const Op& op, deadline until) {
    const detail::nccl_operation<T, Op> reduction(op, handle_.get());
    complete(ncclAllReduce(in.data(), out.data(), in.size(), detail::nccl_type<T>(), reduction.get(),
                           handle_.get(), streams_->internal()),
             "ncclAllReduce", until);
  }

  /// `out` is looked at on the root alone.
  template <class T, class Op>
  requires detail::nccl_reduces<T, Op>
  void reduce(std::span<const T> in, std::span<T> out, const Op& op, int root, deadline until) {
    const detail::nccl_operation<T, Op> reduction(op, handle_.get());
    complete(ncclReduce(in.data(), out.data(), in.size(), detail::nccl_type<T>(), reduction.get(), root,
                        handle_.get(), streams_->internal()),
             "ncclReduce", until);
  }

  template <class T, class Op>
  requires detail::nccl_reduces<T, Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, const Op& op, deadline until) {
    const detail::nccl_operation<T, Op> reduction(op, handle_.get());
    complete(ncclReduceScatter(in.data(), out.data(), out.size(), detail::nccl_type<T>(), reduction.get(),
                               handle_.get(), streams_->internal()),
             "ncclReduceScatter", until);
  }

  /// One reduction per block, to its rank, in one group.
  template <class T, class Op>
  requires detail::nccl_reduces<T, Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, const Op& op, const detail::partition& blocks,
                      deadline until) {
    const detail::nccl_operation<T, Op> reduction(op, handle_.get());
    grouped(until, [&] {
      for (int r = 0; r < size(); ++r) {
        T* const to = r == rank() ? out.data() : nullptr;
        issued(ncclReduce(in.data() + blocks.offset(r), to, blocks.size(r), detail::nccl_type<T>(),
                          reduction.get(), r, handle_.get(), streams_->internal()),
               "ncclReduce");
      }
    });
  }

  template <class T>
  void broadcast(std::span<T> data, int root, deadline until) {
    complete(ncclBroadcast(data.data(), data.data(), data.size_bytes(), ncclInt8, root, handle_.get(),
                           streams_->internal()),
             "ncclBroadcast", until);
  }

  template <class T>
  void all_gather(std::span<const T> in, std::span<T> out, deadline until) {
    complete(
        ncclAllGather(in.data(), out.data(), in.size_bytes(), ncclInt8, handle_.get(), streams_->internal()),
        "ncclAllGather", until);
  }

  /// One broadcast per block, from its rank, in one group. Blocks are of bytes.
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const detail::partition& blocks,
                  deadline until) {
    grouped(until, [&] {
      for (int r = 0; r < size(); ++r) {
        std::byte* const to = out.data() + blocks.offset(r);
        issued(ncclBroadcast(r == rank() ? in.data() : to, to, blocks.size(r), ncclInt8, r, handle_.get(),
                             streams_->internal()),
               "ncclBroadcast");
      }
    });
  }

  /// Block r of `in` goes to rank r; block r of `out` comes from it. Blocks are of bytes; empty ones do not
  /// travel.
  void all_to_all(std::span<const std::byte> in, const detail::partition& sent, std::span<std::byte> out,
                  const detail::partition& received, deadline until) {
    if (compares_) compare_sizes(sent, received, until);
    grouped(until, [&] {
      for (int r = 0; r < size(); ++r) {
        send_in_group(in.data() + sent.offset(r), sent.size(r), r);
        receive_in_group(out.data() + received.offset(r), received.size(r), r);
      }
    });
  }

  void gather(std::span<const std::byte> in, std::span<std::byte> out, const detail::partition& blocks,
              int root, deadline until) {
    grouped(until, [&] {
      send_in_group(in.data(), in.size(), root);
      for (int r = 0; r < size() && rank() == root; ++r)
        receive_in_group(out.data() + blocks.offset(r), blocks.size(r), r);
    });
  }

  void scatter(std::span<const std::byte> in, std::span<std::byte> out, const detail::partition& blocks,
               int root, deadline until) {
    grouped(until, [&] {
      for (int r = 0; r < size() && rank() == root; ++r)
        send_in_group(in.data() + blocks.offset(r), blocks.size(r), r);
      receive_in_group(out.data(), out.size(), root);
    });
  }

  void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    detail::check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, streams_->internal()),
        "cudaMemcpyAsync");
  }

  // Device memory, for the training layer. On any stream of this device, and from any thread.

  void copy(std::span<const std::byte> from, std::span<std::byte> to, cudaStream_t stream) {
    if (from.empty()) return;
    const detail::current_device mine(options_.device);
    detail::check_cuda(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, stream),
                       "cudaMemcpyAsync");
  }
  void clear(std::span<std::byte> where, cudaStream_t stream) {
    if (where.empty()) return;
    const detail::current_device mine(options_.device);
    detail::check_cuda(cudaMemsetAsync(where.data(), 0, where.size(), stream), "cudaMemsetAsync");
  }
  /// Blocks until the caller's stream is done with what is on it.
  void await_caller() {
    const detail::current_device mine(options_.device);
    detail::check_cuda(cudaStreamSynchronize(streams_->callers()), "cudaStreamSynchronize");
  }
  /// Not collective; uninitialised. Freeing it waits for this process's devices.
  std::shared_ptr<std::byte[]> allocate(std::size_t bytes) {
    const detail::current_device mine(options_.device);
    void* allocated = nullptr;
    detail::check_cuda(cudaMalloc(&allocated, bytes), "cudaMalloc");
    return {static_cast<std::byte*>(allocated), [](std::byte* freed) { static_cast<void>(cudaFree(freed)); }};
  }

  // Messages in device memory. They are collected, and issued as one group by the first wait, or by the next
  // collective: opposite ones on a stream would wait for each other if each were issued alone.

  class device_request {
   public:
    device_request(nccl& owner, mark end) : owner_(&owner), end_(std::move(end)) {}

    bool test() {
      owner_->issue();
      owner_->throw_if_failed();
      return owner_->is_reached(end_);
    }
    /// Orders the caller's stream after it; blocks only where options.error_mode says so.
    void wait(deadline until) {
      owner_->issue();
      owner_->throw_if_failed();
      if (owner_->waits_on_host()) return host_wait(until);
      owner_->order_caller(end_);
    }
    void host_wait(deadline until) {
      owner_->issue();
      if (end_->is_recorded() && !owner_->await(end_, until)) throw deadline_passed();
      owner_->order_caller(end_);
    }

   private:
    nccl* owner_;
    mark end_;
  };

  device_request isend_device(std::span<const std::byte> data, int peer) {
    return collect({.from = data.data(), .to = nullptr, .bytes = data.size(), .peer = peer});
  }
  device_request irecv_device(std::span<std::byte> data, int peer) {
    return collect({.from = nullptr, .to = data.data(), .bytes = data.size(), .peer = peer});
  }

  /// Issues what f issues as one group of NCCL's.
  template <class F>
  void group(F&& f) {
    mark last;
    await_room();
    {
      const operation here(*this);
      grouped(detail::deadline_after(timeout_), [&] {
        std::forward<F>(f)();
        issue_messages();
      });
      if (depth_ > 0) return;
      for (const unreached& each : std::exchange(deferred_, {})) {
        reach(each.place, each.print, each.until);
        streams_->lead_caller(*each.place);
        last = each.place;
      }
    }
    if (last && waits_on_host() && !await(last, detail::deadline_after(timeout_))) throw deadline_passed();
  }

  /// Collective: `bytes` bytes of device memory, zero, registered as a window where NCCL has windows. Blocks.
  /// Freed when the last reference goes, which waits for the device. Throws `resource_error` on all ranks
  /// where one of them cannot have it.
  std::shared_ptr<std::byte> allocate_symmetric(std::size_t bytes, deadline until) {
    void* allocated = nullptr;
    detail::short_text<256> trouble;
    const ncclResult_t result = detail::allocate_for_nccl(&allocated, bytes);
    if (result != ncclSuccess)
      trouble.set(detail::text(bytes, " bytes: ", detail::nccl_error_text(result, "ncclMemAlloc", nullptr)));
    std::shared_ptr<std::byte> part(static_cast<std::byte*>(allocated),
                                    [windows = windows_, device = options_.device](std::byte* freed) {
                                      if (freed != nullptr) windows->free(freed, device);
                                    });
    const auto all = detail::gather_over_control(*control_, trouble, until);
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!all[r].empty()) throw resource_error(detail::text("rank ", r, ": ", all[r].str()));
    }
    const mark zeroed = streams_->new_mark();  // other streams than the caller's do not wait for it
    try {
      detail::check_cuda(cudaMemsetAsync(allocated, 0, bytes, streams_->internal()), "cudaMemsetAsync");
      zeroed->record(streams_->internal(), false);
    } catch (const resource_error& error) {
      fail(error.what());
    }
    if (!await(zeroed, until)) throw deadline_passed();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    windows_->add(handle_, allocated, [&](ncclWindow_t* window) {
      complete(ncclCommWindowRegister(handle_.get(), allocated, bytes, window, NCCL_WIN_COLL_SYMMETRIC),
               "ncclCommWindowRegister", until);
    });
#endif
    return part;
  }

 private:
  struct collected {
    const void* from;
    void* to;
    std::size_t bytes;
    int peer;
  };
  /// What the watch waits for. Without an operation in its print it is a group of messages.
  struct unreached {
    mark place;
    fingerprint print;
    deadline until;
  };

  /// NCCL's own type has no name, at which nvcc 13.0 fails in a vector of them.
  struct named_id {
    ncclUniqueId id = {};
  };

  void begin(const bootstrap& boot) {
    named_id mine;
    if (rank() == 0) detail::check_nccl(ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
    const ncclUniqueId id = detail::gather_over_control(*control_, mine, boot.deadline).front().id;
    handle_.begin(rank(), size(), id, boot.deadline, [&] {
      throw_if_failed();
      boot.check_peers();
    });
    int pageable = 0;
    detail::check_cuda(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, options_.device),
                       "cudaDeviceGetAttribute");
    reaches_host_memory_ = pageable != 0;
  }

  void give_up(const std::string& why) {
    control_->abort(
        {failure_kind::revoked, rank(), detail::text("rank ", rank(), " could not set up NCCL: ", why)});
  }

  void give_up_pending() {
    control_->abort({failure_kind::timeout, rank(),
                     detail::text("rank ", rank(), " left with operations that did not finish within ",
                                  detail::text_of(timeout_))});
  }

  void throw_if_failed() const {
    if (control_->failed()) throw group_failed(control_->cause());
  }

  /// What NCCL refuses fails the group: the others have issued it, and would wait.
  [[noreturn]] void fail(const std::string& why) {
    control_->abort({failure_kind::revoked, rank(), detail::text("rank ", rank(), ": ", why)});
    throw group_failed(control_->cause());
  }

  void complete(ncclResult_t result, const char* call, deadline until) {
    if (depth_ > 0 && (result == ncclSuccess || result == ncclInProgress)) return;  // for the group's end
    try {
      handle_.complete(result, call, until, [this] { throw_if_failed(); });
    } catch (const resource_error& error) {
      give_control_plane_time();  // it knows who was lost; NCCL does not
      throw_if_failed();
      fail(error.what());
    }
  }

  /// Inside a group.
  void issued(ncclResult_t result, const char* call) { complete(result, call, {}); }

  /// What f throws fails the group: some of it may have been issued, for which others wait.
  template <class F>
  void grouped(deadline until, F&& f) {
    complete(ncclGroupStart(), "ncclGroupStart", until);
    ++depth_;
    std::exception_ptr error;
    try {
      f();
    } catch (...) {
      error = std::current_exception();
      deferred_.clear();
      control_->abort({failure_kind::revoked, rank(),
                       detail::text("rank ", rank(),
                                    " threw in a group of operations: ", detail::current_exception_text())});
    }
    --depth_;
    const ncclResult_t result = ncclGroupEnd();
    if (error) std::rethrow_exception(error);
    complete(result, "ncclGroupEnd", until);
  }
  void send_in_group(const void* data, std::size_t bytes, int peer) {
    if (bytes == 0) return;
    issued(ncclSend(data, bytes, ncclInt8, peer, handle_.get(), streams_->internal()), "ncclSend");
  }
  void receive_in_group(void* data, std::size_t bytes, int peer) {
    if (bytes == 0) return;
    issued(ncclRecv(data, bytes, ncclInt8, peer, handle_.get(), streams_->internal()), "ncclRecv");
  }

  // Messages.

  device_request collect(const collected& message) {
    const std::lock_guard lock(issuing_);
    const detail::current_device mine(options_.device);
    if (collected_.empty()) collected_end_ = streams_->new_mark();
    collected_.push_back(message);
    return {*this, collected_end_};
  }
  void issue() {
    {
      const std::lock_guard lock(issuing_);
      if (collected_.empty()) return;
    }
    await_room();
    const operation now(*this);
  }
  void issue_messages() {
    if (collected_.empty()) return;
    const auto messages = std::exchange(collected_, {});
    const mark end = std::exchange(collected_end_, nullptr);
    const deadline until = detail::deadline_after(timeout_);
    streams_->follow_caller();
    grouped(until, [&] {
      for (const collected& each : messages) {
        if (each.from != nullptr)
          send_in_group(each.from, each.bytes, each.peer);
        else
          receive_in_group(each.to, each.bytes, each.peer);
      }
    });
    reach(end, {}, until);
  }

  /// Inside a group a wait has nothing to wait for yet.
  bool is_over(const mark& place) {
    const std::lock_guard lock(issuing_);
    if (control_->failed()) note_what_is_reached();
    if (is_cut_short_ && !place->found_reached()) throw group_failed(control_->cause());
    return place->is_reached() || (!place->is_recorded() && depth_ > 0);
  }

  /// A stream holds so many operations and no more: who runs ahead of its device would block in CUDA, where
  /// no failure reaches it.
  void await_room() {
    for (;;) {
      throw_if_failed();
      {
        const std::lock_guard lock(watch_mutex_);
        if (unreached_.size() >= most_ahead) forget_reached();
        if (unreached_.size() < most_ahead) return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// Puts the mark on the internal stream: now, or when the group ends.
  void reach(const mark& place, const fingerprint& print, deadline until) {
    if (depth_ > 0) {
      deferred_.push_back({place, print, until});
      return;
    }
    place->record(streams_->internal(), streams_->is_capturing());
    if (place->is_captured()) return;
    {
      const std::lock_guard lock(watch_mutex_);
      unreached_.push_back({place, print, until});
    }
    woken_.notify_all();
  }

  // Each rank hears, by way of others, from all: as the dissemination barrier. The control plane's messages
  // carry the fingerprint, and fail the group where two differ.
  void compare_with_others() {
    const deadline until = detail::deadline_after(timeout_);
    for (int distance = 1; distance < size(); distance *= 2) {
      std::byte sent{}, received{};
      auto sending =
          control_->isend(std::span(&sent, 1), (rank() + distance) % size(), detail::collective_tag);
      control_->irecv(std::span(&received, 1), (rank() + size() - distance) % size(), detail::collective_tag)
          .wait(until);
      sending.wait(until);
    }
  }

  /// What one rank sends to another only those two know.
  void compare_sizes(const detail::partition& sent, const detail::partition& received, deadline until) {
    for (int distance = 1; distance < size(); ++distance) {
      const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
      const std::uint64_t outgoing = sent.size(to), expected = received.size(from);
      std::uint64_t arriving = 0;
      auto sending = control_->isend(std::as_bytes(std::span(&outgoing, 1)), to, detail::collective_tag);
      control_->irecv(std::as_writable_bytes(std::span(&arriving, 1)), from, detail::collective_tag)
          .wait(until);
      sending.wait(until);
      if (arriving == expected) continue;
      control_->abort({failure_kind::mismatch, from,
                       detail::text("rank ", from, " sends ", arriving, " bytes to rank ", rank(),
                                    ", which receives ", expected, " bytes from it (all_to_all_v)")});
      throw group_failed(control_->cause());
    }
  }

  // The watch: a thread that ends what would not end by itself.

  void wake_watch() {
    { const std::lock_guard lock(watch_mutex_); }
    woken_.notify_all();
  }

  void watch() {
    const detail::relaxed_capture relaxed;
    static_cast<void>(cudaSetDevice(options_.device));
    for (;;) {
      {
        std::unique_lock lock(watch_mutex_);
        woken_.wait(lock, [&] { return stopping_ || !unreached_.empty() || control_->failed(); });
        if (!control_->failed())
          woken_.wait_for(lock, pause, [&] { return stopping_ || control_->failed(); });
        if (stopping_) return;
      }
      try {
        look();
      } catch (const resource_error& error) {
        control_->abort({failure_kind::revoked, rank(), detail::text("rank ", rank(), ": ", error.what())});
      }
      if (control_->failed()) return cut_short();
    }
  }

  /// Ends what is on the device.
  void cut_short() noexcept {
    ncclComm_t ending = nullptr;
    {
      const std::lock_guard lock(issuing_);
      note_what_is_reached();
      ending = handle_.release();
    }
    if (ending == nullptr) return;
    std::this_thread::sleep_for(time_to_be_told);
    detail::nccl_handle::abort(ending);
    has_ended_ = true;
  }

  /// Once the group has failed. What is reached by now is good. What ends from here on is not: where one rank
  /// ends its part, others may see theirs end, with numbers that are none. So nobody ends anything before all
  /// have been told.
  void note_what_is_reached() noexcept {
    if (std::exchange(is_cut_short_, true)) return;
    should_end_by_ = std::chrono::steady_clock::now() + time_to_end;
    try {
      const std::lock_guard lock(watch_mutex_);
      for (const unreached& each : unreached_) static_cast<void>(each.place->is_reached());
    } catch (const resource_error&) {  // of the device
    }
  }

  /// Under watch_mutex_.
  void forget_reached() {
    while (!unreached_.empty() && unreached_.front().place->is_reached()) unreached_.pop_front();
  }

  void look() {
    unreached first;
    {
      const std::lock_guard lock(watch_mutex_);
      forget_reached();
      if (unreached_.empty()) return;
      first = unreached_.front();
    }
    if (const ncclResult_t result = nccl_error(); result != ncclSuccess) {
      give_control_plane_time();
      throw resource_error(detail::nccl_error_text(result, "NCCL", nullptr));
    }
    look_for_leavers(first.print);
    look_for_mismatch(first.print);
    if (std::chrono::steady_clock::now() < first.until) return;
    const auto ranks = control_->survey(std::chrono::steady_clock::now() + survey_time);
    if (first.print.op != collective::none) {
      control_->abort(describe_timeout(first.print, ranks, timeout_));
    } else {
      control_->abort(
          {failure_kind::timeout, -1,
           detail::text("messages of rank ", rank(), " did not finish within ", detail::text_of(timeout_))});
    }
  }

  /// Who left before it came to the collective will not bring it about. (Who left later has seen it done.)
  void look_for_leavers(const fingerprint& waiting) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_for_leavers_) return;
    next_look_for_leavers_ = now + leavers_pause;
    const auto ranks = control_->survey(now);  // what is known here
    for (int r = 0; r < size(); ++r) {
      const rank_state& state = ranks[static_cast<std::size_t>(r)];
      if (state.is != rank_state::presence::left || state.last.sequence >= waiting.sequence) continue;
      control_->abort(
          {failure_kind::peer_lost, r,
           detail::text("rank ", r, " left the group while rank ", rank(), " was waiting for it")});
    }
  }

  /// What is pending for long may be another collective than this rank's: nothing else tells where calls are
  /// not compared.
  void look_for_mismatch(const fingerprint& waiting) {
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(looked_at_, waiting.sequence) != waiting.sequence) next_survey_ = now + patience;
    if (now < next_survey_ || waiting.op == collective::none) return;
    next_survey_ = now + patience;
    auto ranks = control_->survey(now + survey_time);
    ranks[static_cast<std::size_t>(rank())].last = waiting;
    const failure found = describe_mismatch(ranks);
    if (found.rank >= 0) control_->abort(found);
  }

  /// Nothing while another thread is in NCCL, which hears of errors itself.
  ncclResult_t nccl_error() {
    const std::unique_lock lock(issuing_, std::try_to_lock);
    return lock.owns_lock() ? handle_.error() : ncclSuccess;
  }

  void give_control_plane_time() const {
    const deadline until = std::chrono::steady_clock::now() + survey_time;
    while (!control_->failed() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(pause);
  }

  void await_last() noexcept {
    const deadline until = detail::deadline_after(timeout_);
    for (;;) {
      {
        const std::lock_guard lock(watch_mutex_);
        if (unreached_.empty()) return;
      }
      if (control_->failed() || std::chrono::steady_clock::now() > until) return;
      std::this_thread::sleep_for(pause);
    }
  }

  static constexpr std::uint64_t sample = 32;
  static constexpr std::chrono::milliseconds pause{2};
  static constexpr std::chrono::milliseconds survey_time{1000}, leavers_pause{100}, patience{1000};
  /// Much longer than a failure takes to be known everywhere.
  static constexpr std::chrono::milliseconds time_to_be_told{100}, time_to_end{1000};
  static constexpr std::size_t most_ahead = 128;  // operations, each of a few entries in streams of 1024

  options options_;
  const std::chrono::milliseconds timeout_;
  std::optional<tcp> control_;  // until this rank says goodbye
  std::unique_ptr<detail::stream_pair> streams_;
  bool reaches_host_memory_ = false;
  std::uint64_t compared_ = 0;  // the last collective that was, or would have been
  bool compares_ = false;       // whether it was

  const std::shared_ptr<detail::nccl_windows> windows_ = std::make_shared<detail::nccl_windows>();
  std::recursive_mutex& issuing_ = windows_->mutex();  // guards the next ones, and NCCL
  detail::nccl_handle handle_;
  bool is_cut_short_ = false;
  std::atomic<bool> has_ended_{false};  // what was on the device then
  std::atomic<deadline> should_end_by_{deadline::max()};
  int depth_ = 0;                    // of groups
  std::vector<unreached> deferred_;  // of the group that is open
  std::vector<collected> collected_;
  mark collected_end_;

  std::mutex watch_mutex_;  // guards the next two
  std::deque<unreached> unreached_;
  bool stopping_ = false;
  std::condition_variable woken_;
  deadline next_look_for_leavers_ = {}, next_survey_ = {};  // the watch's own, and the next
  std::uint64_t looked_at_ = 0;                             // the oldest collective pending
  std::unique_ptr<detail::joining_thread> watch_;
};

static_assert(transport<nccl>);
static_assert(has_control_plane<nccl>);
static_assert(has_agreement<nccl>);
static_assert(has_stream_order<nccl>);
static_assert(!has_tags<nccl>);
static_assert(!runs_algorithms<nccl>);
static_assert(!has_receive_view<nccl>);
static_assert(!has_shared_slots<nccl>);
static_assert(!has_symmetric_memory<nccl>);
static_assert(!has_barrier<nccl>);
static_assert(has_all_reduce<nccl, float, sum_t>);
static_assert(has_all_reduce<nccl, half, avg_t>);
static_assert(has_all_reduce<nccl, float8_e4m3, sum_t> == detail::has_nccl_float8);
static_assert(has_all_reduce<nccl, float8_e5m2, premul_sum_t<float>> == detail::has_nccl_float8);
static_assert(has_all_reduce<nccl, double, premul_sum_t<double>>);
static_assert(!has_all_reduce<nccl, std::int16_t, sum_t>);
static_assert(!has_all_reduce<nccl, int, band_t>);
static_assert(has_broadcast<nccl, float>);
static_assert(has_all_gather<nccl, float>);
static_assert(has_reduce_scatter<nccl, float, max_t>);

}  // namespace ddpp
