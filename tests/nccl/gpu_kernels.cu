// SPDX-License-Identifier: BSL-1.0
// The library's kernels round to 16 bits and back as its types do on the host: every 16-bit number, and
// floats of all sizes with every pattern of the bits that are lost.
#include <ddpp/backends/nccl.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/hooks.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../examples/cuda_kernels.hpp"

namespace {

using kernels = ddpp::detail::device_kernels<ddpp::nccl>;

template <class T>
std::vector<T> values(const device_array<T>& array) {
  std::vector<T> host(array.size());
  check(cudaMemcpy(host.data(), array.data(), host.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

template <class A, class B>
void expect_equal(A found, B expected, const char* what, double from) {
  const auto a = static_cast<double>(found), b = static_cast<double>(expected);
  if (a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b)) return;
  throw std::runtime_error(std::string(what) + " of " + std::to_string(from) + " is " + std::to_string(a) +
                           ", not " + std::to_string(b));
}

/// All signs and exponents; of the fraction the upper bits, and lower ones around where they are rounded.
std::vector<float> floats() {
  std::vector<float> all;
  for (std::uint32_t upper = 0; upper < 1u << 16; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      all.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  return all;
}

template <class Narrow, class T>
void narrowing(T factor) {
  std::vector<T> from;
  for (const float each : floats()) from.push_back(static_cast<T>(each));
  const device_array<T> in(from);
  const device_array<Narrow> out(from.size());
  kernels::narrow_scaled(out.data(), in.data(), from.size(), factor, nullptr);
  const std::vector<Narrow> found = values(out);
  for (std::size_t i = 0; i < found.size(); ++i)
    expect_equal(found[i], Narrow(static_cast<float>(from[i] * factor)), "the 16-bit number",
                 static_cast<double>(from[i]));
}

template <class T, class Narrow>
void widening() {
  std::vector<Narrow> from(1u << 16);
  for (std::size_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<std::uint16_t>(i);
  const device_array<Narrow> in(from);
  const device_array<T> out(from.size());
  kernels::widen(out.data(), in.data(), from.size(), nullptr);
  const std::vector<T> found = values(out);
  for (std::size_t i = 0; i < found.size(); ++i)
    expect_equal(found[i], static_cast<float>(from[i]), "the wide number", static_cast<double>(from[i]));
}

template <class Narrow>
void both_ways() {
  narrowing<Narrow>(1.0f);
  narrowing<Narrow>(0.25f);
  narrowing<Narrow>(1.0);
  narrowing<Narrow>(0.25);
  widening<float, Narrow>();
  widening<double, Narrow>();
}

// What has them launched in training compiles, at least.
using communicator = ddpp::communicator<ddpp::nccl>;
[[maybe_unused]] void (ddpp::hooks::fp16_compress<>::*const fp16)(communicator&, ddpp::gradient_bucket&) =
    &ddpp::hooks::fp16_compress<>::operator();
[[maybe_unused]] void (ddpp::hooks::bf16_compress<>::*const bf16)(communicator&, ddpp::gradient_bucket&) =
    &ddpp::hooks::bf16_compress<>::operator();

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skip gpu_kernels: there is no CUDA device\n0 passed, 0 failed, 1 skipped");
    return 0;
  }
  try {
    both_ways<ddpp::half>();
    both_ways<ddpp::bfloat16>();
    std::puts("1 passed, 0 failed, 0 skipped");
  } catch (const std::exception& error) {
    std::printf("FAIL gpu_kernels: %s\n0 passed, 1 failed, 0 skipped\n", error.what());
    return 1;
  }
}
