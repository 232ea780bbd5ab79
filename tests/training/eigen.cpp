// SPDX-License-Identifier: BSL-1.0
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/launch.hpp>

#include <Eigen/Core>
#include <doctest/doctest.h>
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
static_assert(std::same_as<ddpp::element_t<MatrixXf&>, float>);

// Constant ones can be sent but not written.
static_assert(ddpp::buffer<const MatrixXf&> && !ddpp::mutable_buffer<const MatrixXf&>);
static_assert(ddpp::buffer<Eigen::Map<const MatrixXd>> && !ddpp::mutable_buffer<Eigen::Map<const MatrixXd>>);

// What has, or may have, gaps by its type; and what has no memory at all.
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().row(0))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().block(0, 0, 1, 1))>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().diagonal())>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>().transpose())>);
static_assert(!ddpp::buffer<decltype(lvalue<row_major>().col(0))>);
static_assert(!ddpp::buffer<Eigen::Map<MatrixXd, 0, Eigen::OuterStride<>>>);
static_assert(!ddpp::buffer<Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<2>>>);
static_assert(!ddpp::buffer<decltype(lvalue<MatrixXf>() + lvalue<MatrixXf>())>);

// An asynchronous operation may keep a map, but not a matrix that is about to go.
static_assert(ddpp::detail::outlives_the_call<Eigen::Map<MatrixXd>>);
static_assert(!ddpp::detail::outlives_the_call<MatrixXd>);

}  // namespace

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
