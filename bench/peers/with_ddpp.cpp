// SPDX-License-Identifier: BSL-1.0
// ddpp: shm or tcp, private or symmetric buffers.
#include <ddpp/ddpp.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "measurement.hpp"

namespace {

template <class Comm, bool symmetric>
struct ddpp_rank {
  Comm& comm;

  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  void barrier() { ddpp::barrier(comm); }
  auto make_buffer(std::size_t count) {
    if constexpr (symmetric)
      return ddpp::allocate_symmetric<float>(comm, count);
    else
      return std::vector<float>(count);
  }
  template <class Buffer>
  void call(Buffer& buffer) {
    ddpp::all_reduce(comm, buffer);
  }
  template <class Buffer>
  std::size_t wrong_after(int calls, const Buffer& buffer, const peers::values& random) {
    return random.wrong_after(calls, std::span(buffer.data(), buffer.size()));
  }
};

template <class Transport, bool symmetric>
void run(const peers::arguments& given) {
  ddpp::launch<Transport>(given.ranks, [&](auto& comm) {
    ddpp_rank<std::remove_reference_t<decltype(comm)>, symmetric> self{comm};
    peers::obey(given.path, given.name, self);
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const peers::arguments given(argc, argv);
  const std::string what = given.more.empty() ? "" : given.more[0];
  if (what == "shm_private")
    run<ddpp::shm, false>(given);
  else if (what == "shm_symmetric")
    run<ddpp::shm, true>(given);
  else if (what == "tcp")
    run<ddpp::tcp, false>(given);
  else
    throw std::invalid_argument("the last argument is shm_private, shm_symmetric or tcp");
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
