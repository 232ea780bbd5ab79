// SPDX-License-Identifier: BSL-1.0
// Element loops on vectors, on every set of instructions that this processor has, against one element at a
// time: the same bits for every type, operation, count and alignment.
#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/copy.hpp>
#include <ddpp/detail/instruction_set.hpp>
#include <ddpp/detail/scaling.hpp>
#include <ddpp/detail/vector_loops.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

using namespace ddpp;
using namespace ddpp::detail;

namespace {

template <class T>
using bits_of =
    std::conditional_t<sizeof(T) == 1, std::uint8_t,
                       std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                          std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

template <class T>
bits_of<T> bits(T value) {
  return std::bit_cast<bits_of<T>>(value);
}

/// Bits of the exponent, and the bit that makes a NaN quiet.
template <class T>
constexpr bits_of<T> exponent_bits = dtype_of<T> == dtype::float16    ? 0x7c00
                                     : dtype_of<T> == dtype::bfloat16 ? 0x7f80
                                     : sizeof(T) == 4                 ? 0x7f800000
                                                                      : bits_of<T>(0x7ff0000000000000u);
template <class T>
constexpr bits_of<T> sign_bit = bits_of<T>(bits_of<T>(1) << (8 * sizeof(T) - 1));
template <class T>
constexpr bits_of<T> quiet_bit = bits_of<T>((exponent_bits<T> >> 1) & ~exponent_bits<T>);

template <class T>
bool is_nan(T value) {
  return bits_of<T>(bits(value) & ~sign_bit<T>) > exponent_bits<T>;
}

std::uint64_t random_bits() {
  static std::uint64_t state = 1;
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Zeros, infinities, NaNs and the least and greatest numbers as often as any bits and small numbers.
template <class T>
T random_value() {
  const std::uint64_t choice = random_bits() % 16, any = random_bits();
  if constexpr (!real_number<T>) {
    if (choice == 0) return std::numeric_limits<T>::min();
    if (choice == 1) return std::numeric_limits<T>::max();
    if (choice == 2) return T(0);
    return static_cast<T>(any);
  } else {
    using B = bits_of<T>;
    const B sign = (any & 1) != 0 ? sign_bit<T> : B(0),
            payload = static_cast<B>((any >> 1) & (quiet_bit<T> - 1));
    B magnitude = 0;
    switch (choice) {
      case 0:
      case 1:
        break;
      case 2:
        magnitude = exponent_bits<T>;
        break;
      case 3:
        magnitude = static_cast<B>(exponent_bits<T> | quiet_bit<T> | payload);
        break;
      case 4:
        magnitude = static_cast<B>(exponent_bits<T> | payload | 1);  // a signalling one
        break;
      case 5:
        magnitude = payload;  // below the least normal number
        break;
      case 6:
        magnitude = static_cast<B>(exponent_bits<T> - 1 - payload % 8);  // just below infinity
        break;
      case 7:
      case 8:
      case 9:
        return T(static_cast<float>(static_cast<std::int64_t>(any % 4001) - 2000) / 16);
      default:
        return std::bit_cast<T>(static_cast<B>(any));
    }
    return std::bit_cast<T>(static_cast<B>(magnitude | sign));
  }
}

std::vector<instruction_set> instruction_sets() {
  std::vector<instruction_set> sets;
  for (const auto set : {instruction_set::scalar, instruction_set::sse2, instruction_set::avx2})
    if (set <= best_instruction_set()) sets.push_back(set);
  return sets;
}

/// Elements at any address, with bytes around them that must not change.
template <class T>
class unaligned_array {
 public:
  unaligned_array(std::size_t count, std::size_t skew)
      : room_(before + count * sizeof(T) + 2 * 64, fill), at_(before + skew) {}

  T* data() { return reinterpret_cast<T*>(room_.data() + at_); }
  T get(std::size_t i) const {
    T value;
    std::memcpy(&value, room_.data() + at_ + i * sizeof(T), sizeof value);
    return value;
  }
  void set(const std::vector<T>& values, std::size_t count) {
    if (count != 0)
      std::memcpy(room_.data() + at_, static_cast<const void*>(values.data()), count * sizeof(T));
  }
  bool is_untouched_around(std::size_t count) const {
    for (std::size_t i = 0; i < room_.size(); ++i)
      if ((i < at_ || i >= at_ + count * sizeof(T)) && room_[i] != fill) return false;
    return true;
  }

 private:
  static constexpr std::size_t before = 64;
  static constexpr auto fill = std::byte{0xa5};
  std::vector<std::byte> room_;
  std::size_t at_;
};

/// What one element must become. Of two NaNs that are added or multiplied, either may be the result.
template <class T>
struct expectation {
  T value{};
  std::vector<T> nans = {};

  bool is_met_by(T result) const {
    if (nans.empty()) return bits(result) == bits(value);
    for (const T nan : nans)
      if (bits(result) == bits_of<T>(bits(nan) | quiet_bit<T>)) return true;
    return false;
  }
};

constexpr std::size_t most = 70;

/// Runs `how` on inputs.size() operands of every length up to 70 and some greater, at odd addresses, in place
/// and apart.
template <class How, class From, class To>
bool is_right(const How& how, const std::vector<std::vector<From>>& inputs,
              const std::vector<expectation<To>>& expected) {
  const int n = static_cast<int>(inputs.size());
  for (const instruction_set set : instruction_sets()) {
    for (std::size_t count = 0; count <= expected.size(); count += count < most ? 1 : 77) {
      const std::size_t skew = count % (sizeof(From) + 3);
      std::vector<unaligned_array<From>> operands;
      std::vector<const From*> addresses;
      for (std::size_t k = 0; k < inputs.size(); ++k) operands.emplace_back(count, (skew + 5 * k) % 32);
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        operands[k].set(inputs[k], count);
        addresses.push_back(operands[k].data());
      }
      const auto agrees = [&](const auto& results) {
        for (std::size_t i = 0; i < count; ++i)
          if (!expected[i].is_met_by(results.get(i))) return false;
        return results.is_untouched_around(count);
      };
      unaligned_array<To> apart(count, (skew + 7) % 32);
      calculate_elements_with(set, apart.data(), addresses.data(), n, count, how);
      if (!agrees(apart)) return false;
      if constexpr (std::is_same_v<From, To>) {
        auto& place = operands[count % operands.size()];
        calculate_elements_with(set, place.data(), addresses.data(), n, count, how);
        if (!agrees(place)) return false;
      }
    }
  }
  return true;
}

template <class T>
std::vector<std::vector<T>> random_inputs(std::size_t n, std::size_t count) {
  std::vector<std::vector<T>> inputs(n);
  for (auto& input : inputs)
    for (std::size_t i = 0; i < count; ++i) input.push_back(random_value<T>());
  return inputs;
}

constexpr std::size_t elements = 700;

template <class T, class Op>
void check_fold(const Op& op) {
  for (const std::size_t n : {2u, 3u, 5u}) {
    const auto inputs = random_inputs<T>(n, elements);
    std::vector<expectation<T>> expected;
    for (std::size_t i = 0; i < elements; ++i) {
      expectation<T> e{inputs[0][i]};
      for (std::size_t k = 1; k < n; ++k) {
        const T x = inputs[k][i];
        if constexpr (real_number<T> && (std::is_same_v<Op, sum_t> || std::is_same_v<Op, prod_t>)) {
          if (is_nan(e.value) && is_nan(x)) {
            if (e.nans.empty()) e.nans = {e.value};
            e.nans.push_back(x);
          }
        }
        e.value = op(e.value, x);
      }
      expected.push_back(e);
    }
    CAPTURE(name_of(dtype_of<T>));
    CAPTURE(n);
    CHECK(is_right(fold<operand_t<T, Op>, Op>(), inputs, expected));
  }
}

template <class T>
void check_folds() {
  check_fold<T>(sum);
  check_fold<T>(prod);
  check_fold<T>(ddpp::min);
  check_fold<T>(ddpp::max);
  if constexpr (std::is_integral_v<T>) {
    check_fold<T>(band);
    check_fold<T>(bor);
    check_fold<T>(bxor);
  }
}

template <class T>
void check_quotients() {
  using number = arithmetic_t<T>;
  for (const std::size_t n : {1u, 2u, 3u, 5u}) {
    for (const int divisor : {1, 3, 8}) {
      const auto inputs = random_inputs<T>(n, elements);
      std::vector<expectation<T>> expected;
      for (std::size_t i = 0; i < elements; ++i) {
        auto total = static_cast<number>(inputs[0][i]);
        expectation<T> e;
        for (std::size_t k = 1; k < n; ++k) {
          if (is_nan(total) && is_nan(inputs[k][i])) {
            if (e.nans.empty()) e.nans = {T(total)};
            e.nans.push_back(inputs[k][i]);
          }
          total += static_cast<number>(inputs[k][i]);
        }
        e.value = T(total / static_cast<number>(divisor));
        expected.push_back(e);
      }
      CAPTURE(name_of(dtype_of<T>));
      CAPTURE(n);
      CAPTURE(divisor);
      CHECK(is_right(quotient_of_sum<T>(divisor), inputs, expected));
    }
  }
}

template <class From, class To>
void check_products() {
  using number = arithmetic_t<From>;
  for (const double factor : {1.0, 3.0, 0.3, -1e-3}) {
    const auto by = static_cast<number>(factor);
    const auto inputs = random_inputs<From>(1, elements);
    std::vector<expectation<To>> expected;
    for (const From x : inputs[0])
      expected.push_back({To(calculate(static_cast<number>(x), by, [](auto a, auto b) { return a * b; }))});
    CAPTURE(name_of(dtype_of<From>));
    CAPTURE(factor);
    using operand = operand_t<From, prod_t>;
    using result = operand_t<To, prod_t>;
    CHECK(is_right(product<operand, result>{static_cast<arithmetic_t<operand>>(by)}, inputs, expected));
  }
}

template <class From, class To>
std::vector<To> converted(instruction_set set, const std::vector<From>& from) {
  std::vector<To> to(from.size());
  const From* const operand = from.data();
  calculate_elements_with(set, to.data(), &operand, 1, from.size(), conversion<From, To>());
  return to;
}

/// The finite 16-bit float that these bits are, by the definition of the format.
template <class T>
double value_of(std::uint32_t bits) {
  constexpr int mantissa_bits = dtype_of<T> == dtype::float16 ? 10 : 7,
                bias = dtype_of<T> == dtype::float16 ? 15 : 127;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> mantissa_bits);
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

template <class T>
void check_widening() {
  std::vector<T> all;
  for (std::uint32_t i = 0; i < 0x10000; ++i) all.push_back(std::bit_cast<T>(static_cast<std::uint16_t>(i)));
  for (const instruction_set set : instruction_sets()) {
    const std::vector<float> wide = converted<T, float>(set, all);
    bool right = true;
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const float result = wide[i];
      right = right && std::signbit(result) == ((i & 0x8000u) != 0);
      if (is_nan(all[i])) {
        constexpr int shift = dtype_of<T> == dtype::float16 ? 13 : 16;
        const std::uint32_t payload = (i & ~std::uint32_t{exponent_bits<T>} & 0x7fffu) << shift;
        // Halves become quiet. bfloat16s are the upper half of a float.
        const std::uint32_t quiet = dtype_of<T> == dtype::float16 ? 0x400000u : 0;
        right = right && (bits(result) & 0x7fffffffu) == (0x7f800000u | quiet | payload);
      } else if ((i & exponent_bits<T>) == exponent_bits<T>) {
        right = right && std::isinf(result);
      } else {
        right = right && double{result} == value_of<T>(i);
      }
    }
    CAPTURE(static_cast<int>(set));
    CHECK(right);
  }
}

/// Whether the finite `result` is the 16-bit float nearest to the finite x, the even one of two. What would
/// be the number after the greatest stands for infinity.
template <class T>
bool is_nearest(float x, std::uint16_t result) {
  const std::uint32_t magnitude = result & 0x7fffu;
  if (magnitude > exponent_bits<T> || ((result & 0x8000u) != 0) != std::signbit(x)) return false;
  const double target = std::abs(double{x}), here = value_of<T>(magnitude);
  const double up =
      magnitude == exponent_bits<T> ? std::numeric_limits<double>::infinity() : value_of<T>(magnitude + 1);
  const bool even = magnitude % 2 == 0;
  const double to_here =
      magnitude == exponent_bits<T> ? std::max(here - target, 0.0) : std::abs(target - here);
  if (up - target < to_here || (up - target == to_here && !even)) return false;
  if (magnitude == 0) return true;
  const double down = value_of<T>(magnitude - 1);
  return target - down > to_here || (target - down == to_here && even);
}

template <class T>
void check_narrowing() {
  std::vector<float> floats;
  const auto add_with_neighbours = [&](float x) {
    for (const float y :
         {std::nextafter(x, 0.0f), x, std::nextafter(x, std::numeric_limits<float>::infinity())}) {
      floats.push_back(y);
      floats.push_back(-y);
    }
  };
  for (std::uint32_t i = 0; i < exponent_bits<T>; ++i) {
    add_with_neighbours(static_cast<float>(value_of<T>(i)));
    const double middle = (value_of<T>(i) + value_of<T>(i + 1)) / 2;
    if (middle <= double{std::numeric_limits<float>::max()}) add_with_neighbours(static_cast<float>(middle));
  }
  for (int i = 0; i < 100'000; ++i) floats.push_back(random_value<float>());
  for (const instruction_set set : instruction_sets()) {
    const std::vector<T> narrow = converted<float, T>(set, floats);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const float x = floats[i];
      const std::uint16_t result = bits(narrow[i]);
      const std::uint32_t sign = (bits(x) >> 16) & 0x8000u;
      if (is_nan(x)) {
        constexpr int shift = dtype_of<T> == dtype::float16 ? 13 : 16;
        const std::uint32_t payload = (bits(x) & 0x7fffffu) >> shift;
        wrong += result != (sign | exponent_bits<T> | quiet_bit<T> | payload);
      } else if (std::isinf(x)) {
        wrong += result != (sign | exponent_bits<T>);
      } else {
        wrong += !is_nearest<T>(x, result);
      }
    }
    CAPTURE(static_cast<int>(set));
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("named operations give the bits of one element at a time: integers") {
  check_folds<std::int8_t>();
  check_folds<std::uint8_t>();
  check_folds<std::int16_t>();
  check_folds<std::uint16_t>();
  check_folds<std::int32_t>();
  check_folds<std::uint32_t>();
  check_folds<std::int64_t>();
  check_folds<std::uint64_t>();
}

TEST_CASE("named operations give the bits of one element at a time: floats") {
  check_folds<half>();
  check_folds<bfloat16>();
  check_folds<float>();
  check_folds<double>();
}

TEST_CASE("sums in float and quotients are rounded once") {
  check_quotients<half>();
  check_quotients<bfloat16>();
  check_quotients<float>();
  check_quotients<double>();
}

TEST_CASE("products with a factor") {
  check_products<std::int8_t, std::int8_t>();
  check_products<std::uint64_t, std::uint64_t>();
  check_products<half, half>();
  check_products<bfloat16, bfloat16>();
  check_products<float, float>();
  check_products<double, double>();
  check_products<float, half>();
  check_products<float, bfloat16>();
}

TEST_CASE("every half and bfloat16 as float") {
  check_widening<half>();
  check_widening<bfloat16>();
}

TEST_CASE("floats are rounded to the nearest half and bfloat16, ties to even") {
  check_narrowing<half>();
  check_narrowing<bfloat16>();
}

namespace {

/// Codes count up with the numbers that they stand for, so that neighbours' middle decides. `largest` is the
/// last finite one.
template <class T>
void check_float8(int mantissa, int bias, int largest) {
  const auto exact = [&](int code) {
    const int exponent = code >> mantissa, rest = code & ((1 << mantissa) - 1);
    return exponent == 0 ? std::ldexp(rest, 1 - bias - mantissa)
                         : std::ldexp((1 << mantissa) + rest, exponent - bias - mantissa);
  };
  const auto code_of = [](double value) { return static_cast<int>(T(static_cast<float>(value)).bits); };
  for (int code = 0; code <= largest; ++code) {
    CAPTURE(code);
    T number;
    number.bits = static_cast<std::uint8_t>(code);
    CHECK(static_cast<double>(number) == exact(code));
    CHECK(code_of(exact(code)) == code);
    CHECK(code_of(-exact(code)) == code + 0x80);
    if (code == largest) break;
    const double middle = (exact(code) + exact(code + 1)) / 2;
    CHECK(code_of(middle) == (code % 2 == 0 ? code : code + 1));
    CHECK(code_of(middle * (1 - 0x1p-20)) == code);
    CHECK(code_of(middle * (1 + 0x1p-20)) == code + 1);
  }
  CHECK(code_of(2 * exact(largest)) == largest);
  CHECK(code_of(-std::numeric_limits<double>::infinity()) == largest + 0x80);
  CHECK(std::isnan(static_cast<float>(T(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace

TEST_CASE(
    "8-bit floats: every number, and floats rounded to the nearest, ties to even, the largest where beyond") {
  check_float8<ddpp::float8_e4m3>(3, 7, 0x7e);
  check_float8<ddpp::float8_e5m2>(2, 15, 0x7b);
  ddpp::float8_e5m2 infinite;
  infinite.bits = 0x7c;
  CHECK(static_cast<float>(infinite) == std::numeric_limits<float>::infinity());
}

namespace {

template <class T, class Op>
void check_many_operands(const Op& op, T (*value)(std::size_t)) {
  constexpr std::size_t count = 9000;
  for (const std::size_t n : {1u, 2u, 3u, 8u, 9u, 15u, 16u, 40u}) {
    std::vector<std::vector<T>> inputs(n);
    std::vector<T> expected;
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < count; ++i) inputs[k].push_back(value(i * n + k));
    for (std::size_t i = 0; i < count; ++i) {
      T total = inputs[0][i];
      for (std::size_t k = 1; k < n; ++k) total = op(total, inputs[k][i]);
      expected.push_back(total);
    }
    const auto agrees = [&](const std::vector<T>& result) {
      return std::memcmp(result.data(), expected.data(), count * sizeof(T)) == 0;
    };
    std::vector<const T*> operands;
    for (const auto& input : inputs) operands.push_back(input.data());
    std::vector<T> apart(expected.rbegin(), expected.rend());
    CAPTURE(n);
    reduce_operands(apart.data(), operands.data(), static_cast<int>(n), count, op);
    CHECK(agrees(apart));
    auto& last = inputs.back();
    reduce_operands(last.data(), operands.data(), static_cast<int>(n), count, op);
    CHECK(agrees(last));
  }
}

/// Not default constructible, and associative but not commutative.
struct affine {
  float slope, offset;
  affine(float a, float b) : slope(a), offset(b) {}
};
constexpr auto compose = [](affine a, affine b) {
  return affine(a.slope * b.slope, a.slope * b.offset + a.offset);
};

template <class T>
std::vector<T> small_numbers(std::size_t count) {
  std::vector<T> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(T(static_cast<float>(random_bits() % 10)));
  return numbers;
}

template <class T>
void check_average() {
  constexpr std::size_t count = 5000;
  for (const int n : {1, 2, 3, 12}) {
    std::vector<std::vector<T>> inputs;
    std::vector<const T*> operands;
    for (int k = 0; k < n; ++k) inputs.push_back(small_numbers<T>(count));
    for (const auto& input : inputs) operands.push_back(input.data());
    std::vector<T> apart(count), later(count);
    sum_and_divide(apart.data(), operands.data(), n, count, n);
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) {
      double total = 0;  // exact: the numbers are small
      for (const auto& input : inputs) total += static_cast<double>(static_cast<float>(input[i]));
      right = right && apart[i] == T(static_cast<arithmetic_t<T>>(total) / static_cast<arithmetic_t<T>>(n));
    }
    CAPTURE(name_of(dtype_of<T>));
    CAPTURE(n);
    CHECK(right);
  }
}

template <class T, class Narrow>
void check_compression() {
  std::vector<T> wide, back(3000);
  for (std::size_t i = 0; i < back.size(); ++i)
    wide.push_back(T(static_cast<float>(random_bits() % 4001) / 37 - 50));
  std::vector<Narrow> narrow(wide.size());
  const auto factor = static_cast<T>(0.3);
  narrow_scaled(narrow.data(), wide.data(), wide.size(), factor);
  widen(back.data(), narrow.data(), narrow.size());
  bool right = true;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const auto expected = Narrow(static_cast<float>(wide[i] * factor));
    right =
        right && bits(narrow[i]) == bits(expected) && back[i] == static_cast<T>(static_cast<float>(expected));
  }
  CHECK(right);
}

}  // namespace

TEST_CASE("many operands are reduced in the order given, also into one of them") {
  check_many_operands<float>(sum, [](std::size_t i) { return static_cast<float>(i % 1000) * 0.37f; });
  check_many_operands<half>(sum, [](std::size_t i) { return half(static_cast<float>(i % 10) * 0.37f); });
  check_many_operands<std::int16_t>(prod, [](std::size_t i) { return static_cast<std::int16_t>(i | 1); });
  check_many_operands<float>([](float a, float b) { return a + b; },
                             [](std::size_t i) { return static_cast<float>(i % 1000) * 0.37f; });
  check_many_operands<affine>(
      compose, [](std::size_t i) { return affine(i % 3 == 0 ? -1.0f : 1.0f, static_cast<float>(i % 7)); });
}

TEST_CASE("a result goes to several places, which may be operands") {
  for (const std::size_t n : {2u, 3u, 12u}) {
    for (std::size_t count : {1u, 5u, 8u, 31u, 200u}) {
      std::vector<std::vector<float>> inputs(n);
      for (auto& input : inputs) input = small_numbers<float>(count);
      std::vector<const float*> operands;
      for (const auto& input : inputs) operands.push_back(input.data());
      std::vector<float> totals(count), apart(count), averages(count);
      for (std::size_t i = 0; i < count; ++i)
        for (const auto& input : inputs) totals[i] += input[i];  // exact
      float* const fresh[] = {apart.data(), averages.data()};
      sum_and_divide_into_all(fresh, 2, operands.data(), static_cast<int>(n), count, 4);
      bool right = true;
      for (std::size_t i = 0; i < count; ++i)
        right = right && averages[i] == totals[i] / 4 && apart[i] == averages[i];
      float* const places[] = {inputs[1].data(), apart.data(), inputs[0].data()};
      reduce_operands_into_all(places, 3, operands.data(), static_cast<int>(n), count, sum);
      CAPTURE(n);
      CAPTURE(count);
      CHECK(right);
      CHECK(inputs[1] == totals);
      CHECK(apart == totals);
      CHECK(inputs[0] == totals);
    }
  }
}

TEST_CASE("averages") {
  check_average<std::int8_t>();
  check_average<std::uint64_t>();
  check_average<half>();
  check_average<bfloat16>();
  check_average<float>();
  check_average<double>();
}

TEST_CASE("integers are divided toward zero, also where the divisor does not fit") {
  std::vector<std::int8_t> bytes = {-128, -7, 7, 127};
  divide(bytes.data(), bytes.size(), 2);
  CHECK(bytes == std::vector<std::int8_t>{-64, -3, 3, 63});
  divide(bytes.data(), bytes.size(), 300);
  CHECK(bytes == std::vector<std::int8_t>{0, 0, 0, 0});
}

TEST_CASE("gradients are scaled in place and apart, and compressed to 16 bits") {
  auto values = small_numbers<bfloat16>(100);
  std::vector<bfloat16> apart(values.size());
  copy_scaled(apart.data(), values.data(), values.size(), 0.3);
  std::vector<bfloat16> expected;
  for (const bfloat16 x : values) expected.emplace_back(x * 0.3f);
  scale(std::span(values), 0.3);
  CHECK(apart == expected);
  CHECK(values == expected);
  check_compression<float, half>();
  check_compression<float, bfloat16>();
  check_compression<double, half>();
  check_compression<double, bfloat16>();
}

TEST_CASE("lines are copied whatever the width of a register") {
  std::vector<std::byte> from(700), to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  const auto check = [&](auto copy) {
    bool right = true;
    for (std::size_t length = 64; length < 600; ++length) {
      const std::size_t from_at = length % 33, to_at = 1 + length % 31;
      to.assign(from.size(), std::byte{0xee});
      copy(to.data() + to_at, from.data() + from_at, length);
      right = right && std::memcmp(to.data() + to_at, from.data() + from_at, length) == 0 &&
              to[to_at - 1] == std::byte{0xee} && to[to_at + length] == std::byte{0xee};
    }
    CHECK(right);
  };
  check(copy_lines<16>);
#if defined(__x86_64__)
  if (best_instruction_set() >= instruction_set::avx2) check(copy_lines_avx2);
#endif
}
