// SPDX-License-Identifier: BSL-1.0
// Two ranks exchange small messages, and then large ones, between marks that a tracer of system calls
// can see. usage: payload shm|tcp
#include <ddpp/ddpp.hpp>

#include <unistd.h>
#include <vector>

namespace {

void exchange(auto& comm, std::size_t count) {
  std::vector<float> x(count, 1.0f);
  ddpp::all_reduce(comm, x);
  if (x.front() != 2.0f || x.back() != 2.0f) throw std::runtime_error("a wrong sum");
  const int other = 1 - comm.rank();
  std::vector<float> received(count);
  auto arriving = ddpp::irecv(comm, received, other);
  ddpp::send(comm, x, other);
  arriving.wait();
  if (received != x) throw std::runtime_error("a wrong message");
}

void ping_pong(auto& comm, int times) {
  std::vector<double> ball(1);
  for (int i = 0; i < times; ++i) {
    if (comm.rank() == 0) ddpp::send(comm, ball, 1);
    ddpp::recv(comm, ball, 1 - comm.rank());
    if (comm.rank() == 1) ddpp::send(comm, ball, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  ddpp::visit_backend(argv[1], [](auto tag) {
    ddpp::launch<typename decltype(tag)::type>(2, [](auto& comm) {
      ping_pong(comm, 1);
      (void)!::chdir("/the small messages begin");
      ping_pong(comm, 100);
      (void)!::chdir("/the small messages end");
      ddpp::barrier(comm);
      exchange(comm, 1000);  // what is made on first use is made here
      ddpp::barrier(comm);
      (void)!::chdir("/the exchange begins");
      for (const std::size_t count : {1u, 100u, 10'000u, 5'000'000u}) exchange(comm, count);
      (void)!::chdir("/the exchange ends");
      ddpp::barrier(comm);
    });
  });
}
