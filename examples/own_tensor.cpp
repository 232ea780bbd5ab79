// SPDX-License-Identifier: BSL-1.0
// A tensor class of one's own, and what makes it known to ddpp. A line is fitted with it, first in one
// process and then by two ranks (or a launcher's) that share the points, which end with the same line.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/distributed_data_parallel.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "on_ranks.hpp"

namespace {

/// A matrix whose copies, columns and transposes refer to the same elements.
class tensor {
 public:
  tensor(std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), row_stride_(columns), elements_(new float[rows * columns]()) {}

  std::size_t rows() const { return rows_; }
  std::size_t count() const { return rows_ * columns_; }
  float& operator()(std::size_t i, std::size_t j) const {
    return elements_[static_cast<std::ptrdiff_t>(i * row_stride_ + j * column_stride_)];
  }
  tensor transposed() const {
    tensor t = *this;
    std::swap(t.rows_, t.columns_);
    std::swap(t.row_stride_, t.column_stride_);
    return t;
  }
  /// Throws std::logic_error unless the elements are in memory row by row.
  float* contiguous_data() const {
    if (column_stride_ != 1 || row_stride_ != columns_)
      throw std::logic_error("the tensor is not contiguous");
    return elements_.get();
  }

 private:
  std::size_t rows_, columns_, row_stride_, column_stride_ = 1;
  std::shared_ptr<float[]> elements_;
};

}  // namespace

// snippet: traits
template <>
struct ddpp::buffer_traits<tensor> {
  static constexpr bool borrowed = true;  // a copy of a tensor refers to the same elements
  static std::span<float> span(const tensor& t) { return {t.contiguous_data(), t.count()}; }
};
// snippet end

namespace {

struct line {
  tensor slope{1, 1}, offset{1, 1}, slope_gradient{1, 1}, offset_gradient{1, 1};

  /// The gradients of the mean squared error at points [first, last), each a row (x, y).
  template <class Ready>
  void backward(const tensor& points, std::size_t first, std::size_t last, Ready ready) {
    float along = 0, across = 0;
    for (std::size_t i = first; i < last; ++i) {
      const float error = slope(0, 0) * points(i, 0) + offset(0, 0) - points(i, 1);
      along += 2 * error * points(i, 0) / static_cast<float>(last - first);
      across += 2 * error / static_cast<float>(last - first);
    }
    offset_gradient(0, 0) = across;
    ready(1);
    slope_gradient(0, 0) = along;
    ready(0);
  }
  void step(float rate) {
    slope(0, 0) -= rate * slope_gradient(0, 0);
    offset(0, 0) -= rate * offset_gradient(0, 0);
  }
};

line fit_alone(const tensor& points) {
  // snippet: alone
  line fitted;
  for (int step = 0; step < 200; ++step) {
    fitted.backward(points, 0, points.rows(), [](std::size_t) {});
    fitted.step(0.5f);
  }
  // snippet end
  return fitted;
}

template <class C>
line fit_together(C& comm, const tensor& points) {
  const std::size_t share = points.rows() / static_cast<std::size_t>(comm.size());
  const std::size_t first = share * static_cast<std::size_t>(comm.rank());
  // snippet: together
  line fitted;
  ddpp::distributed_data_parallel ddp(comm,
                                      {ddpp::parameter("slope", fitted.slope, fitted.slope_gradient),
                                       ddpp::parameter("offset", fitted.offset, fitted.offset_gradient)});
  for (int step = 0; step < 200; ++step) {
    ddp.prepare();
    fitted.backward(points, first, first + share, [&](std::size_t i) { ddp.mark_ready(i); });
    ddp.wait();
    fitted.step(0.5f);
  }
  // snippet end
  return fitted;
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

int main() {
  tensor points(64, 2);  // of y = 3 x - 2, a little off
  for (std::size_t i = 0; i < points.rows(); ++i) {
    points(i, 0) = static_cast<float>(i) / 64;
    points(i, 1) = 3 * points(i, 0) - 2 + (i % 4 < 2 ? 0.1f : -0.1f);
  }
  try {
    const int ranks = number_of_ranks(2);
    expect(points.rows() % static_cast<std::size_t>(ranks) == 0,
           "the points are not to be shared by so many ranks");
    const line alone = fit_alone(points);
    on_ranks<ddpp::shm>(ranks, [&](auto& comm) {
      const line together = fit_together(comm, points);
      expect(std::abs(together.slope(0, 0) - alone.slope(0, 0)) < 1e-3f, "the slopes differ");
      expect(std::abs(together.offset(0, 0) - alone.offset(0, 0)) < 1e-3f, "the offsets differ");

      tensor sum(2, 3);
      sum(1, 2) = 2;
      ddpp::all_reduce(comm, sum);
      expect(sum(1, 2) == 2 * static_cast<float>(ranks), "the sum is wrong");
      bool refused = false;
      try {
        ddpp::all_reduce(comm, sum.transposed());
      } catch (const std::logic_error&) {
        refused = true;
      }
      expect(refused, "a tensor that is not contiguous was taken for a buffer");
      if (comm.rank() == 0)
        std::printf("y = %.3f x %+.3f, by one process and by %d ranks\n", together.slope(0, 0),
                    together.offset(0, 0), ranks);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own_tensor: %s\n", error.what());
    return 1;
  }
}
