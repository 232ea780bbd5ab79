// SPDX-License-Identifier: BSL-1.0
// The nccl backend on the double of CUDA and NCCL, for suites that look at results with the host's eyes: the
// devices reach all memory, and what blocks, or waits, has the results in it when it returns.
//
// By default it is options.error_mode that sees to that, and all collectives are compared between the ranks.
// With DDPP_TEST_NCCL=async calls order streams alone, nothing is compared, and the host waits for the
// caller's stream. With DDPP_TEST_ON_DEVICES the same on devices that reach all memory by themselves.
#pragma once

#include <ddpp/backends/nccl.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#ifndef DDPP_TEST_ON_DEVICES
#include "fake_cuda.hpp"
#endif

namespace support {

class nccl_on_double : public ddpp::nccl {
 public:
  nccl_on_double(const ddpp::bootstrap& boot, const options& settings) : nccl(boot, adjusted(settings)) {}

  /// Whether a collective is issued only once all ranks have called the same.
  static bool compares_first() { return !is_asynchronous; }

  void order_caller(const mark& after) {
    nccl::order_caller(after);
    finish();
    nccl::await(after, {});
  }
  template <class F>
  void group(F&& f) {
    nccl::group(std::forward<F>(f));
    finish();
    if (failed()) throw ddpp::group_failed(cause());
  }

  class request {
   public:
    request(nccl_on_double& owner, device_request pending) : owner_(&owner), pending_(std::move(pending)) {}

    bool test() { return pending_.test(); }
    void wait(ddpp::deadline until) {
      pending_.wait(until);
      owner_->finish();
      pending_.host_wait(until);
    }
    void host_wait(ddpp::deadline until) { pending_.host_wait(until); }

   private:
    nccl_on_double* owner_;
    device_request pending_;
  };
  request isend_device(std::span<const std::byte> data, int peer) {
    return {*this, nccl::isend_device(data, peer)};
  }
  request irecv_device(std::span<std::byte> data, int peer) {
    return {*this, nccl::irecv_device(data, peer)};
  }

 private:
  static inline const bool is_asynchronous = [] {
#ifndef DDPP_TEST_ON_DEVICES
    fake_cuda::devices = 64;
    fake_cuda::lateness = 0;
    fake_cuda::reaches_host_memory = true;
#endif
    const char* const mode = std::getenv("DDPP_TEST_NCCL");
    return mode != nullptr && std::string_view(mode) == "async";
  }();

  static options adjusted(options settings) {
    settings.error_mode =
        is_asynchronous ? ddpp::nccl_error_mode::async_abort : ddpp::nccl_error_mode::blocking_wait;
    settings.checks = is_asynchronous ? ddpp::nccl_checks::off : ddpp::nccl_checks::always;
    return settings;
  }

  /// Waits until the caller's stream is done with what is on it now, or the group has failed.
  void finish() {
    const ddpp::detail::current_device mine(options_in_use().device);
    ddpp::detail::stream_mark here(events_);
    here.record(stream(), false);
    while (!here.is_reached() && !failed()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  const std::shared_ptr<ddpp::detail::event_pool> events_ = std::make_shared<ddpp::detail::event_pool>();
};

static_assert(ddpp::transport<nccl_on_double>);
static_assert(ddpp::has_stream_order<nccl_on_double>);

}  // namespace support
