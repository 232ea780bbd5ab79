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
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/nccl_device.hpp>
#include <ddpp/detail/nccl_handle.hpp>
#include <ddpp/detail/nccl_kernels.hpp>
#include <ddpp/detail/nccl_streams.hpp>
#include <ddpp/detail/nccl_types.hpp>
#include <ddpp/detail/nccl_watch.hpp>
#include <ddpp/detail/nccl_windows.hpp>
#include <ddpp/detail/partition.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/device_span.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>
#include <ddpp/fingerprint.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
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
    cudaStream_t stream = nullptr;  ///< the caller's, of this rank's device
    bool high_priority = false;     ///< of the internal stream
    nccl_error_mode error_mode = nccl_error_mode::async_abort;
    nccl_checks checks = nccl_checks::sampled;
    int device = -1;  ///< this rank's; -1: by its number among the ranks of this host
  };

  static constexpr std::string_view name = "nccl";
  static constexpr memory_space memory = memory_space::device;
  static constexpr launch_kind launch = launch_kind::threads;

  /// Collective over all ranks of `boot`, which meet over TCP first, as `tcp`'s do. Makes the rank's device
  /// the calling thread's current one. Blocks until all have come, until boot.deadline at most. Throws
  /// `init_error` on all ranks if one has no device or a stream of another, or two have the same.
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
    watch_.emplace(*control_, handle_, issuing_, options_.device, timeout_);
  }
  nccl(const nccl&) = delete;
  nccl& operator=(const nccl&) = delete;

  /// Waits until what this rank has issued is done, until the timeout at most; and, as NCCL does, for the
  /// ranks of this host to end theirs. Graphs that have captured its operations must be gone before.
  ~nccl() {
    try {
      watch_->finish();
      const detail::current_device mine(options_.device);
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
    watch_->await_room();
    return operation(*this);
  }
  mark end_operation(const fingerprint& print, deadline until) {
    const mark here = streams_->new_mark();
    reach({here, print, until});
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
  void await_end_of_work() const { watch_->await_end_of_work(); }
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
    watch_->await_room();
    {
      const operation here(*this);
      grouped(detail::deadline_after(timeout_), [&] {
        std::forward<F>(f)();
        issue_messages();
      });
      if (depth_ > 0) return;
      for (const detail::issued_operation& each : std::exchange(deferred_, {})) {
        reach(each);
        streams_->lead_caller(*each.end);
        last = each.end;
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
      watch_->await_cause();
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
    watch_->await_room();
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
    reach({end, {}, until});
  }

  /// Inside a group a wait has nothing to wait for yet.
  bool is_over(const mark& place) {
    const std::lock_guard lock(issuing_);
    watch_->refuse_cut_short(*place);
    return place->is_reached() || (!place->is_recorded() && depth_ > 0);
  }

  /// Puts the mark on the internal stream: now, or when the group ends.
  void reach(const detail::issued_operation& issued) {
    if (depth_ > 0) {
      deferred_.push_back(issued);
      return;
    }
    issued.end->record(streams_->internal(), streams_->is_capturing());
    if (!issued.end->is_captured()) watch_->add(issued);
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

  static constexpr std::uint64_t sample = 32;

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
  int depth_ = 0;                                   // of groups
  std::vector<detail::issued_operation> deferred_;  // of the group that is open
  std::vector<collected> collected_;
  mark collected_end_;

  std::optional<detail::nccl_watch<tcp>> watch_;
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
