// SPDX-License-Identifier: BSL-1.0
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/launch.hpp>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <random>
#include <vector>

#include "../support/ranks.hpp"

namespace {

using Eigen::Dynamic;
using Eigen::MatrixXd;
using Eigen::MatrixXf;
using row_major = Eigen::Matrix<float, Dynamic, Dynamic, Eigen::RowMajor>;
template <class X>
X& lvalue();

// Plain objects and maps over plain memory.
static_assert(ddpp::mutable_buffer<MatrixXf&>);
static_assert(ddpp::mutable_buffer<row_major&>);
static_assert(ddpp::mutable_buffer<Eigen::Matrix3d&>);
static_assert(ddpp::mutable_buffer<Eigen::VectorXf&>);
static_assert(ddpp::mutable_buffer<Eigen::ArrayXXd&>);
static_assert(ddpp::mutable_buffer<Eigen::Map<MatrixXd>>);
static_assert(ddpp::mutable_buffer<Eigen::Map<MatrixXd>&>);
static_assert(ddpp::mutable_buffer<const Eigen::Map<MatrixXd>&>);
static_assert(ddpp::mutable_buffer<Eigen::Ref<MatrixXd>>);
static_assert(ddpp::mutable_buffer<Eigen::Ref<Eigen::VectorXf>>);
static_assert(ddpp::mutable_buffer<Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<1>>>);
static_assert(ddpp::mutable_buffer<Eigen::Map<Eigen::Array4f, Eigen::Aligned16>>);

// Whole columns or rows, whichever lie together, and segments of vectors.
static_assert(ddpp::mutable_buffer<decltype(lvalue<MatrixXf>().col(0))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<MatrixXf>().middleCols(0, 2))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<MatrixXf>().middleCols(0, 2).leftCols(1))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<row_major>().row(0))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<row_major>().topRows(2))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<Eigen::VectorXf>().segment(0, 2))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<Eigen::RowVectorXf>().head<2>())>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<Eigen::Map<Eigen::VectorXd>>().tail(1))>);
static_assert(ddpp::mutable_buffer<decltype(lvalue<MatrixXf>().col(0).head(2))>);
static_assert(std::same_as<ddpp::element_t<MatrixXf&>, float>);

// Constant ones can be sent but not written.
static_assert(ddpp::buffer<const MatrixXf&> && !ddpp::mutable_buffer<const MatrixXf&>);
static_assert(ddpp::buffer<Eigen::Map<const MatrixXd>> && !ddpp::mutable_buffer<Eigen::Map<const MatrixXd>>);
static_assert(ddpp::buffer<const Eigen::Matrix2f&> && !ddpp::mutable_buffer<const Eigen::Matrix2f&>);
static_assert(ddpp::buffer<decltype(lvalue<const MatrixXf>().col(0))> &&
              !ddpp::mutable_buffer<decltype(lvalue<const MatrixXf>().col(0))>);
static_assert(ddpp::buffer<const Eigen::Ref<const MatrixXd>&> &&
              !ddpp::mutable_buffer<const Eigen::Ref<const MatrixXd>&>);

// What has, or may have, gaps by its type; and what has no memory at all.
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().row(0))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().row(0).head(2))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().row(0).col(0))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().topRows(1))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().topRows(1).leftCols(2))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().block(0, 0, 1, 1))>);
static_assert(!ddpp::buffer<decltype(lvalue<Eigen::Matrix4f>().block<2, 2>(0, 0))>);
static_assert(!ddpp::buffer<decltype(lvalue<row_major>().leftCols(1))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().diagonal())>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().transpose())>);
static_assert(!ddpp::buffer<decltype(lvalue<row_major>().col(0))>);
static_assert(!ddpp::buffer<Eigen::Map<MatrixXd, 0, Eigen::OuterStride<>>>);
static_assert(!ddpp::buffer<Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<2>>>);
static_assert(!ddpp::buffer<Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<>>>);
static_assert(
    !ddpp::buffer<decltype(lvalue<Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<2>>>().head(2))>);
static_assert(!ddpp::buffer<Eigen::Ref<Eigen::VectorXd, 0, Eigen::InnerStride<>>>);
static_assert(!ddpp::buffer<decltype((lvalue<Eigen::VectorXf>() * 2.0f).head(2))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>() + lvalue<MatrixXf>())>);

// An asynchronous operation may keep a map, but not a matrix that is about to go.
static_assert(ddpp::detail::outlives_the_call<Eigen::Map<MatrixXd>>);
static_assert(ddpp::detail::outlives_the_call<Eigen::Map<const MatrixXd>>);
static_assert(ddpp::detail::outlives_the_call<decltype(lvalue<MatrixXf>().col(0))>);
static_assert(!ddpp::detail::outlives_the_call<Eigen::Ref<const MatrixXd>>);
static_assert(!ddpp::detail::outlives_the_call<MatrixXd>);

// 16-bit floats of either library are the same elements.
static_assert(sizeof(Eigen::half) == 2 && sizeof(Eigen::bfloat16) == 2);
static_assert(ddpp::dtype_of<Eigen::half> == ddpp::dtype_of<ddpp::half>);
static_assert(ddpp::dtype_of<Eigen::bfloat16> == ddpp::dtype_of<ddpp::bfloat16>);
static_assert(ddpp::mutable_buffer<Eigen::Matrix<Eigen::half, Dynamic, Dynamic>&>);
static_assert(ddpp::reduction_op<ddpp::sum_t, Eigen::half> &&
              ddpp::reduction_op<ddpp::avg_t, Eigen::bfloat16>);
static_assert(ddpp::reduction_op<ddpp::min_t, Eigen::half> &&
              ddpp::reduction_op<ddpp::premul_sum_t<float>, Eigen::half>);

template <class Ours, class Theirs>
void check_same_numbers() {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto ours = std::bit_cast<Ours>(static_cast<std::uint16_t>(bits));
    const auto theirs = std::bit_cast<Theirs>(static_cast<std::uint16_t>(bits));
    const float a = static_cast<float>(ours), b = static_cast<float>(theirs);
    const bool same =
        std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    REQUIRE_MESSAGE(same, bits);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {  // all exponents, ties among them
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 3 == 0) bits = (bits & 0xffff'0000u) | 0x8000u;
    if (i % 3 == 1) bits = (bits & 0xffff'e000u) | 0x1000u;
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    REQUIRE_MESSAGE(Ours(value).bits == std::bit_cast<std::uint16_t>(Theirs(value)), bits);
  }
}

/// Rank 0 brings ddpp's type, rank 1 Eigen's, rank 2 a matrix of those.
template <class Ours, class Theirs, class F>
void on_ranks_of_each_type(F f) {
  ddpp::launch<ddpp::threads>(3, [&](auto& comm) {
    const auto value = [&](std::size_t i) {
      return static_cast<float>((i * 7 + 1) % 13) * 0.25f - float(comm.rank());
    };
    constexpr std::size_t count = 60;
    if (comm.rank() == 0) {
      std::vector<Ours> x(count);
      for (std::size_t i = 0; i < count; ++i) x[i] = Ours(value(i));
      f(comm, x);
    } else if (comm.rank() == 1) {
      std::vector<Theirs> x(count);
      for (std::size_t i = 0; i < count; ++i) x[i] = Theirs(value(i));
      f(comm, x);
    } else {
      Eigen::Matrix<Theirs, Dynamic, Dynamic> x(6, 10);
      for (std::size_t i = 0; i < count; ++i) x.data()[i] = Theirs(value(i));
      f(comm, x);
    }
  });
}

template <class Ours, class Theirs>
void check_mixed_ranks() {
  on_ranks_of_each_type<Ours, Theirs>([](auto& comm, auto& x) {
    const auto element = [&](std::size_t i) { return static_cast<float>(x.data()[i]); };
    const auto base = [](std::size_t i) { return static_cast<float>((i * 7 + 1) % 13) * 0.25f; };
    const auto check = [&](auto op, auto expected) {
      auto y = x;
      ddpp::all_reduce(comm, y, op);
      for (std::size_t i = 0; i < 60; ++i) EXPECT(static_cast<float>(y.data()[i]) == expected(i));
    };
    check(ddpp::sum, [&](std::size_t i) { return 3 * base(i) - 3; });
    check(ddpp::avg, [&](std::size_t i) { return static_cast<float>(Ours((3 * base(i) - 3) / 3)); });
    check(ddpp::min, [&](std::size_t i) { return base(i) - 2; });
    check(ddpp::max, [&](std::size_t i) { return base(i); });
    check(ddpp::premul_sum(0.5f), [&](std::size_t i) { return (3 * base(i) - 3) / 2; });
    ddpp::broadcast(comm, x, 2);
    for (std::size_t i = 0; i < 60; ++i) EXPECT(element(i) == base(i) - 2);
  });
}

}  // namespace

TEST_CASE("Eigen's 16-bit floats have the bits of ddpp's, and ranks may mix them") {
  check_same_numbers<ddpp::half, Eigen::half>();
  check_same_numbers<ddpp::bfloat16, Eigen::bfloat16>();
  check_mixed_ranks<ddpp::half, Eigen::half>();
  check_mixed_ranks<ddpp::bfloat16, Eigen::bfloat16>();
}

TEST_CASE("elements are those in memory, in the order of storage") {
  MatrixXf m(2, 3);
  m << 1, 2, 3, 4, 5, 6;
  const auto elements = ddpp::as_span(m);
  CHECK(std::vector<float>(elements.begin(), elements.end()) == std::vector<float>{1, 4, 2, 5, 3, 6});
  CHECK(ddpp::as_span(Eigen::Map<MatrixXf>(m.data(), 3, 2)).data() == m.data());
  MatrixXf empty;
  CHECK(ddpp::as_span(empty).empty());
}

TEST_CASE("a reference to part of a matrix is a buffer only without gaps") {
  MatrixXd m = MatrixXd::Zero(4, 4);
  const Eigen::Ref<MatrixXd> whole(m), columns(m.middleCols(1, 2)), corner(m.topRows(2));
  CHECK(ddpp::as_span(whole).size() == 16);
  CHECK(ddpp::as_span(columns).data() == m.data() + 4);
  CHECK_THROWS_AS(ddpp::as_span(corner), ddpp::usage_error);
  Eigen::Ref<MatrixXd> top(corner);
  CHECK_THROWS_AS(ddpp::as_span(top.leftCols(2)), ddpp::usage_error);
  CHECK(ddpp::as_span(top.col(3)).data() == m.data() + 12);
}

TEST_CASE("parts of matrices without gaps are sent and received where they lie") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    const float mine = float(comm.rank() + 1);
    MatrixXf all = MatrixXf::Zero(3, 6);
    const MatrixXf keys = MatrixXf::Constant(3, 2, mine);
    ddpp::all_gather(comm, keys, all.middleCols(1, 4));
    EXPECT(all.middleCols(1, 2).isConstant(1) && all.middleCols(3, 2).isConstant(2));
    EXPECT(all.col(0).isZero() && all.col(5).isZero());

    row_major rows = row_major::Constant(3, 5, mine);
    auto pending = ddpp::all_reduce_async(comm, rows.row(1));
    pending.wait();
    EXPECT(rows.row(0).isConstant(mine) && rows.row(1).isConstant(3) && rows.row(2).isConstant(mine));

    const std::vector<double> raw = {mine, 2 * mine, 3 * mine};
    Eigen::Vector3d sum;
    ddpp::all_reduce(comm, Eigen::Map<const Eigen::Vector3d>(raw.data()), sum);
    EXPECT(sum == Eigen::Vector3d(3, 6, 9));
  });
}

/// A model of one vector with its parameters as segments, and a matrix of a size fixed at compile time.
template <class Scalar>
void train_segments_and_a_fixed_matrix() {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    const auto number = [](int x) { return static_cast<Scalar>(static_cast<float>(x)); };
    Eigen::Matrix<Scalar, Dynamic, 1> values(5), gradients(5);
    Eigen::Matrix<Scalar, 2, 3> fixed, fixed_gradient;
    values.setConstant(number(comm.rank() + 1));
    fixed.setConstant(number(comm.rank() + 3));
    ddpp::distributed_data_parallel ddp(comm, {ddpp::parameter("head", values.head(2), gradients.head(2)),
                                               ddpp::parameter("tail", values.tail(3), gradients.tail(3)),
                                               ddpp::parameter("fixed", fixed, fixed_gradient)});
    EXPECT(values.isConstant(number(1)) && fixed.isConstant(number(3)));  // rank 0's
    for (int step = 0; step < 3; ++step) {
      ddp.prepare();
      gradients.head(2).setConstant(number(step + 2 * comm.rank()));
      gradients.tail(3).setConstant(number(step + 4 * comm.rank()));
      fixed_gradient.setConstant(number(step + 6 * comm.rank()));
      for (std::size_t i = 3; i-- > 0;) ddp.mark_ready(i);
      ddp.wait();
      EXPECT(gradients.head(2).isConstant(number(step + 1)));
      EXPECT(gradients.tail(3).isConstant(number(step + 2)));
      EXPECT(fixed_gradient.isConstant(number(step + 3)));
      EXPECT(ddp.template grad<Scalar>(2).data() == fixed_gradient.data());
    }
  });
}

TEST_CASE("segments and matrices of fixed size are parameters, 16-bit ones too") {
  train_segments_and_a_fixed_matrix<float>();
  train_segments_and_a_fixed_matrix<Eigen::half>();
  train_segments_and_a_fixed_matrix<Eigen::bfloat16>();
}

TEST_CASE("matrices are broadcast and trained") {
  ddpp::launch<ddpp::threads>(3, [](auto& comm) {
    row_major w = row_major::Constant(3, 5, float(comm.rank())), g = row_major::Zero(3, 5);
    Eigen::VectorXd b = Eigen::VectorXd::Constant(7, comm.rank()), gb(7);
    ddpp::broadcast(comm, w, 2);
    EXPECT(w(2, 4) == 2);
    ddpp::distributed_data_parallel ddp(comm, {ddpp::parameter("w", w, g), ddpp::parameter("b", b, gb)});
    EXPECT(b[6] == 0);
    for (int step = 0; step < 3; ++step) {
      ddp.prepare();
      g.setConstant(float(comm.rank()));
      gb.setConstant(comm.rank() + 1);
      ddp.mark_ready(0);
      ddp.mark_ready(1);
      ddp.wait();
      EXPECT(g.isConstant(1) && gb.isConstant(2));
    }
    ddp.prepare();
    gb.resize(9);
    bool noticed = false;
    try {
      ddp.mark_ready(1);
    } catch (const ddpp::reducer_error&) {
      noticed = true;
    }
    EXPECT(noticed);
  });
}
