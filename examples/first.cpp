// Four ranks on this machine, one sum.
#include <ddpp/ddpp.hpp>

#include <cstdio>
#include <vector>

int main() {
  ddpp::launch<ddpp::shm>(4, [](auto& comm) {  // the backend is a template argument: shm, tcp, threads, ...
    std::vector<float> gradient(1'000'000, float(comm.rank() + 1));
    ddpp::all_reduce(comm, gradient);  // in place; the operation defaults to ddpp::sum

    if (comm.rank() == 0) std::printf("%d ranks, every element is %g\n", comm.size(), gradient[999'999]);
  });
}
