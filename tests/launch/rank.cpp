// SPDX-License-Identifier: BSL-1.0
// A rank as launchers start it. usage: rank [throw | die]
// Prints "rank R of N local L of M sum S", S being the sum of all ranks' numbers. Then, in the first attempt,
// rank 1 throws or dies, and the others wait for it.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/tcp.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/record.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string_view>

int main(int argc, char** argv) {
  return ddpp::record([&] {
    auto comm = ddpp::init<ddpp::tcp>();
    int sum = comm.rank();
    ddpp::all_reduce(comm, std::span(&sum, 1));
    std::printf("rank %d of %d local %d of %d sum %d\n", comm.rank(), comm.size(), ddpp::local_rank(),
                ddpp::local_size(), sum);
    std::fflush(stdout);
    const std::string_view what = argc > 1 ? argv[1] : "";
    const char* const attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (what.empty() || (attempt && std::string_view(attempt) != "0")) return;
    ddpp::barrier(comm);  // all have said so
    if (comm.rank() == 1 && what == "die") std::raise(SIGSEGV);
    if (comm.rank() == 1) throw std::runtime_error("the \"loss\" is not a number");
    ddpp::barrier(comm);
  });
}
