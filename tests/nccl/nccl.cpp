// SPDX-License-Identifier: BSL-1.0
// The nccl backend on the double of CUDA and NCCL: what it computes, in what order, and how it fails.
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <doctest/doctest.h>
#include <numeric>
#include <string>
#include <thread>
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

/// begin, begin + step, ...
template <class T = float>
std::vector<T> row(std::size_t count, int begin, int step = 1) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(begin + step * static_cast<int>(i));
  return values;
}

ddpp::init_options within(std::chrono::milliseconds time) {
  ddpp::init_options options;
  options.timeout = time;
  return options;
}

template <class F>
void on_ranks(int n, F f, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  ddpp::launch<ddpp::nccl>(n, f, within(timeout));
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
        all[i] = combine(all[i], static_cast<T>(other + 1 + static_cast<int>(i)));
    }
    return all;
  };
  const auto sum = expected([](T a, T b) { return static_cast<T>(a + b); });
  EXPECT(reduced(ddpp::sum) == sum);
  EXPECT(reduced(ddpp::prod) == expected([](T a, T b) { return static_cast<T>(a * b); }));
  EXPECT(reduced(ddpp::min) == row<T>(5, 1));
  EXPECT(reduced(ddpp::max) == row<T>(5, n));
  std::vector<T> mean = sum, doubled = sum;
  for (T& each : mean) each = static_cast<T>(each / static_cast<T>(n));
  for (T& each : doubled) each = static_cast<T>(each * 2);
  EXPECT(reduced(ddpp::avg) == mean);
  EXPECT(reduced(ddpp::premul_sum(T(2))) == doubled);
}

}  // namespace

TEST_CASE("every reduction, in place") {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [](auto& comm) {
      reductions<float>(comm);
      reductions<double>(comm);
      reductions<int>(comm);
      reductions<std::int64_t>(comm);
      reductions<std::uint8_t>(comm);
    });
  }
}

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

TEST_CASE("different calls are a mismatch on all ranks before NCCL sees them") {
  on_ranks(3, [](auto& comm) {
    const device_array<float> x(static_cast<std::size_t>(comm.rank() == 1 ? 5 : 4));
    try {
      ddpp::all_reduce(comm, x.span());
      EXPECT(false);
    } catch (const ddpp::mismatch_error& error) {
      EXPECT(error.rank() == 1);
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
          auto work = ddpp::all_reduce_async(comm, x.span());
          const std::string text =
              support::text_of<ddpp::timeout_error>([&] { work.host_wait(); }, __FILE__, __LINE__);
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

TEST_CASE("what NCCL finds broken by itself fails the group with NCCL's words") {
  on_ranks(2, [](auto& comm) {
    const device_array<float> x(4);
    ddpp::all_reduce(comm, x.span());
    ddpp::barrier(comm);
    const setting broken(fake_cuda::network_is_broken);
    support::text_of<ddpp::revoked_error>(
        [&] {
          for (;;) ddpp::all_reduce_async(comm, x.span()).host_wait();
        },
        __FILE__, __LINE__);
    while (!comm.transport().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

// The double sees what a backend that forgot a call would do.

/// Whether the result of a copy on the caller's stream was reduced before the copy could begin.
bool overtakes(communicator& comm) {
  const device_array<float> x(row(4, 0, 0)), source(row(4, 5));
  ddpp::barrier(comm);
  bool done = false;
  {
    const setting resting(fake_cuda::default_streams_rest);
    cudaMemcpyAsync(x.span().data(), source.span().data(), 16, cudaMemcpyDeviceToDevice, comm.stream());
    auto work = ddpp::all_reduce_async(comm, x.span());
    done = work.wait_for(std::chrono::milliseconds(500));
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
    if (overtakes(comm)) overtaken = true;
  });
  CHECK(overtaken);
  on_ranks(2, [](auto& comm) { EXPECT(!overtakes(comm)); });
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
