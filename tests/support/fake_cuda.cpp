// SPDX-License-Identifier: BSL-1.0
#include "fake_cuda.hpp"

#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

// Streams and events.

namespace {

thread_local int current = 0;

void copy(void* to, const void* from, std::size_t size) {
  if (size > 0) std::memmove(to, from, size);
}

struct event_state {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

}  // namespace

/// What was captured: operations, and which of them each comes after.
struct CUgraph_st {
  struct node {
    std::function<void()> operation;
    std::vector<std::size_t> after;
  };
  std::vector<node> nodes;

  /// Whether all nodes come before one of these.
  bool all_lead_to(std::vector<std::size_t> ends) const {
    std::vector<bool> seen(nodes.size());
    while (!ends.empty()) {
      const std::size_t last = ends.back();
      ends.pop_back();
      if (seen[last]) continue;
      seen[last] = true;
      ends.insert(ends.end(), nodes[last].after.begin(), nodes[last].after.end());
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
  }
  /// Of the nodes that may run the latest goes first, so that no order holds but the one asked for.
  void run() const {
    std::vector<bool> done(nodes.size());
    for (std::size_t left = nodes.size(); left > 0; --left) {
      std::size_t next = nodes.size();
      const auto is_done = [&](std::size_t each) { return done[each]; };
      do {
        --next;
      } while (done[next] || !std::all_of(nodes[next].after.begin(), nodes[next].after.end(), is_done));
      if (nodes[next].operation) nodes[next].operation();
      done[next] = true;
    }
  }
};
struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

namespace {

/// One capture, of all streams that take part in it. Only the thread that began it uses them.
struct capture {
  std::thread::id by;
  cudaStreamCaptureMode mode;
  CUgraph_st graph;
  std::vector<cudaStream_t> streams;
  bool broken = false, ended = false;
};

struct capture_list {
  std::mutex mutex;
  std::vector<std::shared_ptr<capture>> running;
};
capture_list& captures() {
  static capture_list list;
  return list;
}
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/// What CUDA forbids during a capture: queries and whatever waits or allocates. Breaks the capture.
cudaError_t unsafe_call() {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(captures().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& each : captures().running) {
    const bool own = each->by == std::this_thread::get_id();
    if (each->mode == cudaStreamCaptureModeRelaxed) continue;
    if (!own && (each->mode != cudaStreamCaptureModeGlobal || capture_mode != cudaStreamCaptureModeGlobal))
      continue;
    each->broken = true;
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

}  // namespace

struct CUevent_st {
  const int device = current;
  std::mutex mutex;
  std::shared_ptr<event_state> last;  // of the latest record; null before the first
  std::shared_ptr<capture> captured;  // if that was captured,
  std::vector<std::size_t> nodes;     // after these
};

struct CUstream_st {
  explicit CUstream_st(const std::atomic<bool>& rests) : resting(rests), worker([this] { run(); }) {}
  ~CUstream_st() {
    run_later({});
    worker.join();
  }
  /// Captured, where it is.
  void push(std::function<void()> operation) {
    {
      const std::lock_guard lock(mutex);
      if (capturing) {
        capturing->graph.nodes.push_back({std::move(operation), ends});
        ends = {capturing->graph.nodes.size() - 1};
        return;
      }
    }
    run_later(std::move(operation));
  }
  void run_later(std::function<void()> operation) {
    {
      const std::lock_guard lock(mutex);
      const auto now = std::chrono::steady_clock::now();
      operations.push_back({now + std::chrono::microseconds(fake_cuda::lateness), std::move(operation)});
    }
    added.notify_one();
  }
  void run() {
    for (;;) {
      later next;
      {
        std::unique_lock lock(mutex);
        added.wait(lock, [&] { return !operations.empty(); });
        next = std::move(operations.front());
        operations.pop_front();
      }
      if (!next.operation) return;
      std::this_thread::sleep_until(next.begin);
      while (resting) std::this_thread::sleep_for(std::chrono::microseconds(300));
      next.operation();
    }
  }
  const int device = current;
  const std::atomic<bool>& resting;
  std::mutex mutex;
  std::condition_variable added;
  struct later {
    std::chrono::steady_clock::time_point begin;  // not before
    std::function<void()> operation;
  };
  std::deque<later> operations;
  std::shared_ptr<capture> capturing;
  std::vector<std::size_t> ends;  // of what it has captured
  std::thread worker;
};

namespace {

struct device_state {
  std::mutex mutex;
  std::unique_ptr<CUstream_st> standard;
  std::vector<CUstream_st*> streams;
};

device_state& device(int number) {
  static std::array<device_state, 64> all;
  return all.at(static_cast<std::size_t>(number));
}

CUstream_st& stream_of(cudaStream_t stream) {
  if (stream != nullptr) return *stream;
  device_state& here = device(current);
  const std::lock_guard lock(here.mutex);
  if (!here.standard) here.standard = std::make_unique<CUstream_st>(fake_cuda::default_streams_rest);
  return *here.standard;
}

void wait_for(event_state& event) {
  std::unique_lock lock(event.mutex);
  event.changed.wait(lock, [&] { return event.done; });
}

std::shared_ptr<event_state> record_on(CUstream_st& stream) {
  auto state = std::make_shared<event_state>();
  stream.run_later([state] {
    {
      const std::lock_guard lock(state->mutex);
      state->done = true;
    }
    state->changed.notify_all();
  });
  return state;
}

/// What is put on the stream from here on is captured with what the event was, and comes after it.
cudaError_t join_capture(CUstream_st& stream, const CUevent_st& event) {
  if (event.captured->ended) return cudaErrorCapturedEvent;
  const std::lock_guard lock(stream.mutex);
  if (!stream.capturing) {
    stream.capturing = event.captured;
    stream.ends.clear();
    event.captured->streams.push_back(&stream);
  }
  if (stream.capturing != event.captured) return cudaErrorStreamCaptureMerge;
  for (const std::size_t node : event.nodes) {
    if (std::find(stream.ends.begin(), stream.ends.end(), node) == stream.ends.end())
      stream.ends.push_back(node);
  }
  return cudaSuccess;
}

struct memory_table {
  std::mutex mutex;
  struct block {
    std::size_t size;
    int device;
  };
  std::map<const char*, block> blocks;

  /// Whose memory it is; -1: not a device's.
  int device_of(const void* where) {
    const std::lock_guard lock(mutex);
    auto after = blocks.upper_bound(static_cast<const char*>(where));
    if (after == blocks.begin()) return -1;
    --after;
    return static_cast<const char*>(where) <= after->first + after->second.size ? after->second.device : -1;
  }
};
memory_table& memory() {
  static memory_table table;
  return table;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake_cuda::devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* number) {
  *number = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int number) {
  if (number < 0 || number >= fake_cuda::devices) return cudaErrorInvalidDevice;
  current = number;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int number) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", number);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrPageableMemoryAccess && fake_cuda::reaches_host_memory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t refused = unsafe_call(); refused != cudaSuccess) return refused;
  std::vector<std::shared_ptr<event_state>> ends;
  {
    device_state& here = device(current);
    const std::lock_guard lock(here.mutex);
    if (here.standard) ends.push_back(record_on(*here.standard));
    for (CUstream_st* each : here.streams) ends.push_back(record_on(*each));
  }
  for (const auto& end : ends) wait_for(*end);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the double"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheDouble"; }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CUstream_st& which = stream_of(stream);
  const std::lock_guard lock(which.mutex);
  *status = which.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  auto begun = std::make_shared<capture>();
  begun->by = std::this_thread::get_id();
  begun->mode = mode;
  begun->streams = {stream};
  const std::lock_guard lock(captures().mutex);
  captures().running.push_back(begun);
  const std::lock_guard inner(stream->mutex);
  stream->capturing = begun;
  stream->ends.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::shared_ptr<capture> ended = stream->capturing;
  const bool joined = ended->graph.all_lead_to(stream->ends);
  for (const cudaStream_t each : ended->streams) {
    const std::lock_guard lock(each->mutex);
    each->capturing = nullptr;
  }
  const std::lock_guard lock(captures().mutex);
  std::erase(captures().running, ended);
  ended->ended = true;
  *graph = nullptr;
  if (ended->broken) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st(std::move(ended->graph));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{std::make_shared<const CUgraph_st>(*graph)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t launched, cudaStream_t stream) {
  stream_of(stream).push([graph = launched->graph] { graph->run(); });
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t launched) {
  delete launched;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st(fake_cuda::other_streams_rest);
  device_state& here = device(current);
  const std::lock_guard lock(here.mutex);
  here.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  for (int number = 0; number < 64; ++number) {
    const std::lock_guard lock(device(number).mutex);
    std::erase(device(number).streams, stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t refused = unsafe_call(); refused != cudaSuccess) return refused;
  wait_for(*record_on(stream_of(stream)));
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st& where = stream_of(stream);
  if (where.device != event->device) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(event->mutex);
  {
    const std::lock_guard inner(where.mutex);
    event->captured = where.capturing;
    event->nodes = where.ends;
  }
  event->last = event->captured ? nullptr : record_on(where);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t refused = unsafe_call(); refused != cudaSuccess) return refused;
  const std::lock_guard lock(event->mutex);
  if (event->captured) return cudaErrorCapturedEvent;
  if (!event->last) return cudaSuccess;
  const std::lock_guard inner(event->last->mutex);
  return event->last->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (fake_cuda::without_event_waits) return cudaSuccess;
  CUstream_st& where = stream_of(stream);
  const std::lock_guard lock(event->mutex);
  if (!event->captured) {
    const std::lock_guard inner(where.mutex);
    if (where.capturing && event->last) return cudaErrorStreamCaptureIsolation;
  } else {
    return join_capture(where, *event);
  }
  if (event->last) where.push([state = event->last] { wait_for(*state); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** where, std::size_t size) {
  if (const cudaError_t refused = unsafe_call(); refused != cudaSuccess) return refused;
  constexpr std::size_t alignment = 256;
  *where = size > SIZE_MAX / 2 ? nullptr : std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
  if (*where == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*where, 0x7b, size);
  const std::lock_guard lock(memory().mutex);
  memory().blocks[static_cast<char*>(*where)] = {size, current};
  return cudaSuccess;
}
cudaError_t cudaFree(void* where) {
  if (const cudaError_t refused = cudaDeviceSynchronize(); refused != cudaSuccess) return refused;
  {
    const std::lock_guard lock(memory().mutex);
    memory().blocks.erase(static_cast<char*>(where));
  }
  std::free(where);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* where) {
  *attributes = {};
  attributes->device = memory().device_of(where);
  attributes->type = attributes->device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  ++fake_cuda::enqueued;
  stream_of(stream).push([=] { copy(to, from, size); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (const cudaError_t refused = unsafe_call(); refused != cudaSuccess) return refused;
  cudaMemcpyAsync(to, from, size, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* where, int value, std::size_t size, cudaStream_t stream) {
  ++fake_cuda::enqueued;
  stream_of(stream).push([=] {
    if (size > 0) std::memset(where, value, size);
  });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  ++fake_cuda::enqueued;
  stream_of(stream).push([=] { function(argument); });
  return cudaSuccess;
}

// NCCL.

namespace {

struct world;

enum class kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, receive };

struct nccl_call {
  kind what;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  std::uint64_t factor;  // the bytes of a number of the type
  int root;              // or peer
  bool done = false;
};

struct world {
  explicit world(int ranks) : size(ranks), calls(static_cast<std::size_t>(ranks)) {}
  const int size;
  int here = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<nccl_call*>> calls;  // collectives that have begun, by rank
  std::map<std::pair<int, int>, std::deque<nccl_call*>> sends, receives;  // by (from, to)
};

/// f(a value of the type).
template <class F>
auto with_type(ncclDataType_t type, F f) {
  switch (type) {
    case ncclInt8:
      return f(std::int8_t());
    case ncclUint8:
      return f(std::uint8_t());
    case ncclInt32:
      return f(std::int32_t());
    case ncclUint32:
      return f(std::uint32_t());
    case ncclInt64:
      return f(std::int64_t());
    case ncclUint64:
      return f(std::uint64_t());
    case ncclFloat16:
      return f(ddpp::half());
    case ncclBfloat16:
      return f(ddpp::bfloat16());
    case ncclFloat32:
      return f(float());
    case ncclFloat64:
      return f(double());
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    case ncclFloat8e4m3:
      return f(ddpp::float8_e4m3());
    case ncclFloat8e5m2:
      return f(ddpp::float8_e5m2());
#endif
    default:
      std::fprintf(stderr, "the double of NCCL does not know this type\n");
      std::abort();
  }
}

std::size_t size_of(ncclDataType_t type) {
  return with_type(type, [](auto value) { return sizeof value; });
}

/// As NCCL does it: rounded at each step; averages of floating-point numbers are sums of quotients, those of
/// integers quotients of sums; NaN does not matter to min and max.
template <class T>
void reduce_as(const std::vector<nccl_call*>& ranks, std::size_t count, void* out) {
  const ncclRedOp_t op = ranks.front()->op;
  using number = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto n = static_cast<number>(ranks.size());
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      T mine = static_cast<const T*>(ranks[r]->in)[i];
      if (op >= ncclNumOps) {
        T factor{};
        std::memcpy(static_cast<void*>(&factor), &ranks[r]->factor, sizeof factor);
        mine = ddpp::prod(mine, factor);
      } else if (op == ncclAvg && ddpp::detail::real_number<T>) {
        mine = ddpp::prod(mine, static_cast<T>(1 / n));
      }
      if (r == 0)
        value = mine;
      else if (op == ncclProd)
        value = ddpp::prod(value, mine);
      else if (op == ncclMin)
        value = std::min(value, mine);
      else if (op == ncclMax)
        value = std::max(value, mine);
      else
        value = ddpp::sum(value, mine);
    }
    if constexpr (std::is_integral_v<T>) {
      if (op == ncclAvg) value = static_cast<T>(value / static_cast<T>(ranks.size()));
    }
    static_cast<T*>(out)[i] = value;
  }
}

void reduce(const std::vector<nccl_call*>& ranks, std::size_t count, void* out) {
  with_type(ranks.front()->type, [&]<class T>(T) { reduce_as<T>(ranks, count, out); });
}

/// What all ranks have begun, done for all of them.
void perform(const std::vector<nccl_call*>& ranks) {
  const nccl_call& first = *ranks.front();
  const std::size_t n = ranks.size(), bytes = first.count * size_of(first.type);
  const bool scatters = first.what == kind::reduce_scatter;
  std::vector<char> result(bytes * (scatters || first.what == kind::all_gather ? n : 1));
  if (first.what == kind::broadcast) {
    copy(result.data(), ranks[static_cast<std::size_t>(first.root)]->in, bytes);
  } else if (first.what == kind::all_gather) {
    for (std::size_t r = 0; r < n; ++r) copy(result.data() + r * bytes, ranks[r]->in, bytes);
  } else {
    reduce(ranks, scatters ? first.count * n : first.count, result.data());
  }
  for (std::size_t r = 0; r < n; ++r) {
    if (first.what == kind::reduce && static_cast<int>(r) != first.root) continue;
    copy(ranks[r]->out, result.data() + (scatters ? r * bytes : 0), scatters ? bytes : result.size());
  }
}

bool fit(const nccl_call& a, const nccl_call& b) {
  return a.what == b.what && a.count == b.count && a.type == b.type && a.root == b.root &&
         (a.op == b.op || (a.op >= ncclNumOps && b.op >= ncclNumOps));
}

void match(world& all) {
  for (;;) {
    std::vector<nccl_call*> ranks;
    for (auto& calls : all.calls) {
      if (!calls.empty()) ranks.push_back(calls.front());
    }
    if (static_cast<int>(ranks.size()) < all.size) break;
    for (const nccl_call* each : ranks) {
      if (!fit(*each, *ranks.front())) return;  // never to end
    }
    perform(ranks);
    for (nccl_call* each : ranks) each->done = true;
    for (auto& calls : all.calls) calls.pop_front();
  }
  for (auto& [ends, sends] : all.sends) {
    auto& receives = all.receives[ends];
    while (!sends.empty() && !receives.empty() && sends.front()->count == receives.front()->count) {
      copy(receives.front()->out, sends.front()->in, sends.front()->count);
      sends.front()->done = receives.front()->done = true;
      sends.pop_front();
      receives.pop_front();
    }
  }
}

}  // namespace

struct ncclComm {
  int rank = 0;
  std::shared_ptr<world> all;
  bool aborted = false;  // guarded by the world's mutex
  int polls = 0;         // that still find it in progress
  std::vector<nccl_call> begun;
  cudaStream_t stream = nullptr;
  std::vector<std::uint64_t> factors;
  bool blocking = false;
  ncclWindow_t *window = nullptr, registered = nullptr;  // to be written when next polled
};

namespace {

thread_local int depth = 0;
thread_local std::vector<ncclComm*> in_group;

void withdraw(world& all, const std::vector<nccl_call>& calls) {
  const auto is_ours = [&](const nccl_call* each) {
    return each >= calls.data() && each < calls.data() + calls.size();
  };
  for (auto& each : all.calls) std::erase_if(each, is_ours);
  for (auto& each : all.sends) std::erase_if(each.second, is_ours);
  for (auto& each : all.receives) std::erase_if(each.second, is_ours);
}

/// One kernel.
void run_calls(ncclComm& comm, std::vector<nccl_call>& calls) {
  world& all = *comm.all;
  std::unique_lock lock(all.mutex);
  for (nccl_call& each : calls) {
    if (each.what == kind::send)
      all.sends[{comm.rank, each.root}].push_back(&each);
    else if (each.what == kind::receive)
      all.receives[{each.root, comm.rank}].push_back(&each);
    else
      all.calls[static_cast<std::size_t>(comm.rank)].push_back(&each);
  }
  match(all);
  all.changed.notify_all();
  all.changed.wait(lock, [&] {
    bool done = true;
    for (const nccl_call& each : calls) done = done && each.done;
    return done || comm.aborted;
  });
  withdraw(all, calls);
}

void put_on_stream(ncclComm& comm) {
  if (comm.begun.empty()) return;
  auto calls = std::make_shared<std::vector<nccl_call>>(std::move(comm.begun));
  comm.begun.clear();
  comm.stream->push([&comm, calls] {
    auto these = *calls;  // a graph runs them again
    run_calls(comm, these);
  });
}

ncclResult_t begin(ncclComm& comm, const nccl_call& call, cudaStream_t stream) {
  comm.begun.push_back(call);
  comm.stream = stream;
  if (call.op >= ncclNumOps)
    comm.begun.back().factor = comm.factors.at(static_cast<std::size_t>(call.op) - ncclNumOps);
  if (depth > 0) {
    in_group.push_back(&comm);
    return ncclSuccess;
  }
  if (fake_cuda::without_groups || comm.blocking) {
    put_on_stream(comm);
    return ncclSuccess;
  }
  comm.polls = 2;
  return ncclInProgress;
}

struct meeting_place {
  std::mutex mutex;
  std::map<int, std::shared_ptr<world>> worlds;
  int last = 0;
};
meeting_place& meeting() {
  static meeting_place place;
  return place;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote error" : "an error of the double";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(meeting().mutex);
  const int number = ++meeting().last;
  *id = {};
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  *made = new ncclComm;
  (*made)->rank = rank;
  (*made)->polls = 2;
  const std::lock_guard lock(meeting().mutex);
  auto& all = meeting().worlds[number];
  if (!all) all = std::make_shared<world>(size);
  (*made)->all = all;
  const std::lock_guard inner(all->mutex);
  if (++all->here == size) meeting().worlds.erase(number);
  return ncclInProgress;
}
/// Blocking, as it is for those who do not ask.
ncclResult_t ncclCommInitRank(ncclComm_t* made, int size, ncclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t result = ncclCommInitRankConfig(made, size, id, rank, &config);
  while (result == ncclInProgress) ncclCommGetAsyncError(*made, &result);
  (*made)->blocking = true;
  return result;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = ncclSuccess;
  if (comm->window != nullptr) {  // as 2.28 does it, in a thread of its own
    *std::exchange(comm->window, nullptr) = comm->registered;
    ++fake_cuda::windows;
    *result = ncclInProgress;
    return ncclSuccess;
  }
  if (fake_cuda::network_is_broken) {
    *result = ncclRemoteError;
    return ncclSuccess;
  }
  {
    const std::lock_guard lock(comm->all->mutex);
    if (comm->all->here < comm->all->size) *result = ncclInProgress;
  }
  if (comm->polls > 0) {
    *result = ncclInProgress;
    if (--comm->polls == 0) put_on_stream(*comm);
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->all->mutex);
    comm->aborted = true;
  }
  comm->all->changed.notify_all();
  if (comm->stream != nullptr) wait_for(*record_on(*comm->stream));
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return ncclCommAbort(comm); }

ncclResult_t ncclGroupStart() {
  if (!fake_cuda::without_groups) ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (fake_cuda::without_groups || --depth > 0 || in_group.empty()) return ncclSuccess;
  for (ncclComm* comm : std::exchange(in_group, {})) comm->polls = 2;
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::all_reduce, in, out, count, type, op, 0, -1}, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::reduce, in, out, count, type, op, 0, root}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::reduce_scatter, in, out, count, type, op, 0, -1}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::broadcast, in, out, count, type, ncclSum, 0, root}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return begin(*comm, {kind::all_gather, in, out, count, type, ncclSum, 0, -1}, stream);
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return begin(*comm, {kind::send, in, nullptr, count, type, ncclSum, 0, peer}, stream);
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return begin(*comm, {kind::receive, nullptr, out, count, type, ncclSum, 0, peer}, stream);
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* factor, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  std::uint64_t value = 0;
  std::memcpy(&value, factor, size_of(type));
  *op = static_cast<ncclRedOp_t>(ncclNumOps + comm->factors.size());
  comm->factors.push_back(value);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void** where, std::size_t size) {
  return cudaMalloc(where, size) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* where) {
  cudaFree(where);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* where, std::size_t, ncclWindow_t* window, int) {
  comm->window = window;
  comm->registered = static_cast<ncclWindow_t>(where);
  return ncclSuccess;  // which it says, and is in progress all the same
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  --fake_cuda::windows;
  return ncclSuccess;
}
