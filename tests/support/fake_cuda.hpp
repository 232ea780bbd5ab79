// SPDX-License-Identifier: BSL-1.0
// A double of what the nccl backend uses of CUDA and NCCL: NVIDIA's headers, definitions of our own. Devices
// are threads, streams are queues that run late, events order them, ranks are threads of one process. Device
// memory is host memory full of rubbish. NCCL's communicators are non-blocking: an operation is on its stream
// only once the communicator has been polled; sends and receives end together; what does not match never
// ends.
#pragma once

#include <atomic>

namespace fake_cuda {

/// How many devices there are; 8 at first.
inline std::atomic<int> devices{8};
/// How long after it was put on a stream an operation begins at the earliest, in microseconds.
inline std::atomic<int> lateness{300};
/// Whether devices reach memory that CUDA did not allocate, for communicators made from here on.
inline std::atomic<bool> reaches_host_memory{false};
/// While set, operations of the default streams, or of all others, do not begin.
inline std::atomic<bool> default_streams_rest{false}, other_streams_rest{false};
/// Deliberate breaks, as a backend would be that forgot the call:
inline std::atomic<bool> without_event_waits{false};  ///< cudaStreamWaitEvent does nothing
inline std::atomic<bool> without_groups{false};       ///< ncclGroupStart and ncclGroupEnd do nothing
/// What ncclCommGetAsyncError says of every communicator from here on, as if a network had broken.
inline std::atomic<bool> network_is_broken{false};
/// How often copies, fillings and functions have been put on streams.
inline std::atomic<int> enqueued{0};
/// Windows that are registered.
inline std::atomic<int> windows{0};

}  // namespace fake_cuda
