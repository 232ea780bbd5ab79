// SPDX-License-Identifier: BSL-1.0
// The upper rows of a column-major matrix have gaps between their columns; its left columns have none.
// needs: eigen3
// expect: error: no matching (function|constructor)
// expect: mutable_buffer
#include <ddpp/adapters/eigen.hpp>
#include <ddpp/parameter.hpp>

#include <Eigen/Core>

ddpp::parameter half_of(Eigen::MatrixXf& values, Eigen::MatrixXf& gradients) {
#ifdef WRONG
  return ddpp::parameter("half", values.topRows(2), gradients.topRows(2));
#else
  return ddpp::parameter("half", values.leftCols(2), gradients.leftCols(2));
#endif
}
