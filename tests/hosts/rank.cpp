// SPDX-License-Identifier: BSL-1.0
// One rank of the tests with several hosts, started there by test_hosts.py.
//
// usage: hosts_rank TASK [SECONDS FOR INIT]     It prints "ready" once the group has met, and does the task:
//   meet          at each line that it reads sums over tcp, in all algorithms and groups; ends with its input
//   all_reduce    again and again
//   recv          something that the next rank never sends
//   exchange      large messages with every other rank, again and again
// The last three end by an error only: status 3 and its name and text.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/error.hpp>
#include <ddpp/init.hpp>
#include <ddpp/point_to_point.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

using group = ddpp::communicator<ddpp::tcp>;

template <class C, class A>
void check_sum(C& comm, std::size_t count, const A& algorithm) {
  std::vector<double> values(count, comm.rank() + 1.0);
  ddpp::all_reduce(comm, values, ddpp::sum, algorithm);
  const double right = 0.5 * comm.size() * (comm.size() + 1);
  if (std::count(values.begin(), values.end(), right) != std::ssize(values)) {
    throw std::logic_error("a wrong sum");
  }
}

void check_sums(group& comm) {
  for (const std::size_t count : {1, 1'000, 300'000}) {
    check_sum(comm, count, ddpp::algorithms::automatic{});
    check_sum(comm, count, ddpp::algorithms::ring{});
    check_sum(comm, count, ddpp::algorithms::tree{});
  }
  auto part = comm.split(comm.rank() % 2, comm.rank());
  check_sum(part, 1'000, ddpp::algorithms::automatic{});
}

void meet(group& comm) {
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c != '\n') continue;
    check_sums(comm);
    std::puts("summed");
  }
  ddpp::barrier(comm);
}

void exchange(group& comm) {
  const std::size_t count = 2'000'000;
  std::vector<std::vector<float>> out, in;
  for (int peer = 0; peer < comm.size(); ++peer) {
    out.emplace_back(count);
    in.emplace_back(count);
  }
  std::vector<ddpp::work> pending;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    pending.push_back(ddpp::isend(comm, out[static_cast<std::size_t>(peer)], peer));
    pending.push_back(ddpp::irecv(comm, in[static_cast<std::size_t>(peer)], peer));
  }
  for (ddpp::work& each : pending) each.wait();
}

void run(group& comm, std::string_view task) {
  std::vector<float> values(100'000);
  if (task == "meet") return meet(comm);
  while (task == "all_reduce") ddpp::all_reduce(comm, values);
  while (task == "recv") ddpp::recv(comm, values, (comm.rank() + 1) % comm.size());
  while (task == "exchange") exchange(comm);
  throw std::invalid_argument("no such task");
}

int say(const char* name, const std::exception& error) {
  std::printf("%s: %s\n", name, error.what());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 2) return 2;
  const auto init_timeout = std::chrono::seconds(argc == 2 ? 30 : std::atoi(argv[2]));
  try {
    auto comm = ddpp::init<ddpp::tcp>({.timeout = std::chrono::minutes(10), .init_timeout = init_timeout});
    ddpp::barrier(comm);
    std::puts("ready");
    run(comm, argv[1]);
  } catch (const ddpp::peer_lost& error) {
    return say("peer_lost", error);
  } catch (const ddpp::timeout_error& error) {
    return say("timeout_error", error);
  } catch (const std::exception& error) {
    return say("error", error);
  }
}
