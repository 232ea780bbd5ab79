// SPDX-License-Identifier: BSL-1.0
// Hooks that need kernels, under a compiler that makes none, and one for the host's memory alone.
// needs: /usr/local/cuda/include/nccl.h
// expect: fp16_compress and bf16_compress need kernels on a device: compile with nvcc
// expect: power_sgd works in host memory
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>
#include <ddpp/hooks/power_sgd.hpp>

void reduce(ddpp::communicator<ddpp::nccl>& comm, ddpp::gradient_bucket& bucket) {
#ifdef WRONG
  ddpp::hooks::bf16_compress{}(comm, bucket);
  ddpp::hooks::power_sgd{}(comm, bucket);
#else
  ddpp::hooks::all_reduce{}(comm, bucket);
#endif
}
