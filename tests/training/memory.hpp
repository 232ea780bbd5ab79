// SPDX-License-Identifier: BSL-1.0
// The memory of the transport under test. The suite fills and reads it on the host between steps: a device's
// is that of the double, which is the host's too, once its stream has been waited for.
#pragma once

#include <ddpp/detail/scaling.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/hooks.hpp>
#include <ddpp/parameter.hpp>

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace training {

/// Specialised for a device's transport.
template <class T>
struct memory_of {
  template <class E>
  using allocator = std::allocator<E>;

  /// Waits until the host may look at results; throws what has gone wrong until then.
  template <class C>
  static void settle(C&) {}

  /// What a hook of the program's own does to a bucket.
  template <class C, class E>
  static void scale(C&, std::span<E> values, double factor) {
    ddpp::detail::scale(values, factor);
  }
};

/// A vector in the memory that T moves.
template <class T, class E>
using array = std::vector<E, typename memory_of<T>::template allocator<E>>;

/// As the public one, but that results are there for the host to see.
template <class C, class Hook = ddpp::hooks::all_reduce>
class distributed_data_parallel : public ddpp::distributed_data_parallel<C, Hook> {
  using base = ddpp::distributed_data_parallel<C, Hook>;

 public:
  distributed_data_parallel(C& comm, std::vector<ddpp::parameter> parameters, ddpp::ddp_options options = {},
                            Hook hook = {})
      : base(comm, std::move(parameters), std::move(options), std::move(hook)), group_(comm) {
    settle();
  }
  void prepare(ddpp::prepare_options options = {}) {
    base::prepare(options);
    settle();
  }
  void refresh_buffers() {
    base::refresh_buffers();
    settle();
  }
  void wait() {
    base::wait();
    settle();
  }
  template <class F>
  void join(F&& loop, ddpp::join_options options = {}) {
    base::join(std::forward<F>(loop), options);
    settle();
  }

 private:
  void settle() { memory_of<typename C::transport_type>::settle(group_); }

  C& group_;
};

}  // namespace training
