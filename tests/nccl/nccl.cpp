// SPDX-License-Identifier: BSL-1.0
// The nccl backend on the double of CUDA and NCCL: what it computes, in what order, and how it fails.
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
#include <cuda_fp8.h>
#endif
#include <doctest/doctest.h>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "../support/expect.hpp"
#include "../support/fake_cuda.hpp"

namespace {

using communicator = ddpp::communicator<ddpp::nccl>;

/// Device memory of its own.
template <class T>
class device_array {
 public:
  explicit device_array(const std::vector<T>& values) : size_(values.size()) {
    void* where = nullptr;
    EXPECT(cudaMalloc(&where, size_ * sizeof(T)) == cudaSuccess);
    data_ = static_cast<T*>(where);
    cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  explicit device_array(std::size_t size) : device_array(std::vector<T>(size, T(99))) {}
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { cudaFree(data_); }

  operator ddpp::device_span<T>() const { return span(); }
  ddpp::device_span<T> span() const { return {data_, size_}; }
  /// As the default stream finds them.
  std::vector<T> values() const {
    std::vector<T> host(size_);
    cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

template <class T>
T number(int value) {
  return static_cast<T>(static_cast<ddpp::detail::arithmetic_t<T>>(value));
}

/// begin, begin + step, ...
template <class T = float>
std::vector<T> row(std::size_t count, int begin, int step = 1) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = number<T>(begin + step * static_cast<int>(i));
  return values;
}

ddpp::init_options within(std::chrono::milliseconds time) {
  ddpp::init_options options;
  options.timeout = time;
  options.init_timeout = std::chrono::seconds(60);
  return options;
}

template <class T = ddpp::nccl, class F>
void on_ranks(int n, F f, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  ddpp::launch<T>(n, f, within(timeout));
}

struct own_stream {
  explicit own_stream(int device) {
    EXPECT(cudaSetDevice(device) == cudaSuccess);
    EXPECT(cudaStreamCreateWithPriority(&mine, cudaStreamNonBlocking, 0) == cudaSuccess);
  }
  own_stream(const own_stream&) = delete;
  ~own_stream() { cudaStreamDestroy(mine); }
  cudaStream_t mine = nullptr;
};

/// The backend with a stream of the caller's that is not the default one.
template <ddpp::nccl_checks Checks = ddpp::nccl_checks::off>
class with : own_stream, public ddpp::nccl {
 public:
  with(const ddpp::bootstrap& boot, options settings)
      : own_stream(settings.device >= 0 ? settings.device : boot.rank), nccl(boot, adjusted(settings)) {}

 private:
  options adjusted(options settings) const {
    settings.stream = mine;
    settings.checks = Checks;
    return settings;
  }
};

/// Straight over the control plane, so that no stream takes part.
template <class C>
void give_word(C& comm, int to) {
  const std::byte word{};
  comm.transport()
      .isend(std::span(&word, 1), to, 0)
      .wait(ddpp::detail::deadline_after(std::chrono::seconds(60)));
}
template <class C>
void await_word(C& comm, int from) {
  std::byte word{};
  comm.transport()
      .irecv(std::span(&word, 1), from, 0)
      .wait(ddpp::detail::deadline_after(std::chrono::seconds(60)));
}

/// Sets a flag of the double for as long as it lives.
class setting {
 public:
  explicit setting(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
  ~setting() { flag_ = false; }
  setting(const setting&) = delete;

 private:
  std::atomic<bool>& flag_;
};

template <class T>
void reductions(communicator& comm) {
  const int n = comm.size(), r = comm.rank();
  const auto reduced = [&](auto op) {
    const device_array<T> x(row<T>(5, r + 1));
    ddpp::all_reduce(comm, x.span(), op);
    return x.values();
  };
  const auto expected = [&](auto combine) {
    auto all = row<T>(5, 1);
    for (int other = 1; other < n; ++other) {
      for (std::size_t i = 0; i < 5; ++i)
        all[i] = combine(all[i], number<T>(other + 1 + static_cast<int>(i)));
    }
    return all;
  };
  const auto sum = expected(ddpp::sum);
  EXPECT(reduced(ddpp::sum) == sum);
  EXPECT(reduced(ddpp::prod) == expected(ddpp::prod));
  EXPECT(reduced(ddpp::min) == row<T>(5, 1));
  EXPECT(reduced(ddpp::max) == row<T>(5, n));
  std::vector<T> doubled = sum;
  for (T& each : doubled) each = ddpp::prod(each, number<T>(2));
  EXPECT(reduced(ddpp::premul_sum(2)) == doubled);
  const auto mean = reduced(ddpp::avg);  // of floating-point numbers: a sum of quotients
  for (std::size_t i = 0; i < 5; ++i) {
    const double exact = static_cast<double>(sum[i]) / n, found = static_cast<double>(mean[i]);
    EXPECT(std::is_integral_v<T> ? found == std::trunc(exact) : std::abs(found - exact) < 0.02 * exact);
  }
}

}  // namespace

TEST_CASE("every reduction, in place") {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [](auto& comm) {
      reductions<float>(comm);
      reductions<double>(comm);
      reductions<int>(comm);
      reductions<std::int64_t>(comm);
      reductions<std::uint64_t>(comm);
      reductions<std::uint32_t>(comm);
      reductions<std::int8_t>(comm);
      reductions<std::uint8_t>(comm);
      reductions<ddpp::half>(comm);
      reductions<ddpp::bfloat16>(comm);
      if constexpr (ddpp::detail::has_nccl_float8) reductions<ddpp::float8_e4m3>(comm);
    });
  }
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
TEST_CASE("8-bit floats are rounded as CUDA's are") {
  int differing = 0;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 10'007) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    differing += ddpp::float8_e4m3(value).bits != __nv_fp8_e4m3(value).__x;
    differing += ddpp::float8_e5m2(value).bits != __nv_fp8_e5m2(value).__x;
  }
  CHECK(differing == 0);
}
#endif

TEST_CASE("every collective, from one buffer to another") {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [](auto& comm) {
      const int size = comm.size(), r = comm.rank(), root = size - 1;
      const auto ranks = static_cast<std::size_t>(size);
      const device_array<float> in(row(3, 10 * r)), whole(row(3 * ranks, 100 * r));
      device_array<float> out(3), all(3 * ranks);

      ddpp::all_reduce(comm, in.span(), out.span());
      EXPECT(out.values() == row(3, 10 * size * (size - 1) / 2, size));
      EXPECT(in.values() == row(3, 10 * r));

      const device_array<float> at_root(3);
      ddpp::reduce(comm, in.span(), at_root.span(), ddpp::max, root);
      EXPECT(at_root.values() == (r == root ? row(3, 10 * root) : row(3, 99, 0)));

      const device_array<float> shared(row(3, r));
      ddpp::broadcast(comm, shared.span(), root);
      EXPECT(shared.values() == row(3, root));

      ddpp::all_gather(comm, in.span(), all.span());
      std::vector<float> gathered;
      for (int other = 0; other < size; ++other) {
        for (int i = 0; i < 3; ++i) gathered.push_back(static_cast<float>(10 * other + i));
      }
      EXPECT(all.values() == gathered);

      ddpp::reduce_scatter(comm, whole.span(), out.span());
      EXPECT(out.values() == row(3, 100 * size * (size - 1) / 2 + 3 * r * size, size));

      const device_array<float> exchanged(3 * ranks);
      ddpp::all_to_all(comm, whole.span(), exchanged.span());
      std::vector<float> mine;
      for (int other = 0; other < size; ++other) {
        for (int i = 0; i < 3; ++i) mine.push_back(static_cast<float>(100 * other + 3 * r + i));
      }
      EXPECT(exchanged.values() == mine);

      const device_array<float> collected(3 * ranks);
      ddpp::gather(comm, in.span(), collected.span(), root);
      EXPECT(collected.values() == (r == root ? gathered : row(3 * ranks, 99, 0)));

      ddpp::scatter(comm, whole.span(), out.span(), root);
      EXPECT(out.values() == row(3, 100 * root + 3 * r));
      ddpp::barrier(comm);
    });
  }
}

TEST_CASE("collectives with counts, some of them zero") {
  on_ranks(3, [](auto& comm) {
    const int r = comm.rank();
    const std::vector<std::size_t> counts{2, 0, 3};
    const device_array<float> in(row(counts[static_cast<std::size_t>(r)], 10 * r)), all(5), whole(row(5, 1));
    ddpp::all_gather_v(comm, in.span(), all.span(), counts);
    EXPECT(all.values() == std::vector<float>{0, 1, 20, 21, 22});

    const device_array<float> piece(counts[static_cast<std::size_t>(r)]);
    ddpp::reduce_scatter_v(comm, whole.span(), piece.span(), counts);
    EXPECT(piece.values() == row(piece.span().size(), r == 0 ? 3 : 9, 3));

    const device_array<float> collected(5);
    ddpp::gather_v(comm, in.span(), collected.span(), counts, 1);
    if (r == 1) EXPECT(collected.values() == std::vector<float>{0, 1, 20, 21, 22});

    ddpp::scatter_v(comm, whole.span(), piece.span(), counts, 2);
    EXPECT(piece.values() == row(piece.span().size(), r == 0 ? 1 : 3));

    // rank r sends r elements to each
    const std::vector<std::size_t> sent(3, static_cast<std::size_t>(r)), received{0, 1, 2};
    const device_array<float> out(row(static_cast<std::size_t>(3 * r), 10 * r)), arrived(3);
    ddpp::all_to_all_v(comm, out.span(), sent, arrived.span(), received);
    EXPECT(arrived.values() == std::vector<float>{float(10 + r), float(20 + 2 * r), float(21 + 2 * r)});
  });
}

TEST_CASE("an operation follows what is on the caller's stream, and wait orders that stream after it") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> x(row(4, 0, 0)), source(row(4, 5));
    cudaMemcpyAsync(x.span().data(), source.span().data(), 16, cudaMemcpyDeviceToDevice, comm.stream());
    auto work = ddpp::all_reduce_async(comm, x.span());
    work.wait();
    EXPECT(x.values() == row(4, 10, 2));
  });
}

TEST_CASE("host_wait blocks until it is done, wait does not") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> x(row(4, 5));
    ddpp::barrier(comm);
    ddpp::work work;
    {
      const setting resting(fake_cuda::other_streams_rest);
      work = ddpp::all_reduce_async(comm, x.span());
      work.wait();
      EXPECT(!work.done());
      EXPECT(!work.wait_for(std::chrono::milliseconds(1)));
      ddpp::barrier(comm);
    }
    work.host_wait();
    EXPECT(work.done());
    EXPECT(x.values() == row(4, 10, 2));
  });
}

TEST_CASE("messages: opposite ones in any order, groups, to oneself") {
  on_ranks(3, [](auto& comm) {
    const int n = comm.size(), r = comm.rank(), next = (r + 1) % n, before = (r + n - 1) % n;
    const device_array<float> out(row(4, r)), in(4);
    {
      auto sending = ddpp::isend(comm, out.span(), next);
      auto receiving = ddpp::irecv(comm, in.span(), before);
      sending.wait();
      receiving.wait();
      EXPECT(in.values() == row(4, before));
    }
    {
      const device_array<float> fresh(4);
      ddpp::send_recv(comm, out.span(), before, fresh.span(), next);
      EXPECT(fresh.values() == row(4, next));
    }
    {
      const device_array<float> fresh(4), own(4);
      ddpp::group(comm, [&] {
        ddpp::send(comm, out.span(), next);
        ddpp::recv(comm, fresh.span(), before);
        ddpp::send(comm, out.span(), r);
        ddpp::recv(comm, own.span(), r);
      });
      EXPECT(fresh.values() == row(4, before));
      EXPECT(own.values() == row(4, r));
    }
    {
      const device_array<float> late(4);
      if (r == 0) {
        auto sending = ddpp::isend(comm, out.span(), 1);
        ddpp::all_reduce(comm, in.span(), ddpp::max);  // issues what was collected
        sending.host_wait();
      } else {
        if (r == 1) ddpp::recv(comm, late.span(), 0);
        ddpp::all_reduce(comm, in.span(), ddpp::max);
      }
      if (r == 1) EXPECT(late.values() == row(4, 0));
    }
  });
}

TEST_CASE("symmetric memory is zero, registered, and may outlive its communicator") {
  ddpp::symmetric_buffer<float> kept;
  on_ranks(2, [&](auto& comm) {
    auto x = ddpp::allocate_symmetric<float>(comm, 100);
    EXPECT(fake_cuda::windows > 0);
    ddpp::all_reduce(comm, x);
    std::vector<float> host(100, 1.0f);
    cudaMemcpy(host.data(), x.data(), 400, cudaMemcpyDeviceToHost);
    EXPECT(host == row(100, 0, 0));
    if (comm.rank() == 0) kept = std::move(x);
  });
  CHECK(fake_cuda::windows == 0);
}

TEST_CASE("subgroups keep their ranks' devices") {
  on_ranks(4, [](auto& comm) {
    auto part = comm.split(comm.rank() % 2);
    EXPECT(part.transport().options_in_use().device == comm.rank());
    const device_array<float> x(row(2, comm.rank()));
    ddpp::all_reduce(part, x.span());
    EXPECT(x.values() == row(2, comm.rank() % 2 == 0 ? 2 : 4, 2));
  });
}

TEST_CASE("two ranks on one device are refused before NCCL hangs") {
  fake_cuda::devices = 1;
  try {
    on_ranks(2, [](auto&) {});
    CHECK(false);
  } catch (const ddpp::init_error& error) {
    CHECK(support::says(error.what(), "ranks 0 and 1 have the same device, 0000:00:00.0"));
  }
  fake_cuda::devices = 0;
  try {
    on_ranks(2, [](auto&) {});
    CHECK(false);
  } catch (const ddpp::init_error& error) {
    CHECK(support::says(error.what(), "rank 0 has no device"));
  }
  fake_cuda::devices = 8;
}

TEST_CASE("host memory is refused, and the communicator works on") {
  on_ranks(2, [](auto& comm) {
    std::vector<float> host(4);
    EXPECT(support::says(
        support::text_of<ddpp::usage_error>([&] { ddpp::all_reduce(comm, host); }, __FILE__, __LINE__),
        "cannot reach"));
    EXPECT(support::says(
        support::text_of<ddpp::usage_error>([&] { ddpp::send(comm, host, 0); }, __FILE__, __LINE__),
        "cannot reach"));
    const device_array<float> x(row(4, 1));
    ddpp::all_reduce(comm, x.span());
    EXPECT(x.values() == row(4, 2, 2));
  });
}

TEST_CASE("another device's memory is refused") {
  on_ranks(2, [](auto& comm) {
    EXPECT(cudaSetDevice(1 - comm.rank()) == cudaSuccess);
    const device_array<float> x(row(4, 1));
    EXPECT(cudaSetDevice(comm.rank()) == cudaSuccess);
    EXPECT(support::says(
        support::text_of<ddpp::usage_error>([&] { ddpp::all_reduce(comm, x.span()); }, __FILE__, __LINE__),
        "this rank works on device " + std::to_string(comm.rank())));
  });
}

/// The backend with a stream that rank 0 has made on the other device.
struct astray : own_stream, ddpp::nccl {
  astray(const ddpp::bootstrap& boot, options settings) : own_stream(1), nccl(boot, with_stream(settings)) {}
  options with_stream(options settings) const {
    settings.stream = mine;
    return settings;
  }
};

TEST_CASE("a stream of another device is refused, and no rank goes on") {
  try {
    on_ranks<astray>(2, [](auto&) {});
    CHECK(false);
  } catch (const ddpp::init_error& error) {
    CHECK(support::says(error.what(), "options.stream is no stream of device 0"));
  }
}

/// The backend whose calls wait on the host.
struct waiting : ddpp::nccl {
  waiting(const ddpp::bootstrap& boot, options settings) : nccl(boot, adjusted(settings)) {}
  static options adjusted(options settings) {
    settings.error_mode = ddpp::nccl_error_mode::blocking_wait;
    return settings;
  }
};

TEST_CASE("blocking_wait: a group has ended when it returns") {
  on_ranks<waiting>(2, [](auto& comm) {
    const device_array<float> out(row(4, comm.rank())), in(4);
    ddpp::group(comm, [&] {
      ddpp::send(comm, out.span(), 1 - comm.rank());
      ddpp::recv(comm, in.span(), 1 - comm.rank());
    });
    // Not by a stream: what lies there now.
    EXPECT(std::vector<float>(in.span().data(), in.span().data() + 4) == row(4, 1 - comm.rank()));
  });
}

/// Its destructor waits until all of `ranks` are there.
class leaving_together {
 public:
  leaving_together(std::atomic<int>& there, int ranks) : there_(there), ranks_(ranks) {}
  leaving_together(const leaving_together&) = delete;
  ~leaving_together() {
    for (++there_; there_ < ranks_;) std::this_thread::yield();
  }

 private:
  std::atomic<int>& there_;
  int ranks_;
};

TEST_CASE("calls wait for a device that is far behind, and hear of failures meanwhile") {
  std::atomic<int> leaving{0};
  on_ranks<with<>>(2, [&](auto& comm) {
    const device_array<float> x(row(4, 1));
    const setting resting(fake_cuda::other_streams_rest);
    const leaving_together together(leaving, comm.size());
    std::atomic<int> issued{0};
    std::vector<ddpp::work> pending;
    const std::jthread revoker([&] {
      if (comm.rank() != 0) return;
      while (issued < 128) std::this_thread::yield();
      comm.revoke("enough");
    });
    const auto issue = [&] {
      for (; issued < 1000; ++issued) pending.push_back(ddpp::all_reduce_async(comm, x.span()));
    };
    EXPECT(support::says(support::text_of<ddpp::revoked_error>(issue, __FILE__, __LINE__), "enough"));
    EXPECT(issued <= 129);  // the last of which failed
  });
}

TEST_CASE("an exception in a group of operations fails the communicator, as some may have been issued") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> out(row(4, comm.rank())), in(4);
    if (comm.rank() == 0) {
      const auto broken = [&] {
        ddpp::group(comm, [&] {
          ddpp::send(comm, out.span(), 1);
          throw std::logic_error("of the program");
        });
      };
      EXPECT(support::text_of<std::logic_error>(broken, __FILE__, __LINE__) == "of the program");
    }
    const auto later = [&] {
      for (;;) {
        auto work = ddpp::irecv(comm, in.span(), 1 - comm.rank());
        work.host_wait();
      }
    };
    EXPECT(support::says(support::text_of<ddpp::revoked_error>(later, __FILE__, __LINE__), "of the program"));
  });
}

TEST_CASE("different calls are a mismatch on all ranks before NCCL sees them") {
  on_ranks(3, [](auto& comm) {
    const device_array<float> x(static_cast<std::size_t>(comm.rank() == 2 ? 5 : 4));
    try {
      ddpp::all_reduce(comm, x.span());
      EXPECT(false);
    } catch (const ddpp::mismatch_error& error) {
      EXPECT(error.rank() == 2);  // also where one of the others is too late to be asked
    }
  });
}

TEST_CASE("a rank that does not come: timeout on all, named, though nobody waits on the host") {
  on_ranks(
      3,
      [](auto& comm) {
        const device_array<float> x(4);
        for (int i = 0; i < 31; ++i) ddpp::all_reduce(comm, x.span(), ddpp::max);
        ddpp::barrier(comm);
        // From here on comparisons are rare, so the ranks that come find nobody on the device.
        if (comm.rank() != 2) {
          const std::string text = support::text_of<ddpp::timeout_error>(
              [&] { ddpp::all_reduce_async(comm, x.span()).host_wait(); }, __FILE__, __LINE__);
          EXPECT(support::says(text, "rank 2"));
        }
        // the rank that did not come hears of it at its next call
        if (comm.rank() == 2) {
          while (!comm.transport().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        support::text_of<ddpp::timeout_error>([&] { ddpp::barrier(comm); }, __FILE__, __LINE__);
      },
      std::chrono::seconds(2));
}

TEST_CASE("revoke ends what waits on the device; shrink makes a group that works") {
  on_ranks(3, [](auto& comm) {
    const device_array<float> x(row(4, 1));
    if (comm.rank() == 0) {
      comm.revoke("on purpose");
    } else {
      support::text_of<ddpp::revoked_error>(
          [&] {
            for (;;) ddpp::all_reduce_async(comm, x.span()).host_wait();
          },
          __FILE__, __LINE__);
    }
    auto fresh = comm.shrink();
    EXPECT(fresh.size() == 3);
    const device_array<float> y(row(4, 1));
    ddpp::all_reduce(fresh, y.span());
    EXPECT(y.values() == row(4, 3, 3));
  });
}

TEST_CASE(
    "a rank that goes while others wait for it on the device is lost to them, and they go on without it") {
  on_ranks<with<>>(3, [](auto& comm) {
    const device_array<float> x(row(4, 1)), y(row(4, 1));
    if (comm.rank() == 2) {
      for (int r = 0; r < 2; ++r) await_word(comm, r);
      return;
    }
    auto first = ddpp::all_reduce_async(comm, x.span()), second = ddpp::all_reduce_async(comm, x.span());
    give_word(comm, 2);
    EXPECT(support::says(support::text_of<ddpp::peer_lost>([&] { first.host_wait(); }, __FILE__, __LINE__),
                         "rank 2"));
    support::text_of<ddpp::peer_lost>([&] { second.wait(); }, __FILE__, __LINE__);
    support::text_of<ddpp::peer_lost>([&] { ddpp::all_reduce(comm, x.span()); }, __FILE__, __LINE__);
    auto rest = comm.shrink();
    ddpp::all_reduce(rest, y.span());
    cudaStreamSynchronize(rest.stream());
    EXPECT(y.values() == row(4, 2, 2));
  });
}

TEST_CASE("what a failure cuts short is not taken for done, whoever looks when") {
  on_ranks<with<>>(2, [](auto& comm) {
    const device_array<float> x(row(4, 1)), done(row(4, 1));
    auto good = ddpp::all_reduce_async(comm, done.span());
    good.host_wait();
    if (comm.rank() == 1) return await_word(comm, 0);
    auto cut_short = ddpp::all_reduce_async(comm, x.span());
    give_word(comm, 1);
    cudaStreamSynchronize(comm.stream());
    cudaDeviceSynchronize();  // which returns once the kernel that waited has been ended
    support::text_of<ddpp::peer_lost>([&] { cut_short.host_wait(); }, __FILE__, __LINE__);
    good.host_wait();
    EXPECT(done.values() == row(4, 2, 2));
  });
}

// What is compared before it is issued.

/// Rank 0 issues a collective before rank 1 has called it.
void expect_issued_alone(auto& comm) {
  const device_array<float> x(row(4, 1));
  if (comm.rank() == 1) await_word(comm, 0);
  auto work = ddpp::all_reduce_async(comm, x.span());
  if (comm.rank() == 0) give_word(comm, 1);
  work.host_wait();
}
void expect_compared(auto& comm) {
  const device_array<float> x(static_cast<std::size_t>(comm.rank() == 0 ? 4 : 5));
  support::text_of<ddpp::mismatch_error>([&] { ddpp::all_reduce(comm, x.span()); }, __FILE__, __LINE__);
}
void make_collectives(auto& comm, int number) {
  const device_array<float> x(row(4, 1));
  for (int i = 0; i < number; ++i) ddpp::all_reduce(comm, x.span(), ddpp::max);
  cudaStreamSynchronize(comm.stream());
}

TEST_CASE("checks off: a collective is issued whoever has come, and the watch finds a mismatch that lasts") {
  on_ranks<with<ddpp::nccl_checks::off>>(2, [](auto& comm) {
    expect_issued_alone(comm);
    const device_array<float> x(static_cast<std::size_t>(comm.rank() == 0 ? 4 : 5));
    auto work = ddpp::all_reduce_async(comm, x.span());
    support::text_of<ddpp::mismatch_error>([&] { work.host_wait(); }, __FILE__, __LINE__);
  });
}

TEST_CASE("checks sampled: the first 32 collectives are compared, and each 32nd from there on") {
  using sampled = with<ddpp::nccl_checks::sampled>;
  on_ranks<sampled>(2, [](auto& comm) {
    make_collectives(comm, 31);
    expect_compared(comm);
  });
  on_ranks<sampled>(2, [](auto& comm) {
    make_collectives(comm, 32);
    expect_issued_alone(comm);
    make_collectives(comm, 30);
    expect_compared(comm);
  });
}

TEST_CASE("checks always: any collective is compared, and who exchanges how much with whom") {
  using always = with<ddpp::nccl_checks::always>;
  on_ranks<always>(2, [](auto& comm) {
    make_collectives(comm, 32);
    expect_compared(comm);
  });
  on_ranks<always>(3, [](auto& comm) {
    const std::size_t expected = comm.rank() == 1 ? 1 : 2;
    const std::vector<std::size_t> sent{2, 2, 2},
        received{2, comm.rank() == 1 ? 2 : std::size_t{2}, expected};
    const device_array<float> in(6), out(received[0] + received[1] + received[2]);
    auto exchange = [&] {
      std::vector<std::size_t> mine = received;
      if (comm.rank() != 1) mine[2] = 2;
      ddpp::all_to_all_v(comm, in.span(), sent, out.span(), mine);
      for (;;) ddpp::barrier(comm);
    };
    EXPECT(support::says(support::text_of<ddpp::mismatch_error>(exchange, __FILE__, __LINE__),
                         "rank 2 sends 8 bytes to rank 1, which receives 4 bytes"));
  });
}

// Graphs.

/// What is put on the stream meanwhile becomes a graph, which may be run.
class graph {
 public:
  template <class F>
  graph(cudaStream_t stream, F capture, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
      : stream_(stream) {
    EXPECT(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    capture();
    cudaGraph_t captured = nullptr;
    EXPECT(cudaStreamEndCapture(stream, &captured) == cudaSuccess);
    EXPECT(cudaGraphInstantiate(&executable_, captured, 0) == cudaSuccess);
    cudaGraphDestroy(captured);
  }
  graph(const graph&) = delete;
  ~graph() { cudaGraphExecDestroy(executable_); }

  void run() const {
    EXPECT(cudaGraphLaunch(executable_, stream_) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(stream_) == cudaSuccess);
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_CASE("what is captured into a graph runs when the graph does, as often, in its order") {
  on_ranks<with<ddpp::nccl_checks::always>>(3, [](auto& comm) {
    const int r = comm.rank(), n = comm.size();
    const device_array<float> x(row(4, r + 1)), y(4), gathered(12), in(4);
    const graph step(comm.stream(), [&] {
      ddpp::all_reduce(comm, x.span(), ddpp::premul_sum(2));
      cudaMemcpyAsync(y.span().data(), x.span().data(), 16, cudaMemcpyDeviceToDevice, comm.stream());
      auto gathering = ddpp::all_gather_async(comm, y.span(), gathered.span());
      gathering.wait();
      EXPECT(gathering.done());
      ddpp::send_recv(comm, x.span(), (r + 1) % n, in.span(), (r + n - 1) % n);
      cudaMemcpyAsync(y.span().data(), in.span().data(), 16, cudaMemcpyDeviceToDevice, comm.stream());
    });
    EXPECT(x.values() == row(4, r + 1));  // nothing has run
    EXPECT(gathered.values() == row(12, 99, 0));
    auto expected = row(4, 12, 6);  // 2 (1 + 2 + 3), ...
    for (int run = 0; run < 3; ++run) {
      step.run();
      EXPECT(x.values() == expected && y.values() == expected && in.values() == expected);
      const auto all = gathered.values();
      for (std::size_t i = 0; i < all.size(); ++i) EXPECT(all[i] == expected[i % 4]);
      for (float& each : expected) each *= 6;
    }
    const device_array<float> z(row(4, 1));  // and what follows is captured no more
    ddpp::all_reduce_async(comm, z.span()).host_wait();
    EXPECT(z.values() == row(4, 3, 3));
  });
}

TEST_CASE("who asks for an operation while another rank of the process captures does not spoil the graph") {
  on_ranks<with<>>(2, [](auto& comm) {
    const device_array<float> x(row(4, 1));
    auto work = ddpp::all_reduce_async(comm, x.span());
    if (comm.rank() == 0) {
      await_word(comm, 1);  // allocating memory would spoil it
      const auto meanwhile = [&] {
        give_word(comm, 1);
        await_word(comm, 1);
      };
      const graph empty(comm.stream(), meanwhile, cudaStreamCaptureModeGlobal);
      give_word(comm, 1);
    } else {
      give_word(comm, 0);
      await_word(comm, 0);
      work.host_wait();
      give_word(comm, 0);
      await_word(comm, 0);  // as would freeing it
    }
  });
}

TEST_CASE("a captured operation that is not waited for leaves its graph without an end") {
  on_ranks<with<>>(1, [](auto& comm) {
    const device_array<float> x(row(4, 1));
    cudaGraph_t captured = nullptr;
    EXPECT(cudaStreamBeginCapture(comm.stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    auto work = ddpp::all_reduce_async(comm, x.span());
    EXPECT(cudaStreamEndCapture(comm.stream(), &captured) == cudaErrorStreamCaptureUnjoined);
    comm.revoke("there is no way on");  // or the work would wait for what is no event any more
    support::text_of<ddpp::revoked_error>([&] { work.wait(); }, __FILE__, __LINE__);
  });
}

TEST_CASE("what NCCL finds broken by itself fails the group with NCCL's words") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> x(4);
    ddpp::all_reduce(comm, x.span());
    std::optional<setting> broken;
    support::text_of<ddpp::revoked_error>(
        [&] {
          ddpp::barrier(comm);
          broken.emplace(fake_cuda::network_is_broken);
          for (;;) ddpp::all_reduce_async(comm, x.span()).host_wait();
        },
        __FILE__, __LINE__);
    while (!comm.transport().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

// The double sees what a backend that forgot a call would do.

/// Whether the result of a copy on the caller's stream was reduced before the copy could begin.
bool overtakes(communicator& comm, std::chrono::milliseconds patience) {
  const device_array<float> x(row(4, 0, 0)), source(row(4, 5));
  ddpp::barrier(comm);
  bool done = false;
  {
    const setting resting(fake_cuda::default_streams_rest);
    cudaMemcpyAsync(x.span().data(), source.span().data(), 16, cudaMemcpyDeviceToDevice, comm.stream());
    auto work = ddpp::all_reduce_async(comm, x.span());
    done = work.wait_for(patience);
    ddpp::barrier(comm);
  }
  const bool right = x.values() == row(4, 10, 2);
  ddpp::barrier(comm);
  EXPECT(right != done);
  return done;
}

TEST_CASE("without event waits an operation overtakes what it is to follow") {
  std::atomic<bool> overtaken{false};
  on_ranks(2, [&](auto& comm) {
    const setting broken(fake_cuda::without_event_waits);
    if (overtakes(comm, std::chrono::seconds(60))) overtaken = true;
  });
  CHECK(overtaken);
  on_ranks(2, [](auto& comm) { EXPECT(!overtakes(comm, std::chrono::milliseconds(500))); });
}

TEST_CASE("without groups opposite messages never end") {
  CHECK_THROWS_AS(on_ranks(
                      2,
                      [](auto& comm) {
                        const device_array<float> out(4), in(4);
                        ddpp::barrier(comm);
                        const setting broken(fake_cuda::without_groups);
                        auto sending = ddpp::isend(comm, out.span(), 1 - comm.rank());
                        auto receiving = ddpp::irecv(comm, in.span(), 1 - comm.rank());
                        receiving.host_wait();
                        sending.host_wait();
                      },
                      std::chrono::seconds(2)),
                  ddpp::timeout_error);
}

TEST_CASE("a buffer looked at before wait does not have the result") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> x(row(4, 5));
    ddpp::barrier(comm);
    ddpp::work work;
    {
      const setting resting(fake_cuda::other_streams_rest);
      work = ddpp::all_reduce_async(comm, x.span());
      const std::vector<float> early(x.span().data(), x.span().data() + 4);  // as a host that does not wait
      EXPECT(early == row(4, 5));
      ddpp::barrier(comm);
    }
    work.host_wait();
    EXPECT(x.values() == row(4, 10, 2));
  });
}
