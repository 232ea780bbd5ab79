// SPDX-License-Identifier: BSL-1.0
// Which types satisfy which concept, and which do not, each for one reason.
#include <ddpp/ddpp.hpp>

#include <array>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/mailbox_transport.hpp"

namespace {

// Transports. `least<part>` is one that lacks that part, least<none> lacks nothing.

enum part {
  none,
  options_type,
  construction,
  name,
  memory,
  launch,
  rank,
  size,
  send,
  receive,
  abort_group,
  request_test,
  request_wait,
  request_move
};

template <part Lacking>
struct request {
  request() = default;
  request(request&&) requires(Lacking != request_move) = default;
  request& operator=(request&&) requires(Lacking != request_move) = default;
  bool test() requires(Lacking != request_test);
  void wait(ddpp::deadline) requires(Lacking != request_wait);
};

struct no_options {};
template <part Lacking>
struct with_options {
  struct options {};
};
template <>
struct with_options<options_type> {
  class options {
    options();
  };
};
template <part Lacking>
struct with_name {
  static constexpr std::string_view name = "least";
};
template <>
struct with_name<part::name> {};
template <part Lacking>
struct with_memory {
  static constexpr ddpp::memory_space memory = ddpp::memory_space::host;
};
template <>
struct with_memory<part::memory> {};
template <part Lacking>
struct with_launch {
  static constexpr ddpp::launch_kind launch = ddpp::launch_kind::threads;
};
template <>
struct with_launch<part::launch> {};

template <part Lacking>
struct least : with_options<Lacking>, with_name<Lacking>, with_memory<Lacking>, with_launch<Lacking> {
  using options = typename with_options<Lacking>::options;
  least(const ddpp::bootstrap&, const options&) requires(Lacking != construction);
  int rank() const requires(Lacking != part::rank);
  int size() const requires(Lacking != part::size);
  request<Lacking> isend(std::span<const std::byte>, int, int) requires(Lacking != send);
  request<Lacking> irecv(std::span<std::byte>, int, int) requires(Lacking != receive);
  void abort(const ddpp::failure&) requires(Lacking != abort_group);
};

static_assert(ddpp::transport<ddpp::threads>);
static_assert(ddpp::transport<ddpp::shm>);
static_assert(ddpp::transport<ddpp::tcp>);
static_assert(ddpp::transport<support::mailbox_transport>);
static_assert(ddpp::transport<least<none>>);
static_assert(!ddpp::transport<least<options_type>>);
static_assert(!ddpp::transport<least<construction>>);
static_assert(!ddpp::transport<least<name>>);
static_assert(!ddpp::transport<least<memory>>);
static_assert(!ddpp::transport<least<launch>>);
static_assert(!ddpp::transport<least<rank>>);
static_assert(!ddpp::transport<least<size>>);
static_assert(!ddpp::transport<least<send>>);
static_assert(!ddpp::transport<least<receive>>);
static_assert(!ddpp::transport<least<abort_group>>);
static_assert(!ddpp::transport<least<request_test>>);
static_assert(!ddpp::transport<least<request_wait>>);
static_assert(!ddpp::transport<least<request_move>>);
static_assert(!ddpp::transport<void>);
static_assert(!ddpp::transport<int>);
static_assert(!ddpp::transport<std::string>);
static_assert(!ddpp::transport<const ddpp::threads&>);
static_assert(!ddpp::transport<ddpp::communicator<ddpp::threads>>);

static_assert(ddpp::transport_request<request<none>>);
static_assert(!ddpp::transport_request<request<request_test>>);
static_assert(!ddpp::transport_request<request<request_wait>>);
static_assert(!ddpp::transport_request<request<request_move>>);
static_assert(!ddpp::transport_request<int>);

// What a transport may be able to do besides.

struct control_plane : least<none> {
  void enter(const ddpp::fingerprint&);
  void leave();
  bool failed() const;
  ddpp::failure cause() const;
  std::vector<ddpp::rank_state> survey(ddpp::deadline);
};
struct without_survey : least<none> {
  void enter(const ddpp::fingerprint&);
  void leave();
  bool failed() const;
  ddpp::failure cause() const;
};
struct without_constant_failed : control_plane {
  bool failed();
};
struct receive_view : least<none> {
  static constexpr std::size_t preferred_segment = 4096;
  template <class F>
  void consume(int, int, std::size_t, ddpp::deadline, F&&);
};
struct without_segment : least<none> {
  template <class F>
  void consume(int, int, std::size_t, ddpp::deadline, F&&);
};
struct native : least<none> {  // for floats only
  void all_reduce(std::span<float>, ddpp::sum_t, ddpp::deadline);
  void broadcast(std::span<float>, int, ddpp::deadline);
  void all_gather(std::span<const float>, std::span<float>, ddpp::deadline);
  void reduce_scatter(std::span<const float>, std::span<float>, ddpp::sum_t, ddpp::deadline);
  void barrier(ddpp::deadline);
};
struct background : least<none> {
  void progress_in_background();
};

static_assert(ddpp::has_control_plane<ddpp::threads> && ddpp::has_control_plane<ddpp::shm>);
static_assert(ddpp::has_control_plane<ddpp::tcp> && ddpp::has_control_plane<control_plane>);
static_assert(!ddpp::has_control_plane<least<none>> && !ddpp::has_control_plane<support::mailbox_transport>);
static_assert(!ddpp::has_control_plane<without_survey>);
static_assert(!ddpp::has_control_plane<without_constant_failed>);

static_assert(ddpp::has_agreement<ddpp::threads> && ddpp::has_agreement<ddpp::shm>);
static_assert(!ddpp::has_agreement<least<none>> && !ddpp::has_agreement<control_plane>);

static_assert(ddpp::has_receive_view<ddpp::threads> && ddpp::has_receive_view<ddpp::shm>);
static_assert(ddpp::has_receive_view<receive_view>);
static_assert(ddpp::has_shared_slots<ddpp::threads> && ddpp::has_shared_slots<ddpp::shm>);
static_assert(!ddpp::has_shared_slots<ddpp::tcp> && !ddpp::has_shared_slots<support::mailbox_transport>);
static_assert(ddpp::has_symmetric_memory<ddpp::threads> && ddpp::has_symmetric_memory<ddpp::shm>);
static_assert(!ddpp::has_symmetric_memory<ddpp::tcp> &&
              !ddpp::has_symmetric_memory<support::mailbox_transport>);
static_assert(!ddpp::has_receive_view<without_segment> && !ddpp::has_receive_view<least<none>>);
static_assert(!ddpp::has_receive_view<support::mailbox_transport>);

static_assert(ddpp::has_background_progress<ddpp::threads> && ddpp::has_background_progress<ddpp::shm>);
static_assert(ddpp::has_background_progress<ddpp::tcp> && ddpp::has_background_progress<background>);
static_assert(!ddpp::has_background_progress<least<none>>);

static_assert(ddpp::has_all_reduce<native, float, ddpp::sum_t>);
static_assert(!ddpp::has_all_reduce<native, float, ddpp::max_t>);
static_assert(!ddpp::has_all_reduce<native, double, ddpp::sum_t>);
static_assert(ddpp::has_broadcast<native, float> && !ddpp::has_broadcast<native, int>);
static_assert(ddpp::has_all_gather<native, float> && !ddpp::has_all_gather<native, int>);
static_assert(ddpp::has_reduce_scatter<native, float, ddpp::sum_t>);
static_assert(!ddpp::has_reduce_scatter<native, float, ddpp::min_t>);
static_assert(ddpp::has_barrier<native>);
template <class T>
inline constexpr bool has_nothing_native =
    !ddpp::has_all_reduce<T, float, ddpp::sum_t> && !ddpp::has_broadcast<T, float> &&
    !ddpp::has_all_gather<T, float> && !ddpp::has_reduce_scatter<T, float, ddpp::sum_t> &&
    !ddpp::has_barrier<T>;
static_assert(has_nothing_native<ddpp::threads> && has_nothing_native<ddpp::shm>);
static_assert(has_nothing_native<ddpp::tcp> && has_nothing_native<least<none>>);

// Buffers.

struct own_tensor {
  float* values;
  std::size_t count;
};
struct strided {  // has data() and size(), and gaps between its elements
  float* data();
  std::size_t size() const;
  std::size_t stride() const;
};
struct not_trivial {
  not_trivial(const not_trivial&);
};
struct fixed_point {
  std::int32_t raw;
};

}  // namespace

template <>
struct ddpp::buffer_traits<own_tensor> {
  static std::span<float> span(own_tensor& t) { return {t.values, t.count}; }
};

namespace {

template <class X>
inline constexpr bool can_be_written = ddpp::buffer<X>&& ddpp::mutable_buffer<X>;
template <class X>
inline constexpr bool can_be_read_only = ddpp::buffer<X> && !ddpp::mutable_buffer<X>;
template <class X>
inline constexpr bool is_no_buffer = !ddpp::buffer<X> && !ddpp::mutable_buffer<X>;

static_assert(can_be_written<std::vector<float>&> && can_be_written<std::array<double, 3>&>);
static_assert(can_be_written<int (&)[4]> && can_be_written<std::string&>);
static_assert(can_be_written<std::span<float>> && can_be_written<const std::span<float>&>);
static_assert(can_be_written<std::span<float, 8>> && can_be_written<std::vector<fixed_point>&>);
static_assert(can_be_written<std::vector<ddpp::half>&> && can_be_written<std::span<std::byte>>);
static_assert(can_be_written<own_tensor&>);
static_assert(can_be_read_only<const std::vector<float>&> && can_be_read_only<std::span<const float>>);
static_assert(can_be_read_only<const std::array<int, 2>&> && can_be_read_only<const int (&)[4]>);
static_assert(can_be_read_only<std::string_view>);
static_assert(is_no_buffer<int> && is_no_buffer<float*> && is_no_buffer<std::vector<float>*>);
static_assert(is_no_buffer<std::list<float>&> && is_no_buffer<std::set<int>&> &&
              is_no_buffer<std::map<int, int>&>);
static_assert(is_no_buffer<std::vector<bool>&> && is_no_buffer<strided&>);
static_assert(is_no_buffer<std::vector<std::string>&> && is_no_buffer<std::vector<std::unique_ptr<int>>&>);
static_assert(is_no_buffer<std::vector<not_trivial>&>);
static_assert(is_no_buffer<const own_tensor&>);  // its traits have no overload for constant ones

static_assert(std::same_as<ddpp::element_t<const std::vector<float>&>, float>);
static_assert(std::same_as<ddpp::element_t<std::span<const int, 3>>, int>);
static_assert(std::same_as<ddpp::element_t<own_tensor&>, float>);

static_assert(ddpp::detail::outlives_the_call<std::vector<float>&> &&
              ddpp::detail::outlives_the_call<std::span<float>>);
static_assert(!ddpp::detail::outlives_the_call<std::vector<float>> &&
              !ddpp::detail::outlives_the_call<own_tensor>);

// Reductions.

template <class Op, class... T>
inline constexpr bool reduces_all = (ddpp::reduction_op<Op, T> && ...);
template <class Op, class... T>
inline constexpr bool reduces_none = (!ddpp::reduction_op<Op, T> && ...);

struct with_plus {
  int value;
  [[maybe_unused]] friend with_plus operator+(with_plus a, with_plus b) { return {a.value + b.value}; }
};

static_assert(reduces_all<ddpp::sum_t, std::int8_t, std::uint64_t, ddpp::half, ddpp::bfloat16, float, double,
                          with_plus>);
static_assert(reduces_none<ddpp::sum_t, fixed_point, void*, std::string>);
static_assert(reduces_all<ddpp::prod_t, std::int8_t, ddpp::half, double>);
static_assert(reduces_none<ddpp::prod_t, with_plus, fixed_point>);
static_assert(reduces_all<ddpp::min_t, std::int8_t, ddpp::bfloat16, float> &&
              reduces_none<ddpp::min_t, with_plus, bool>);
static_assert(reduces_all<ddpp::max_t, std::uint8_t, ddpp::half, double> &&
              reduces_none<ddpp::max_t, with_plus, bool>);
static_assert(reduces_all<ddpp::band_t, std::int8_t, std::uint64_t, bool>);
static_assert(reduces_none<ddpp::band_t, float, ddpp::half, with_plus>);
static_assert(reduces_all<ddpp::bor_t, int, bool> && reduces_none<ddpp::bor_t, double, ddpp::bfloat16>);
static_assert(reduces_all<ddpp::bxor_t, int, bool> && reduces_none<ddpp::bxor_t, double, ddpp::bfloat16>);
static_assert(reduces_all<ddpp::avg_t, int, ddpp::half, float> && reduces_none<ddpp::avg_t, with_plus, bool>);
static_assert(reduces_all<ddpp::premul_sum_t<double>, float, double, ddpp::half>);
static_assert(
    reduces_none<ddpp::premul_sum_t<double>, int, std::uint8_t, with_plus>);  // would round the factor
static_assert(reduces_all<ddpp::premul_sum_t<int>, int, float, ddpp::bfloat16>);

struct may_not_be_copied {
  may_not_be_copied(const may_not_be_copied&) = delete;
  int operator()(int, int) const;
};
struct changes_itself {
  int operator()(int, int);
};
using lambda = decltype([](fixed_point a, fixed_point b) { return fixed_point{a.raw + b.raw}; });
using of_one = decltype([](int a) { return a; });
using of_nothing = decltype([](int, int) {});
using of_text = decltype([](std::string a, std::string b) { return a + b; });
using of_text_length = decltype([](int, int) { return std::string(); });
static_assert(reduces_all<lambda, fixed_point> && reduces_none<lambda, int>);
static_assert(reduces_all<int (*)(int, int), int>);
static_assert(reduces_none<of_one, int> && reduces_none<of_nothing, int> &&
              reduces_none<of_text_length, int>);
static_assert(reduces_none<of_text, std::string>);  // cannot travel byte by byte
static_assert(reduces_none<may_not_be_copied, int> && reduces_none<changes_itself, int>);
static_assert(reduces_none<int, int> && reduces_none<std::string, int>);

// An algorithm never sees what is not a binary operation.
static_assert(ddpp::binary_operation<ddpp::sum_t, float> && ddpp::binary_operation<lambda, fixed_point>);
static_assert(!ddpp::binary_operation<ddpp::avg_t, float> &&
              !ddpp::binary_operation<ddpp::premul_sum_t<float>, float>);

// Which collectives an algorithm has.

using communicator = ddpp::communicator<ddpp::threads>;
using blocks = ddpp::detail::partition;
using bytes = std::span<std::byte>;
using constant_bytes = std::span<const std::byte>;

template <class A>
constexpr std::array<bool, 9> collectives_of = {
    requires(const A& a, communicator& c, std::span<float> x){a.all_reduce(c, x, ddpp::sum);
}  // namespace
, requires(const A& a, communicator& c, std::span<const float> x, std::span<float> y, const blocks& b) {
  a.reduce_scatter(c, x, y, b, ddpp::sum);
}
, requires(const A& a, communicator& c, std::span<const float> x, std::span<float> y) {
  a.reduce(c, x, y, ddpp::sum, 0);
}
, requires(const A& a, communicator& c, bytes x, const blocks& b) { a.all_gather(c, x, b); }
, requires(const A& a, communicator& c, bytes x) { a.broadcast(c, x, 0); }
, requires(const A& a, communicator& c, constant_bytes x, bytes y, const blocks& b) {
  a.gather(c, x, y, b, 0);
}
, requires(const A& a, communicator& c, constant_bytes x, bytes y, const blocks& b) {
  a.scatter(c, x, y, b, 0);
}
, requires(const A& a, communicator& c, constant_bytes x, bytes y, const blocks& b) {
  a.all_to_all(c, x, b, y, b);
}
, requires(const A& a, communicator& c) { a.barrier(c); }
,
}
;

template <class A>
constexpr bool has(std::array<int, 9> row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (collectives_of<A>[i] != (row[i] != 0)) return false;
  }
  return true;
}

using namespace ddpp::algorithms;
// all_reduce, reduce_scatter, reduce, all_gather, broadcast, gather, scatter, all_to_all, barrier
static_assert(has<automatic>({1, 1, 1, 1, 1, 1, 1, 1, 1}));
static_assert(has<ring>({1, 1, 0, 1, 1, 0, 0, 0, 0}));
static_assert(has<recursive_doubling>({1, 0, 0, 0, 0, 0, 0, 0, 0}));
static_assert(has<halving_doubling>({1, 1, 0, 0, 0, 0, 0, 0, 0}));
static_assert(has<tree>({1, 0, 1, 0, 1, 1, 1, 0, 0}));
static_assert(has<reproducible>({1, 0, 0, 0, 0, 0, 0, 0, 0}));
static_assert(has<bruck>({0, 0, 0, 1, 0, 0, 0, 1, 0}));
static_assert(has<direct>({0, 0, 0, 0, 0, 1, 1, 1, 0}));
static_assert(has<scatter_gather>({0, 0, 1, 0, 1, 0, 0, 0, 0}));
static_assert(has<dissemination>({0, 0, 0, 0, 0, 0, 0, 0, 1}));
static_assert(has<int>({0, 0, 0, 0, 0, 0, 0, 0, 0}));

}  // namespace
