// SPDX-License-Identifier: BSL-1.0
// Element types and operations as MPI knows them. Its own are taken where they mean the same; for the rest
// MPI moves blocks of bytes and calls ddpp's loops.
#pragma once

#include <ddpp/detail/combine.hpp>
#include <ddpp/detail/mpi_runtime.hpp>
#include <ddpp/dtype.hpp>
#include <ddpp/op.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace ddpp::detail {

/// MPI hands an operation no state: only one without any can be native.
template <class Op>
concept stateless_operation = std::is_empty_v<Op> && std::default_initializable<Op>;

template <class T>
MPI_Datatype mpi_number() {
  static_assert(std::integral<T> || std::floating_point<T>);
  if constexpr (std::same_as<T, float>)
    return MPI_FLOAT;
  else if constexpr (std::same_as<T, double>)
    return MPI_DOUBLE;
  else if constexpr (std::same_as<T, long double>)
    return MPI_LONG_DOUBLE;
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1   ? MPI_INT8_T
           : sizeof(T) == 2 ? MPI_INT16_T
           : sizeof(T) == 4 ? MPI_INT32_T
                            : MPI_INT64_T;
  else
    return sizeof(T) == 1   ? MPI_UINT8_T
           : sizeof(T) == 2 ? MPI_UINT16_T
           : sizeof(T) == 4 ? MPI_UINT32_T
                            : MPI_UINT64_T;
}

/// sizeof(T) bytes that belong together.
template <class T>
MPI_Datatype mpi_block() {
  static const MPI_Datatype made = [] {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    require_mpi(MPI_Type_contiguous(static_cast<int>(sizeof(T)), MPI_BYTE, &type), "MPI_Type_contiguous");
    require_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
    return type;
  }();
  return made;
}

/// MPI's own maxima and minima need not keep a NaN.
template <class T, class Op>
inline constexpr bool is_mpi_operation =
    (std::integral<T> || std::floating_point<T>)&&!std::same_as<T, bool> &&
    (std::same_as<Op, sum_t> || std::same_as<Op, prod_t> ||
     (std::integral<T> && (std::same_as<Op, min_t> || std::same_as<Op, max_t> || std::same_as<Op, band_t> ||
                           std::same_as<Op, bor_t> || std::same_as<Op, bxor_t>)));

template <class T, class Op>
MPI_Op mpi_custom_operation() {
  static const MPI_Op made = [] {
    MPI_Op op = MPI_OP_NULL;
    const auto function = [](void* first, void* both, int* count, MPI_Datatype*) {
      combine(static_cast<T*>(both), static_cast<const T*>(first), static_cast<const T*>(both),
              static_cast<std::size_t>(*count), Op{});
    };
    require_mpi(MPI_Op_create(function, 1, &op), "MPI_Op_create");
    return op;
  }();
  return made;
}

template <class T, class Op>
MPI_Op mpi_operation() {
  if constexpr (!is_mpi_operation<T, Op>)
    return mpi_custom_operation<T, Op>();
  else if constexpr (std::same_as<Op, sum_t>)
    return MPI_SUM;
  else if constexpr (std::same_as<Op, prod_t>)
    return MPI_PROD;
  else if constexpr (std::same_as<Op, min_t>)
    return MPI_MIN;
  else if constexpr (std::same_as<Op, max_t>)
    return MPI_MAX;
  else if constexpr (std::same_as<Op, band_t>)
    return MPI_BAND;
  else if constexpr (std::same_as<Op, bor_t>)
    return MPI_BOR;
  else
    return MPI_BXOR;
}

template <class T, class Op>
MPI_Datatype mpi_type() {
  if constexpr (is_mpi_operation<T, Op>)
    return mpi_number<T>();
  else
    return mpi_block<T>();
}

}  // namespace ddpp::detail
