// SPDX-License-Identifier: BSL-1.0
// ddpp's element types and operations as NCCL names them.
#pragma once

#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/vector_loops.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <nccl.h>
#include <type_traits>

namespace ddpp::detail {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
inline constexpr bool has_nccl_float8 = true;
#else
inline constexpr bool has_nccl_float8 = false;
#endif

/// What NCCL can reduce. It has no 16-bit integers.
template <class T>
inline constexpr bool is_nccl_number = [] {
  constexpr dtype type = dtype_of<T>;
  if (is_8_bit_float<T>) return has_nccl_float8;
  return type != dtype::custom && type != dtype::int16 && type != dtype::uint16;
}();

template <class Op>
inline constexpr bool is_nccl_operation =
    std::is_same_v<Op, sum_t> || std::is_same_v<Op, prod_t> || std::is_same_v<Op, min_t> ||
    std::is_same_v<Op, max_t> || std::is_same_v<Op, avg_t> || is_premul_sum<Op>;

template <class T, class Op>
concept nccl_reduces = is_nccl_number<T> && is_nccl_operation<Op> && reduction_op<Op, T>;

template <class T>
constexpr ncclDataType_t nccl_type() {
  switch (dtype_of<T>) {
    case dtype::int8:
      return ncclInt8;
    case dtype::uint8:
      return ncclUint8;
    case dtype::int32:
      return ncclInt32;
    case dtype::uint32:
      return ncclUint32;
    case dtype::int64:
      return ncclInt64;
    case dtype::uint64:
      return ncclUint64;
    case dtype::float16:
      return ncclFloat16;
    case dtype::bfloat16:
      return ncclBfloat16;
    case dtype::float32:
      return ncclFloat32;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    case dtype::float8_e4m3:
      return ncclFloat8e4m3;
    case dtype::float8_e5m2:
      return ncclFloat8e5m2;
#endif
    default:
      return ncclFloat64;
  }
}

/// An operation of NCCL's, made and destroyed where it carries a factor.
template <class T, class Op>
class nccl_operation {
 public:
  nccl_operation(const Op& op, ncclComm_t comm) : comm_(comm) {
    if constexpr (is_premul_sum<Op>) {
      T factor = static_cast<T>(static_cast<arithmetic_t<T>>(op.factor));
      check_nccl(ncclRedOpCreatePreMulSum(&op_, &factor, nccl_type<T>(), ncclScalarHostImmediate, comm),
                 "ncclRedOpCreatePreMulSum");
    } else if constexpr (std::is_same_v<Op, prod_t>) {
      op_ = ncclProd;
    } else if constexpr (std::is_same_v<Op, min_t>) {
      op_ = ncclMin;
    } else if constexpr (std::is_same_v<Op, max_t>) {
      op_ = ncclMax;
    } else if constexpr (std::is_same_v<Op, avg_t>) {
      op_ = ncclAvg;
    }
  }
  nccl_operation(const nccl_operation&) = delete;
  nccl_operation& operator=(const nccl_operation&) = delete;
  ~nccl_operation() {
    if constexpr (is_premul_sum<Op>) static_cast<void>(ncclRedOpDestroy(op_, comm_));
  }

  ncclRedOp_t get() const noexcept { return op_; }

 private:
  ncclComm_t comm_;
  ncclRedOp_t op_ = ncclSum;
};

}  // namespace ddpp::detail
