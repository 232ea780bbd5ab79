// SPDX-License-Identifier: BSL-1.0
// Vectors of the compiler's: arithmetic on them is that on their elements.
#pragma once

#ifdef __CUDACC__
#pragma nv_diag_suppress 1675  // of GCC's unroll, which nvcc hands on and does not know
#endif

#include <cstddef>

namespace ddpp::detail {

template <class E, std::size_t Count>
struct vector_type {
  typedef E type __attribute__((vector_size(Count * sizeof(E))));
};
template <class E, std::size_t Count>
using vector = typename vector_type<E, Count>::type;

/// A vector at any address, whatever lies there.
template <class V>
struct unaligned {
  typedef V type __attribute__((aligned(1), may_alias));
};

}  // namespace ddpp::detail
