// SPDX-License-Identifier: BSL-1.0
// The element loops of reductions: by type, operation, number of operands and instruction set, beside the
// loop that any callable gets ("callable") or one element at a time ("scalar"). Interleave them for ratios
// that a busy machine cannot spoil:
//
//     bench_element_loops --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/instruction_set.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/vector_loops.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <benchmark/benchmark.h>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace ddpp;
using namespace ddpp::detail;

const char* name_of_set(instruction_set set) {
  return set == instruction_set::avx2 ? "avx2" : set == instruction_set::sse2 ? "sse2" : "scalar";
}

template <class E>
struct operands {
  std::vector<std::vector<E>> arrays;
  std::vector<const E*> addresses;

  operands(int n, std::size_t count) : arrays(static_cast<std::size_t>(n)) {
    for (auto& array : arrays) {
      for (std::size_t i = 0; i < count; ++i)
        array.push_back(E(static_cast<float>((i * 7 + addresses.size() * 13) % 101)));
      addresses.push_back(array.data());
    }
  }
};

/// Runs loop(result, operands, n, count), whose result must be what `how` makes of single elements.
template <class How, class Loop>
void time_loop(benchmark::State& state, int n, const How& how, Loop loop) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / sizeof(typename How::from);
  const operands<typename How::from> in(n, count);
  std::vector<typename How::to> out(count), expected(count);
  calculate_elements_with(instruction_set::scalar, expected.data(), in.addresses.data(), n, count, how);
  for (auto _ : state) {
    loop(out.data(), in.addresses.data(), n, count);
    benchmark::ClobberMemory();
  }
  if (std::memcmp(out.data(), expected.data(), count * sizeof(typename How::to)) != 0)
    state.SkipWithError("a wrong result");
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

template <class Run>
void add(const std::string& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->ArgName("bytes")
      ->Arg(4 << 10)
      ->Arg(256 << 10)
      ->Arg(16 << 20);
}

template <class How>
void add_instruction_sets(const std::string& name, int n, const How& how, instruction_set least) {
  for (const auto set : {instruction_set::scalar, instruction_set::sse2, instruction_set::avx2}) {
    if (set < least || set > best_instruction_set()) continue;
    add(name + "/" + name_of_set(set), [=](benchmark::State& state) {
      time_loop(state, n, how, [&](auto* to, const auto* const* from, int some, std::size_t count) {
        calculate_elements_with(set, to, from, some, count, how);
      });
    });
  }
}

template <class E, class Op>
void add_reduction(const std::string& name, Op op) {
  for (const int n : {2, 4}) {
    const std::string full = name + "/operands:" + std::to_string(n);
    const fold<operand_t<E, Op>, Op> how;
    add(full + "/callable", [=](benchmark::State& state) {
      time_loop(state, n, how, [&](auto* to, const auto* const* from, int some, std::size_t count) {
        reduce_operands(to, from, some, count, [&](auto a, decltype(a) b) { return op(a, b); });
      });
    });
    add_instruction_sets(full, n, how, instruction_set::sse2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_reduction<float>("sum/float", sum);
  add_reduction<float>("max/float", ddpp::max);
  add_reduction<double>("sum/double", sum);
  add_reduction<half>("sum/half", sum);
  add_reduction<half>("max/half", ddpp::max);
  add_reduction<bfloat16>("sum/bfloat16", sum);
  add_reduction<std::int8_t>("prod/int8", prod);
  add_reduction<std::int32_t>("sum/int32", sum);
  add_reduction<std::int64_t>("max/int64", ddpp::max);
  constexpr auto all = instruction_set::scalar;
  add_instruction_sets("average in float/half", 4, quotient_of_sum<half>(3), all);
  add_instruction_sets("average in float/bfloat16", 4, quotient_of_sum<bfloat16>(3), all);
  add_instruction_sets("average/float", 4, quotient_of_sum<float>(3), all);
  add_instruction_sets("float to half", 1, product<float, half>{0.5f}, all);
  add_instruction_sets("float to bfloat16", 1, product<float, bfloat16>{0.5f}, all);
  add_instruction_sets("half to float", 1, conversion<half, float>(), all);
  add_instruction_sets("bfloat16 to float", 1, conversion<bfloat16, float>(), all);
  add("copy/memcpy", [](benchmark::State& state) {
    time_loop(state, 1, conversion<float, float>(),
              [](float* to, const float* const* from, int, std::size_t count) {
                std::memcpy(to, from[0], count * sizeof(float));
              });
  });
  add("copy/copy_bytes", [](benchmark::State& state) {
    time_loop(state, 1, conversion<float, float>(),
              [](float* to, const float* const* from, int, std::size_t count) {
                copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from[0]),
                           count * sizeof(float));
              });
  });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
