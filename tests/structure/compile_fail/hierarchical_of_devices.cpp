// SPDX-License-Identifier: BSL-1.0
// Where the transport is NCCL, there is nothing to join.
// needs: /usr/local/cuda/include/nccl.h
// expect: ddpp: hierarchical joins transports of host memory; on devices use nccl for all ranks
#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#ifdef WRONG
using all = ddpp::hierarchical<ddpp::nccl, ddpp::nccl>;
#else
using all = ddpp::nccl;
#endif
static_assert(sizeof(all) > 0);
