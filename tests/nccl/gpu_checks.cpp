// SPDX-License-Identifier: BSL-1.0
// What the nccl backend promises, checked on devices: needs nothing but CUDA, NCCL and these headers. Runs on
// the double too.
//
// usage: gpu_checks [--threads RANKS] [CHECK...]
//
// A launcher's environment makes this process one rank; otherwise RANKS threads are the ranks. Without names:
// all checks but `killed`, which kills its last rank. Each rank says "ok CHECK" after each, and ends with
// status 1 at the first that fails.
#include <ddpp/backends/nccl.hpp>
#include <ddpp/ddpp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "../../examples/cuda_kernels.hpp"
#include "../support/expect.hpp"

namespace {

using namespace std::chrono_literals;
using communicator = ddpp::communicator<ddpp::nccl>;
using support::says;

constexpr auto generous = 60s;  // no working operation comes near

/// Who this thread or process is.
struct place {
  int rank = 0, size = 1, local_rank = 0;
  std::shared_ptr<ddpp::store> store = {};  // null: where the launcher's ranks meet

  communicator join(std::chrono::milliseconds timeout = generous, cudaStream_t stream = nullptr) const {
    ddpp::init_options options;
    if (store) {
      options.rank = rank;
      options.world_size = size;
      options.store = store;
    }
    options.timeout = timeout;
    options.init_timeout = generous;
    return ddpp::init<ddpp::nccl>(options, {.stream = stream});
  }
};

/// As what is on the caller's stream so far leaves them.
template <class T>
std::vector<T> values(const communicator& comm, const device_array<T>& array) {
  std::vector<T> host(array.size());
  const cudaStream_t stream = comm.transport().stream();
  check(cudaMemcpyAsync(host.data(), array.data(), host.size() * sizeof(T), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return host;
}

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

/// Small numbers, of which every partial result is a number of type T: rank r's element i.
template <class T>
T element(int rank, std::size_t i) {
  return static_cast<T>(static_cast<float>(1 + (static_cast<std::size_t>(rank) + i) % 3));
}
template <class T>
std::vector<T> elements(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = element<T>(rank, first + i);
  return all;
}

/// Exact, but where a mean of floating-point numbers is one.
template <class T>
bool close(const std::vector<T>& found, const std::vector<T>& expected) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (!(std::abs(a - b) <= (is_float<T> ? b / 100 : 0))) return false;
  }
  return true;
}

template <class T, class Op>
void check_reduction(communicator& comm, Op op, std::size_t count, double (*combine)(double, double),
                     double factor) {
  const int n = comm.size(), r = comm.rank(), root = n - 1;
  const auto expected = [&](std::size_t begin, std::size_t size) {
    std::vector<T> all(size);
    for (std::size_t i = 0; i < size; ++i) {
      double value = static_cast<double>(element<T>(0, begin + i));
      for (int other = 1; other < n; ++other)
        value = combine(value, static_cast<double>(element<T>(other, begin + i)));
      value *= factor;
      all[i] = static_cast<T>(static_cast<float>(is_float<T> ? value : std::floor(value + 1e-6)));
    }
    return all;
  };
  const std::size_t ranks = static_cast<std::size_t>(n), mine = static_cast<std::size_t>(r) * count;
  const device_array<T> in(elements<T>(r, count)), long_in(elements<T>(r, count * ranks));
  const device_array<T> in_place(elements<T>(r, count)), out(count), at_root(count), scattered(count);
  ddpp::all_reduce(comm, in_place.span(), op);
  ddpp::all_reduce(comm, in.span(), out.span(), op);
  ddpp::reduce(comm, in.span(), at_root.span(), op, root);
  ddpp::reduce_scatter(comm, long_in.span(), scattered.span(), op);
  EXPECT(close(values(comm, in_place), expected(0, count)));
  EXPECT(close(values(comm, out), expected(0, count)));
  EXPECT(close(values(comm, in), elements<T>(r, count)));
  EXPECT(close(values(comm, at_root), r == root ? expected(0, count) : std::vector<T>(count)));
  EXPECT(close(values(comm, scattered), expected(mine, count)));
}

template <class T>
void check_reductions_of(communicator& comm) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{70'001}}) {
    const auto add = [](double a, double b) { return a + b; };
    check_reduction<T>(comm, ddpp::sum, count, add, 1);
    check_reduction<T>(comm, ddpp::avg, count, add, 1.0 / comm.size());
    check_reduction<T>(comm, ddpp::premul_sum(T(2)), count, add, 2);
    check_reduction<T>(
        comm, ddpp::prod, count, [](double a, double b) { return a * b; }, 1);
    check_reduction<T>(
        comm, ddpp::min, count, [](double a, double b) { return std::min(a, b); }, 1);
    check_reduction<T>(
        comm, ddpp::max, count, [](double a, double b) { return std::max(a, b); }, 1);
  }
}

void reductions(const place& here) {
  communicator comm = here.join();
  check_reductions_of<std::int8_t>(comm);
  check_reductions_of<std::uint8_t>(comm);
  check_reductions_of<std::int32_t>(comm);
  check_reductions_of<std::uint32_t>(comm);
  check_reductions_of<std::int64_t>(comm);
  check_reductions_of<std::uint64_t>(comm);
  check_reductions_of<ddpp::half>(comm);
  check_reductions_of<ddpp::bfloat16>(comm);
  check_reductions_of<float>(comm);
  check_reductions_of<double>(comm);
}

/// An element that NCCL has no name for.
struct three_words {
  std::uint32_t words[3];
  friend bool operator==(const three_words& a, const three_words& b) {
    return std::equal(a.words, a.words + 3, b.words);
  }
};
/// What rank `from` has for rank `to`, at i.
three_words letter(int from, int to, std::size_t i) {
  return {{static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to), static_cast<std::uint32_t>(i)}};
}
std::vector<three_words> letters(int from, int to, std::size_t count) {
  std::vector<three_words> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = letter(from, to, i);
  return all;
}
template <class Part>
std::vector<three_words> joined(int ranks, Part part) {
  std::vector<three_words> all;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<three_words> next = part(r);
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

void check_moves(communicator& comm, std::size_t count) {
  const int n = comm.size(), r = comm.rank(), root = n / 2;
  const auto ranks = static_cast<std::size_t>(n);
  const device_array<three_words> mine(letters(r, r, count)), shared(letters(r, r, count));
  ddpp::broadcast(comm, shared.span(), root);
  EXPECT(values(comm, shared) == letters(root, root, count));

  const auto everyones = joined(n, [&](int from) { return letters(from, from, count); });
  const device_array<three_words> all(count * ranks), at_root(count * ranks);
  ddpp::all_gather(comm, mine.span(), all.span());
  EXPECT(values(comm, all) == everyones);
  ddpp::gather(comm, mine.span(), at_root.span(), root);
  EXPECT(values(comm, at_root) == (r == root ? everyones : std::vector<three_words>(count * ranks)));

  const device_array<three_words> sent(joined(n, [&](int to) { return letters(r, to, count); }));
  const device_array<three_words> received(count * ranks), part(count);
  ddpp::all_to_all(comm, sent.span(), received.span());
  EXPECT(values(comm, received) == joined(n, [&](int from) { return letters(from, r, count); }));
  ddpp::scatter(comm, sent.span(), part.span(), root);
  EXPECT(values(comm, part) == letters(root, r, count));

  // With counts: rank r has r * count elements.
  std::vector<std::size_t> counts(ranks);
  for (std::size_t i = 0; i < ranks; ++i) counts[i] = i * count;
  const std::size_t own = counts[static_cast<std::size_t>(r)];
  const auto uneven =
      joined(n, [&](int from) { return letters(from, from, counts[static_cast<std::size_t>(from)]); });
  const device_array<three_words> some(letters(r, r, own)), some_of_all(uneven.size()), back(own);
  ddpp::all_gather_v(comm, some.span(), some_of_all.span(), counts);
  EXPECT(values(comm, some_of_all) == uneven);
  ddpp::scatter_v(comm, some_of_all.span(), back.span(), counts, root);
  EXPECT(values(comm, back) == letters(r, r, own));
}

void moves(const place& here) {
  communicator comm = here.join();
  for (const std::size_t count : {std::size_t{1}, std::size_t{70'001}}) check_moves(comm, count);
  ddpp::barrier(comm);
}

void messages(const place& here) {
  communicator comm = here.join();
  const int n = comm.size(), r = comm.rank(), next = (r + 1) % n, before = (r + n - 1) % n;
  for (const std::size_t count : {std::size_t{1}, std::size_t{300'000}}) {
    const device_array<three_words> out(letters(r, next, count)), in(count), again(count), grouped(count);
    auto sending = ddpp::isend(comm, out.span(), next);
    auto receiving = ddpp::irecv(comm, in.span(), before);
    sending.wait();
    receiving.wait();
    EXPECT(values(comm, in) == letters(before, r, count));
    ddpp::send_recv(comm, out.span(), next, again.span(), before);
    EXPECT(values(comm, again) == letters(before, r, count));
    ddpp::group(comm, [&] {
      ddpp::send(comm, out.span(), next);
      ddpp::recv(comm, grouped.span(), before);
    });
    EXPECT(values(comm, grouped) == letters(before, r, count));
  }
}

class stream {
 public:
  stream() { check(cudaStreamCreateWithPriority(&made_, cudaStreamNonBlocking, 0)); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { cudaStreamDestroy(made_); }
  operator cudaStream_t() const { return made_; }

 private:
  cudaStream_t made_ = nullptr;
};

/// What is on the caller's stream takes long; the operation follows it, and what comes after wait follows the
/// operation. The host does not wait.
void order(const place& here) {
  const stream callers;
  communicator comm = here.join(generous, callers);
  constexpr std::size_t count = std::size_t{4} << 20;
  const device_array<float> ones(std::vector<float>(count, 1)), x(count), result(count);
  for (int round = 1; round <= 20; ++round) {
    check(cudaMemsetAsync(x.data(), 0, count * sizeof(float), callers));
    check(cudaMemcpyAsync(x.data(), ones.data(), count * sizeof(float), cudaMemcpyDeviceToDevice, callers));
    auto work = ddpp::all_reduce_async(comm, x.span());
    work.wait();
    check(cudaMemcpyAsync(result.data(), x.data(), count * sizeof(float), cudaMemcpyDeviceToDevice, callers));
    check(cudaMemsetAsync(x.data(), 0, count * sizeof(float), callers));
  }
  EXPECT(values(comm, result) == std::vector<float>(count, static_cast<float>(comm.size())));

  auto work = ddpp::all_reduce_async(comm, result.span(), ddpp::max);
  work.host_wait();
  EXPECT(work.done());
}

/// A captured all-reduce is done at each launch of the graph, on what is in the buffer then.
void graph(const place& here) {
  const stream callers;
  communicator comm = here.join(generous, callers);
  const device_array<float> x(elements<float>(comm.rank(), 1009));
  ddpp::all_reduce(comm, x.span(), ddpp::max);  // what NCCL sets up at the first call cannot be captured
  check(cudaStreamSynchronize(callers));
  ddpp::barrier(comm);

  cudaGraph_t captured = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(callers, cudaStreamCaptureModeThreadLocal));
  ddpp::all_reduce_async(comm, x.span()).wait();
  check(cudaStreamEndCapture(callers, &captured));
  check(cudaGraphInstantiate(&executable, captured, 0));
  const std::vector<float> ones(1009, 1);
  check(cudaMemcpyAsync(x.data(), ones.data(), 1009 * sizeof(float), cudaMemcpyHostToDevice, callers));
  for (int launch = 0; launch < 3; ++launch) check(cudaGraphLaunch(executable, callers));
  const auto cubed = static_cast<float>(comm.size() * comm.size() * comm.size());
  EXPECT(values(comm, x) == std::vector<float>(1009, cubed));
  ddpp::barrier(comm);
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(captured));
}

/// Zero for all streams, also for those that do not wait for the communicator's.
void symmetric(const place& here) {
  const stream callers;
  communicator comm = here.join(generous, callers);
  constexpr std::size_t count = 100'000;
  const auto values_of = [&](const ddpp::symmetric_buffer<float>& x) {
    std::vector<float> host(count, 5);
    check(cudaMemcpy(host.data(), x.data(), count * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
  };
  for (int i = 0; i < 10; ++i)
    EXPECT(values_of(ddpp::allocate_symmetric<float>(comm, count)) == std::vector<float>(count));

  auto x = ddpp::allocate_symmetric<float>(comm, count);
  const std::vector<float> mine = elements<float>(comm.rank(), count);
  check(cudaMemcpyAsync(x.data(), mine.data(), count * sizeof(float), cudaMemcpyHostToDevice, callers));
  ddpp::all_reduce(comm, x, ddpp::max);
  check(cudaStreamSynchronize(callers));
  std::vector<float> greatest(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (int r = 0; r < comm.size(); ++r) greatest[i] = std::max(greatest[i], element<float>(r, i));
  }
  EXPECT(values_of(x) == greatest);
}

/// Some devices reach all memory; the others' ranks refuse the host's.
void host_memory(const place& here) {
  communicator comm = here.join();
  int device = 0, reaches = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, device));
  const std::vector<float> sum(4, static_cast<float>(comm.size()));
  std::vector<float> host(4, 1);
  if (reaches != 0) {
    ddpp::all_reduce(comm, host);
    check(cudaStreamSynchronize(comm.transport().stream()));
    EXPECT(host == sum);
    std::printf("the device reaches all memory\n");
  } else {
    EXPECT(says(EXPECT_THROWS(ddpp::usage_error, ddpp::all_reduce(comm, host)), "cannot reach"));
  }
  const device_array<float> x(std::vector<float>(4, 1));
  ddpp::all_reduce(comm, x.span());
  EXPECT(values(comm, x) == sum);
}

/// More ranks than devices, and NCCL_HOSTID the same for all of them.
void one_device(const place&) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  const std::string text = EXPECT_THROWS(
      ddpp::init_error,
      ddpp::launch<ddpp::nccl>(devices + 1, [](auto&) {}, {.timeout = generous, .init_timeout = generous}));
  EXPECT(says(text, "have the same device"));
}

void mismatch(const place& here) {
  communicator comm = here.join();
  if (comm.size() == 1) return;
  const int odd = comm.size() - 1;
  const device_array<float> x(static_cast<std::size_t>(comm.rank() == odd ? 5 : 4));
  try {
    ddpp::all_reduce(comm, x.span());
    EXPECT(false);
  } catch (const ddpp::mismatch_error& error) {
    EXPECT(error.rank() == odd || (comm.size() == 2 && error.rank() == 0));
  }
}

/// So many that comparisons are rare from here on, and a rank that does not come is noticed on the device.
void pass_first_comparisons(communicator& comm, const device_array<float>& x) {
  for (int i = 0; i < 31; ++i) ddpp::all_reduce(comm, x.span(), ddpp::max);
  check(cudaStreamSynchronize(comm.transport().stream()));
  ddpp::barrier(comm);
}

void timeout(const place& here) {
  communicator comm = here.join(5s);
  if (comm.size() == 1) return;
  const int late = comm.size() - 1;
  const device_array<float> x(4);
  pass_first_comparisons(comm, x);
  const auto begin = std::chrono::steady_clock::now();
  if (comm.rank() != late) {
    auto work = ddpp::all_reduce_async(comm, x.span());
    const std::string text = EXPECT_THROWS(ddpp::timeout_error, work.host_wait());
    EXPECT(says(text, "rank " + std::to_string(late)));
  }
  while (!comm.transport().failed() && std::chrono::steady_clock::now() - begin < generous)
    std::this_thread::sleep_for(1ms);
  EXPECT(std::chrono::steady_clock::now() - begin < 20s);
  EXPECT_THROWS(ddpp::timeout_error, ddpp::barrier(comm));
}

void revoke(const place& here) {
  communicator comm = here.join();
  if (comm.size() == 1) return;
  const device_array<float> x(std::vector<float>(4, 1));
  if (comm.rank() == 0) {
    comm.revoke("on purpose");
  } else {
    const std::string text = EXPECT_THROWS(
        ddpp::revoked_error, for (;;) { ddpp::all_reduce_async(comm, x.span()).host_wait(); });
    EXPECT(says(text, "on purpose"));
  }
  communicator fresh = comm.shrink();
  EXPECT(fresh.size() == comm.size());
  const device_array<float> y(std::vector<float>(4, 1));
  ddpp::all_reduce(fresh, y.span());
  EXPECT(values(fresh, y) == std::vector<float>(4, static_cast<float>(fresh.size())));
}

/// The last rank, a process, is killed while the others wait for it on the device.
void killed(const place& here) {
  communicator comm = here.join();
  const int lost = comm.size() - 1;
  EXPECT(lost > 0 && !here.store);
  const device_array<float> x(4);
  pass_first_comparisons(comm, x);
  if (comm.rank() == lost) {
    std::this_thread::sleep_for(500ms);
    std::raise(SIGKILL);
  }
  const auto begin = std::chrono::steady_clock::now();
  auto work = ddpp::all_reduce_async(comm, x.span());
  try {
    work.host_wait();
    EXPECT(false);
  } catch (const ddpp::peer_lost& error) {
    EXPECT(error.rank() == lost);
  }
  EXPECT(std::chrono::steady_clock::now() - begin < 20s);
  communicator fresh = comm.shrink();
  EXPECT(fresh.size() == lost);
  const device_array<float> y(std::vector<float>(4, 1));
  ddpp::all_reduce(fresh, y.span());
  EXPECT(values(fresh, y) == std::vector<float>(4, static_cast<float>(lost)));
}

struct named_check {
  std::string_view name;
  void (*run)(const place&);
};
constexpr named_check checks[] = {
    {"reductions", reductions},
    {"moves", moves},
    {"messages", messages},
    {"order", order},
    {"graph", graph},
    {"symmetric", symmetric},
    {"host_memory", host_memory},
    {"one_device", one_device},
    {"mismatch", mismatch},
    {"timeout", timeout},
    {"revoke", revoke},
    {"killed", killed},
};

/// Ends the process at the first failure: other ranks may be waiting for this one.
void run_checks(const place& here, const std::vector<named_check>& chosen) {
  take_device(here.local_rank);
  for (const named_check& each : chosen) {
    try {
      each.run(here);
      std::printf("ok %s\n", std::string(each.name).c_str());
      std::fflush(stdout);
    } catch (const std::exception& error) {
      std::printf("FAIL %s: rank %d of %d: %s\n", std::string(each.name).c_str(), here.rank, here.size,
                  error.what());
      std::fflush(stdout);
      std::_Exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(600);
  int threads = 1;
  std::vector<named_check> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--threads" && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
      continue;
    }
    const auto* const found =
        std::find_if(std::begin(checks), std::end(checks), [&](const auto& c) { return c.name == argument; });
    if (found == std::end(checks)) {
      std::fprintf(stderr, "gpu_checks: there is no check '%s'\n", argv[i]);
      return 2;
    }
    chosen.push_back(*found);
  }
  if (chosen.empty()) chosen.assign(std::begin(checks), std::end(checks) - 1);

  const auto launched = ddpp::detail::read_environment();
  if (launched.by != nullptr) {
    run_checks({launched.rank, launched.size, launched.local_rank}, chosen);
    return 0;
  }
  const auto store = std::make_shared<ddpp::hash_store>(generous);
  std::vector<std::thread> ranks;
  for (int r = 0; r < threads; ++r)
    ranks.emplace_back([&, r] { run_checks({r, threads, r, store}, chosen); });
  for (std::thread& each : ranks) each.join();
}
