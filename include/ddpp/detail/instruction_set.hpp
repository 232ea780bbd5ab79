// SPDX-License-Identifier: BSL-1.0
// What the processor can do, beyond what every one of its architecture can. Asked at run time: units compiled
// with different flags share their inline functions.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ddpp::detail {

/// Each includes those before it.
enum class instruction_set : unsigned char {
  scalar,  ///< what C++ has
  sse2,    ///< every x86-64 processor
  avx2     ///< with F16C
};

[[gnu::cold]] inline instruction_set find_instruction_set() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  __builtin_cpu_init();
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") ? instruction_set::avx2 : instruction_set::sse2;
#else
  return instruction_set::scalar;
#endif
}

inline instruction_set best_instruction_set() noexcept {
  static const instruction_set best = find_instruction_set();
  return best;
}

}  // namespace ddpp::detail
