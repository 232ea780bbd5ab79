// SPDX-License-Identifier: BSL-1.0
// What a transformer is made of, on plain arrays: each layer computes its output from its input, and later
// the gradients of its parameters and of its input from the gradient of its output. All matrices are
// row-major; gradients are added to what is there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/// A matrix read by element (i, j) = data[i * row + j * column]: with the strides exchanged, its transpose.
template <class T>
struct matrix_view {
  const T* data;
  std::size_t row, column;
};

/// c += a b, where c has `rows` rows of `columns` and a has `inner` columns. Tiles of c stay in registers.
template <class T>
void multiply_add(T* c, matrix_view<T> a, const T* b, std::size_t rows, std::size_t inner,
                  std::size_t columns) {
  constexpr std::size_t height = 2, width = 16;
  std::size_t i = 0;
  for (; i + height <= rows; i += height) {
    std::size_t j = 0;
    for (; j + width <= columns; j += width) {
      T sum[height][width] = {};
      for (std::size_t k = 0; k < inner; ++k) {
        for (std::size_t r = 0; r < height; ++r) {
          const T factor = a.data[(i + r) * a.row + k * a.column];
          for (std::size_t s = 0; s < width; ++s) sum[r][s] += factor * b[k * columns + j + s];
        }
      }
      for (std::size_t r = 0; r < height; ++r) {
        for (std::size_t s = 0; s < width; ++s) c[(i + r) * columns + j + s] += sum[r][s];
      }
    }
    for (std::size_t r = i; j < columns && r < i + height; ++r) {
      for (std::size_t k = 0; k < inner; ++k) {
        const T factor = a.data[r * a.row + k * a.column];
        for (std::size_t s = j; s < columns; ++s) c[r * columns + s] += factor * b[k * columns + s];
      }
    }
  }
  for (; i < rows; ++i) {
    for (std::size_t k = 0; k < inner; ++k) {
      const T factor = a.data[i * a.row + k * a.column];
      for (std::size_t s = 0; s < columns; ++s) c[i * columns + s] += factor * b[k * columns + s];
    }
  }
}

/// The transpose of a matrix with so many rows and columns.
template <class T>
const std::vector<T>& transpose(const T* from, std::size_t rows, std::size_t columns, std::vector<T>& to) {
  to.resize(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
  return to;
}

/// A parameter and its gradient.
template <class T>
struct trained {
  T* value;
  T* gradient;
};

/// out = in weights + bias; weights have a row per input.
template <class T>
struct linear {
  trained<T> weights, bias;
  std::size_t inputs, outputs;
  std::vector<T> transposed = {};

  void forward(T* out, const T* in, std::size_t rows) const {
    for (std::size_t i = 0; i < rows; ++i) std::copy_n(bias.value, outputs, out + i * outputs);
    multiply_add(out, {in, inputs, 1}, weights.value, rows, inputs, outputs);
  }
  void backward(T* d_in, const T* d_out, const T* in, std::size_t rows) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < outputs; ++j) bias.gradient[j] += d_out[i * outputs + j];
    }
    multiply_add(weights.gradient, {in, 1, inputs}, d_out, inputs, rows, outputs);
    transpose(weights.value, inputs, outputs, transposed);
    multiply_add(d_in, {d_out, outputs, 1}, transposed.data(), rows, outputs, inputs);
  }
};

/// Each row with mean 0 and variance 1, then scaled and shifted element by element.
template <class T>
struct layer_norm {
  trained<T> scale, shift;
  std::size_t width;
  std::vector<T> normalised = {}, inverse_deviation = {};

  void forward(T* out, const T* in, std::size_t rows) {
    normalised.resize(rows * width);
    inverse_deviation.resize(rows);
    const T count = static_cast<T>(width);
    for (std::size_t i = 0; i < rows; ++i, in += width, out += width) {
      T mean = 0, variance = 0;
      for (std::size_t j = 0; j < width; ++j) mean += in[j] / count;
      for (std::size_t j = 0; j < width; ++j) variance += (in[j] - mean) * (in[j] - mean) / count;
      inverse_deviation[i] = 1 / std::sqrt(variance + T(1e-5));
      T* const unit = &normalised[i * width];
      for (std::size_t j = 0; j < width; ++j) {
        unit[j] = (in[j] - mean) * inverse_deviation[i];
        out[j] = unit[j] * scale.value[j] + shift.value[j];
      }
    }
  }
  void backward(T* d_in, const T* d_out, std::size_t rows) {
    const T count = static_cast<T>(width);
    for (std::size_t i = 0; i < rows; ++i, d_in += width, d_out += width) {
      const T* const unit = &normalised[i * width];
      T mean = 0, along = 0;  // of the gradient of `unit`, and its part along `unit`
      for (std::size_t j = 0; j < width; ++j) {
        shift.gradient[j] += d_out[j];
        scale.gradient[j] += d_out[j] * unit[j];
        mean += d_out[j] * scale.value[j] / count;
        along += d_out[j] * scale.value[j] * unit[j] / count;
      }
      for (std::size_t j = 0; j < width; ++j)
        d_in[j] += (d_out[j] * scale.value[j] - mean - unit[j] * along) * inverse_deviation[i];
    }
  }
};

/// Each position looks at itself and those before it. A row of `queries_keys_values` has the three, each of
/// `width` elements, `heads` heads beside each other.
template <class T>
struct causal_attention {
  std::size_t width, heads;
  std::vector<T> shares = {};  // how much position i takes of position j, for each window and head

  void forward(T* out, const T* queries_keys_values, std::size_t windows, std::size_t length) {
    const std::size_t size = width / heads, row = 3 * width;
    const T sharpness = 1 / std::sqrt(static_cast<T>(size));
    shares.resize(windows * heads * length * length);
    for (std::size_t part = 0; part < windows * heads; ++part) {
      const std::size_t first = part / heads * length, head = part % heads * size;
      for (std::size_t i = 0; i < length; ++i) {
        const T* const query = queries_keys_values + (first + i) * row + head;
        T* const share = &shares[(part * length + i) * length];
        for (std::size_t j = 0; j <= i; ++j) {
          const T* const key = queries_keys_values + (first + j) * row + width + head;
          share[j] = 0;
          for (std::size_t d = 0; d < size; ++d) share[j] += query[d] * key[d] * sharpness;
        }
        softmax(share, i + 1);
        T* const mixed = out + (first + i) * width + head;
        std::fill_n(mixed, size, T(0));
        for (std::size_t j = 0; j <= i; ++j) {
          const T* const value = queries_keys_values + (first + j) * row + 2 * width + head;
          for (std::size_t d = 0; d < size; ++d) mixed[d] += share[j] * value[d];
        }
      }
    }
  }

  void backward(T* d_queries_keys_values, const T* d_out, const T* queries_keys_values, std::size_t windows,
                std::size_t length) {
    const std::size_t size = width / heads, row = 3 * width;
    const T sharpness = 1 / std::sqrt(static_cast<T>(size));
    std::vector<T> d_share(length);
    for (std::size_t part = 0; part < windows * heads; ++part) {
      const std::size_t first = part / heads * length, head = part % heads * size;
      for (std::size_t i = 0; i < length; ++i) {
        const T* const share = &shares[(part * length + i) * length];
        const T* const d_mixed = d_out + (first + i) * width + head;
        T taken = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          const std::size_t value = (first + j) * row + 2 * width + head;
          d_share[j] = 0;
          for (std::size_t d = 0; d < size; ++d) {
            d_share[j] += d_mixed[d] * queries_keys_values[value + d];
            d_queries_keys_values[value + d] += share[j] * d_mixed[d];
          }
          taken += share[j] * d_share[j];
        }
        const std::size_t query = (first + i) * row + head;
        for (std::size_t j = 0; j <= i; ++j) {
          const std::size_t key = (first + j) * row + width + head;
          const T d_score = share[j] * (d_share[j] - taken) * sharpness;
          for (std::size_t d = 0; d < size; ++d) {
            d_queries_keys_values[query + d] += d_score * queries_keys_values[key + d];
            d_queries_keys_values[key + d] += d_score * queries_keys_values[query + d];
          }
        }
      }
    }
  }

  static void softmax(T* x, std::size_t count) {
    const T greatest = *std::max_element(x, x + count);
    T total = 0;
    for (std::size_t j = 0; j < count; ++j) total += x[j] = std::exp(x[j] - greatest);
    for (std::size_t j = 0; j < count; ++j) x[j] /= total;
  }
};

/// GELU, approximated by x times the logistic function of 1.702 x.
template <class T>
struct gelu {
  static constexpr T slope = T(1.702);

  static void forward(T* out, const T* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = in[i] / (1 + std::exp(-slope * in[i]));
  }
  /// In place: from the gradient of the output to that of the input.
  static void backward(T* d, const T* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const T share = 1 / (1 + std::exp(-slope * in[i]));
      d[i] *= share * (1 + slope * in[i] * (1 - share));
    }
  }
};
