// SPDX-License-Identifier: BSL-1.0
// What only a hierarchy has: hosts that are found, bytes that do not leave them, and ranks whose failures
// have two numbers. That it does what every transport does, the conformance suite shows.
#include <ddpp/all_gather.hpp>
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/hierarchical.hpp>
#include <ddpp/backends/shm.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/communicator.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/reduce_scatter.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <functional>
#include <numeric>
#include <signal.h>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../support/places.hpp"
#include "../support/transport_life.hpp"

namespace {

using namespace std::chrono_literals;

/// What algorithms send across, in bytes.
class counting_tcp : public ddpp::tcp {
 public:
  using basic_tcp::basic_tcp;
  std::uint64_t sent = 0;

  auto isend(std::span<const std::byte> data, int peer, int tag) {
    if (tag < 0) sent += data.size();
    return basic_tcp::isend(data, peer, tag);
  }
};

/// A character per rank: the host that it says it is on.
struct shape {
  static inline std::string hosts;
};

template <class Inner, class Outer>
class shaped : public ddpp::hierarchical<Inner, Outer> {
  using base = ddpp::hierarchical<Inner, Outer>;

 public:
  shaped(const ddpp::bootstrap& boot, const typename base::options& settings)
      : base(boot, with_name(boot, settings)) {}

 private:
  static typename base::options with_name(const ddpp::bootstrap& boot, typename base::options settings) {
    settings.host = shape::hosts.at(static_cast<std::size_t>(boot.rank));
    return settings;
  }
};

using counted = shaped<ddpp::shm, counting_tcp>;

template <class T, class F>
void on(const std::string& hosts, F f) {
  CAPTURE(hosts);
  shape::hosts = hosts;
  CHECK_NOTHROW(ddpp::launch<T>(static_cast<int>(hosts.size()), f, {.timeout = 60s}));
}

std::size_t count_of_hosts(const std::string& hosts) {
  return static_cast<std::size_t>(*std::max_element(hosts.begin(), hosts.end()) - 'a') + 1;
}

/// What the ranks of each host have sent to other hosts while f ran, by host.
template <class C, class F>
std::vector<std::uint64_t> sent_across(C& comm, F f) {
  std::uint64_t& counter = comm.transport().across().sent;
  counter = 0;
  f();
  const std::uint64_t mine = std::exchange(counter, 0);
  std::vector<std::uint64_t> each(static_cast<std::size_t>(comm.size()));
  ddpp::all_gather(comm, std::span(&mine, 1), each);
  std::vector<std::uint64_t> hosts(count_of_hosts(shape::hosts));
  for (std::size_t r = 0; r < each.size(); ++r)
    hosts[static_cast<std::size_t>(shape::hosts[r] - 'a')] += each[r];
  return hosts;
}

constexpr const char* shapes[] = {"aabb",  "abab",  "aaabbbccc", "abcabc",
                                  "aaabb", "abbbb", "abc",       "aaaaaabbbcc"};

ddpp::detail::host_identity somewhere() {
  ddpp::detail::host_identity place;
  place.boot.front() = 'x';
  place.processes = place.users = place.files = 1;
  return place;
}

std::string grouped(const std::vector<ddpp::detail::host_identity>& ranks,
                    ddpp::launch_kind kind = ddpp::launch_kind::processes) {
  const auto layout = ddpp::detail::layout_of(ranks, kind);
  std::string hosts;
  for (int r = 0; r < layout.ranks(); ++r) hosts += static_cast<char>('a' + layout.host_of(r));
  return hosts;
}

}  // namespace

TEST_CASE("a host sends what one rank of a ring over hosts would send") {
  for (const std::string hosts : shapes) {
    on<counted>(hosts, [&](auto& comm) {
      const std::size_t number = count_of_hosts(hosts);
      const auto ranks = static_cast<std::size_t>(comm.size());
      const std::uint64_t bytes =
          std::uint64_t{6'652'800} / number * number;  // 2520 * 2640: cut evenly by all
      std::vector<float> data(bytes / sizeof(float), static_cast<float>(comm.rank()));
      const auto reduced = sent_across(comm, [&] { ddpp::all_reduce(comm, data); });
      for (const std::uint64_t host : reduced) EXPECT(host == 2 * (number - 1) * bytes / number);
      const auto sum = static_cast<float>(ranks * (ranks - 1) / 2);
      EXPECT(std::count(data.begin(), data.end(), sum) == static_cast<std::ptrdiff_t>(data.size()));

      // Sums of 16-bit numbers go across in float, results in 16 bits.
      std::vector<ddpp::half> halves(data.size(), ddpp::half(static_cast<float>(comm.rank())));
      const auto averaged = sent_across(comm, [&] { ddpp::all_reduce(comm, halves, ddpp::avg); });
      for (const std::uint64_t host : averaged)
        EXPECT(host == 3 * (number - 1) * data.size() * sizeof(ddpp::half) / number);
      const auto average = static_cast<float>(ranks - 1) / 2;
      EXPECT(std::all_of(halves.begin(), halves.end(),
                         [&](ddpp::half x) { return static_cast<float>(x) == average; }));

      // A piece for each rank: the ring passes on all but the pieces of one host.
      const std::size_t piece = 277'200;
      std::vector<float> whole(ranks * piece), own(piece);
      std::vector<std::uint64_t> of_host(number);
      for (const char host : hosts) of_host[static_cast<std::size_t>(host - 'a')] += piece * sizeof(float);
      const auto all = std::accumulate(of_host.begin(), of_host.end(), std::uint64_t{0});
      std::fill(own.begin(), own.end(), static_cast<float>(comm.rank()));
      const auto gathered = sent_across(comm, [&] { ddpp::all_gather(comm, own, whole); });
      for (std::size_t h = 0; h < number; ++h) EXPECT(gathered[h] == all - of_host[(h + 1) % number]);
      for (std::size_t r = 0; r < ranks; ++r) {
        EXPECT(whole[r * piece] == static_cast<float>(r) &&
               whole[(r + 1) * piece - 1] == static_cast<float>(r));
      }
      const auto scattered = sent_across(comm, [&] { ddpp::reduce_scatter(comm, whole, own); });
      for (std::size_t h = 0; h < number; ++h) EXPECT(scattered[h] == all - of_host[h]);
      EXPECT(own.front() == static_cast<float>(ranks) * static_cast<float>(comm.rank()) &&
             own.back() == own.front());

      std::vector<ddpp::half> whole_halves(whole.size(), ddpp::half(0.5f)), own_halves(piece);
      const auto halved = sent_across(comm, [&] { ddpp::reduce_scatter(comm, whole_halves, own_halves); });
      EXPECT(halved == scattered);
      EXPECT(static_cast<float>(own_halves.front()) == 0.5f * static_cast<float>(ranks) &&
             static_cast<float>(own_halves.back()) == 0.5f * static_cast<float>(ranks));

      // No host gets it twice.
      const int root = comm.size() - 1;
      if (comm.rank() == root) std::iota(data.begin(), data.end(), 0.0f);
      const auto sent = sent_across(comm, [&] { ddpp::broadcast(comm, data, root); });
      EXPECT(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}) == (number - 1) * bytes);
      EXPECT(data[1] == 1 && data[data.size() - 2] == static_cast<float>(data.size() - 2));
      const auto nothing = sent_across(comm, [&] { ddpp::barrier(comm); });
      EXPECT(std::accumulate(nothing.begin(), nothing.end(), std::uint64_t{0}) == 0);
    });
  }
}

TEST_CASE("ranks of one host send nothing across, whatever they do") {
  on<counted>("aaaa", [](auto& comm) {
    std::vector<int> data(100'000, 1), all(400'000);
    const auto sent = sent_across(comm, [&] {
      ddpp::all_reduce(comm, data);
      ddpp::all_gather(comm, data, all);
      ddpp::reduce_scatter(comm, all, data);
      ddpp::broadcast(comm, data, 2);
    });
    EXPECT(sent == std::vector<std::uint64_t>{0});
    EXPECT(data.back() == 16);
  });
}

TEST_CASE("threads inside, tcp across") {
  on<shaped<ddpp::threads, ddpp::tcp>>("abbab", [](auto& comm) {
    EXPECT(comm.transport().hosts() == 2 && comm.transport().host_of(1) == comm.transport().host_of(4));
    std::vector<std::int64_t> data(70'001, comm.rank());
    ddpp::all_reduce(comm, data);
    EXPECT(data.front() == 10 && data.back() == 10);
  });
}

TEST_CASE("who is on which host") {
  const auto one = somewhere();
  auto files = one, processes = one, other_boot = one, other_user = one, named = one, nothing = one;
  files.processes = 2;    // another table of processes, the same /dev/shm
  processes.files = 2;    // the other way round
  nothing.processes = 3;  // a container of its own
  nothing.files = 3;
  other_boot.boot.front() = 'y';
  other_user.user = 7;
  named.name.front() = 'n';
  CHECK(grouped({one, one, one}) == "aaa");
  CHECK(grouped({one, files, one, files}) == "aaaa");
  CHECK(grouped({one, processes, one}) == "aaa");
  CHECK(grouped({one, nothing, one, nothing}) == "abab");
  CHECK(grouped({other_boot, one, other_user, named, one}) == "abcdb");
  // Of two ways that exclude each other the one that more ranks can go.
  CHECK(grouped({one, files, processes, processes}) == "abaa");
  CHECK(grouped({one, files, files, processes}) == "aaab");
  auto unknown = one;
  unknown.boot = {};
  CHECK(grouped({unknown, unknown}) == "ab");
  auto unseen = one;
  unseen.processes = unseen.files = 0;
  CHECK(grouped({unseen, unseen}) == "ab");
  auto second = one;
  second.process = 5;
  CHECK(grouped({one, second, one}, ddpp::launch_kind::threads) == "aba");
}

TEST_CASE("rails join all hosts") {
  const ddpp::detail::host_layout layout({7, 3, 7, 7, 3});
  CHECK(layout.hosts() == 2);
  CHECK(layout.rails() == 2);
  const auto members = layout.members(0), rail = layout.rail(1);
  CHECK(std::vector<int>(members.begin(), members.end()) == std::vector<int>{0, 2, 3});
  CHECK(std::vector<int>(rail.begin(), rail.end()) == std::vector<int>{2, 4});
  CHECK(layout.local_of(4) == 1);
}

TEST_CASE("a host's failure is told with the numbers that the ranks have in the group") {
  const std::vector<int> members{4, 11, 2};
  using ddpp::failure_kind;
  const auto told = ddpp::detail::told_outside(
      {failure_kind::peer_lost, 1, "rank 1 left while rank 0 waited, rank 7 and rank x did not: rank 2"},
      members);
  CHECK(told.rank == 11);
  CHECK(told.text == "rank 11 left while rank 4 waited, rank 7 and rank x did not: rank 2");
  for (const int rank : {-1, 0, 11}) {
    const ddpp::failure cause{failure_kind::revoked, rank, "rank 1 said so"};
    const auto inside = ddpp::detail::told_inside(cause, members.size());
    CHECK(ddpp::detail::was_told_inside(inside, members.size()));
    const auto back = ddpp::detail::told_outside(inside, members);
    CHECK(back.rank == rank);
    CHECK(back.text == cause.text);
  }
}

TEST_CASE("who dies is known to all by its number in the group, wherever they wait") {
  using hosts = shaped<ddpp::shm, ddpp::tcp>;
  shape::hosts = "abbab";
  const auto barrier = [](hosts& t, std::uint64_t number) {
    t.enter({.sequence = number, .op = ddpp::collective::barrier});
    t.barrier(support::soon());
    t.leave();
  };
  for (const int victim : {0, 1, 4}) {
    CAPTURE(victim);
    support::kill_one<hosts>(
        5, victim, "rank " + std::to_string(victim),
        [&](hosts& t, const std::function<void()>& ready) {
          barrier(t, 1);
          ready();
        },
        [&](hosts& t) {
          barrier(t, 1);
          barrier(t, 2);
        });
  }
}

TEST_CASE("a name that is too long") {
  CHECK_THROWS_AS(ddpp::detail::host_identity::here(std::string(65, 'x')), ddpp::usage_error);
}

TEST_CASE("ranks with a /dev/shm and processes of their own are on another host") {
  if (!support::can_make_hosts()) return;
  using hosts = ddpp::hierarchical<ddpp::shm, ddpp::tcp>;
  const support::scratch_directory directory;
  const auto run = [&](int first) {
    return support::on_host("64m", [&, first] {
      const auto start_ranks = [&, first] {
        std::vector<pid_t> ranks;
        for (int rank = first; rank < 5; rank += 2) {
          ranks.push_back(support::process([&, rank] {
            ddpp::communicator<hosts> comm(support::bootstrap_of(rank, 5, support::store_in(directory)));
            EXPECT(comm.transport().hosts() == 2);
            for (int r = 0; r < 5; ++r) EXPECT(comm.transport().host_of(r) == r % 2);
            std::vector<int> data(50'000, rank);
            ddpp::all_reduce(comm, data);
            EXPECT(data.front() == 10 && data.back() == 10);
            ddpp::barrier(comm);
          }));
        }
        for (const pid_t rank : ranks) EXPECT(support::status_of(rank) == 0);
      };
      EXPECT(support::status_of(support::process([&] { support::in_own_process_table(start_ranks); })) == 0);
    });
  };
  const pid_t even = run(0), odd = run(1);
  CHECK(support::status_of(even) == 0);
  CHECK(support::status_of(odd) == 0);
}
