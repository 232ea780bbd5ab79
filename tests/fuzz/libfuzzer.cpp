// SPDX-License-Identifier: BSL-1.0
// One of the targets, by the name in DDPP_FUZZ_TARGET, for clang's libFuzzer: see run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "targets.hpp"

namespace {

const fuzz::target& chosen() {
  const char* const name = std::getenv("DDPP_FUZZ_TARGET");
  for (const fuzz::target& each : fuzz::targets) {
    if (name != nullptr && std::string_view(each.name) == name) return each;
  }
  std::fprintf(stderr, "DDPP_FUZZ_TARGET names none of the targets:\n");
  for (const fuzz::target& each : fuzz::targets) std::fprintf(stderr, "%s\n", each.name);
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::target& target = chosen();
  target.run(fuzz::bytes({data, size}));
  return 0;
}
