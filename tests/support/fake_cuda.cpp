// SPDX-License-Identifier: BSL-1.0
#include "fake_cuda.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
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

// Streams and events.

namespace {

constexpr std::chrono::microseconds lateness{300};
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

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<event_state> last;  // of the latest record; null before the first
};

struct CUstream_st {
  explicit CUstream_st(const std::atomic<bool>& rests) : resting(rests), worker([this] { run(); }) {}
  ~CUstream_st() {
    push({});
    worker.join();
  }
  void push(std::function<void()> operation) {
    {
      const std::lock_guard lock(mutex);
      operations.push_back(std::move(operation));
    }
    added.notify_one();
  }
  void run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex);
        added.wait(lock, [&] { return !operations.empty(); });
        next = std::move(operations.front());
        operations.pop_front();
      }
      if (!next) return;
      do {
        std::this_thread::sleep_for(lateness);
      } while (resting);
      next();
    }
  }
  const std::atomic<bool>& resting;
  std::mutex mutex;
  std::condition_variable added;
  std::deque<std::function<void()>> operations;
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
  stream.push([state] {
    {
      const std::lock_guard lock(state->mutex);
      state->done = true;
    }
    state->changed.notify_all();
  });
  return state;
}

struct memory_table {
  std::mutex mutex;
  std::map<const char*, std::size_t> blocks;

  bool has(const void* where) {
    const std::lock_guard lock(mutex);
    auto after = blocks.upper_bound(static_cast<const char*>(where));
    if (after == blocks.begin()) return false;
    --after;
    return static_cast<const char*>(where) <= after->first + after->second;
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
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
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
const char* cudaGetErrorString(cudaError_t) { return "an error of the double"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheDouble"; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
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
  auto state = record_on(stream_of(stream));
  const std::lock_guard lock(event->mutex);
  event->last = std::move(state);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(event->mutex);
  if (!event->last) return cudaSuccess;
  const std::lock_guard inner(event->last->mutex);
  return event->last->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (fake_cuda::without_event_waits) return cudaSuccess;
  std::shared_ptr<event_state> state;
  {
    const std::lock_guard lock(event->mutex);
    state = event->last;
  }
  if (state) stream_of(stream).push([state] { wait_for(*state); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** where, std::size_t size) {
  *where = std::malloc(size == 0 ? 1 : size);
  if (*where == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*where, 0x7b, size);
  const std::lock_guard lock(memory().mutex);
  memory().blocks[static_cast<char*>(*where)] = size;
  return cudaSuccess;
}
cudaError_t cudaFree(void* where) {
  cudaDeviceSynchronize();
  {
    const std::lock_guard lock(memory().mutex);
    memory().blocks.erase(static_cast<char*>(where));
  }
  std::free(where);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* where) {
  *attributes = {};
  attributes->type = memory().has(where) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream_of(stream).push([=] { copy(to, from, size); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, size, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* where, int value, std::size_t size, cudaStream_t stream) {
  stream_of(stream).push([=] {
    if (size > 0) std::memset(where, value, size);
  });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
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
  double factor;
  int root;  // or peer
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

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T>
void reduce_as(const std::vector<nccl_call*>& ranks, std::size_t count, void* out) {
  const nccl_call& first = *ranks.front();
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      T mine = static_cast<const T*>(ranks[r]->in)[i];
      if (ranks[r]->op >= ncclNumOps) mine = static_cast<T>(mine * static_cast<T>(ranks[r]->factor));
      if (r == 0)
        value = mine;
      else if (first.op == ncclProd)
        value = static_cast<T>(value * mine);
      else if (first.op == ncclMin)
        value = std::min(value, mine);
      else if (first.op == ncclMax)
        value = std::max(value, mine);
      else
        value = static_cast<T>(value + mine);
    }
    if (first.op == ncclAvg) value = static_cast<T>(value / static_cast<T>(ranks.size()));
    static_cast<T*>(out)[i] = value;
  }
}

void reduce(const std::vector<nccl_call*>& ranks, std::size_t count, void* out) {
  switch (ranks.front()->type) {
    case ncclInt8:
      return reduce_as<signed char>(ranks, count, out);
    case ncclUint8:
      return reduce_as<unsigned char>(ranks, count, out);
    case ncclInt32:
      return reduce_as<int>(ranks, count, out);
    case ncclUint32:
      return reduce_as<unsigned>(ranks, count, out);
    case ncclInt64:
      return reduce_as<long long>(ranks, count, out);
    case ncclUint64:
      return reduce_as<unsigned long long>(ranks, count, out);
    case ncclFloat32:
      return reduce_as<float>(ranks, count, out);
    case ncclFloat64:
      return reduce_as<double>(ranks, count, out);
    default:
      std::fprintf(stderr, "the double of NCCL cannot reduce this type\n");
      std::abort();
  }
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
  std::vector<double> factors;
  bool blocking = false;
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
  comm.stream->push([&comm, calls] { run_calls(comm, *calls); });
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
  return begin(*comm, {kind::all_reduce, in, out, count, type, op, 1, -1}, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::reduce, in, out, count, type, op, 1, root}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::reduce_scatter, in, out, count, type, op, 1, -1}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return begin(*comm, {kind::broadcast, in, out, count, type, ncclSum, 1, root}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return begin(*comm, {kind::all_gather, in, out, count, type, ncclSum, 1, -1}, stream);
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return begin(*comm, {kind::send, in, nullptr, count, type, ncclSum, 1, peer}, stream);
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return begin(*comm, {kind::receive, nullptr, out, count, type, ncclSum, 1, peer}, stream);
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* factor, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  double value = 0;
  if (type == ncclFloat32) {
    value = static_cast<double>(*static_cast<float*>(factor));
  } else if (type == ncclFloat64) {
    value = *static_cast<double*>(factor);
  } else {
    long long integer = 0;
    std::memcpy(&integer, factor, size_of(type));
    value = static_cast<double>(integer);
  }
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
ncclResult_t ncclCommWindowRegister(ncclComm_t, void* where, std::size_t, ncclWindow_t* window, int) {
  *window = static_cast<ncclWindow_t>(where);
  ++fake_cuda::windows;
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  --fake_cuda::windows;
  return ncclSuccess;
}
