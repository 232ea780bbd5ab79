// SPDX-License-Identifier: BSL-1.0
// A row of a column-major matrix is strided: it is no buffer, though it has data() and size().
// needs: eigen3
// expect: error: .*no matching function
// expect: as_span
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/ddpp.hpp>

#include <Eigen/Core>

void reduce(ddpp::communicator<ddpp::threads>& comm, Eigen::MatrixXf& matrix) {
#ifdef WRONG
  auto part = matrix.row(0);
#else
  auto& part = matrix;
#endif
  ddpp::all_reduce(comm, part);
}
