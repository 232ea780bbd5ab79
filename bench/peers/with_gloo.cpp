// SPDX-License-Identifier: BSL-1.0
// Gloo over TCP on loopback: gloo::allreduce, a ring, as PyTorch calls it; or its halving and doubling.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "forked_ranks.hpp"

namespace {

using context = std::shared_ptr<gloo::Context>;

context connect(int rank, int size, const std::string& directory) {
  gloo::rendezvous::FileStore store(directory);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  const auto mesh = std::make_shared<gloo::rendezvous::Context>(rank, size);
  mesh->connectFullMesh(store, device);
  return mesh;
}

struct ring {
  gloo::AllreduceOptions options;

  ring(const context& mesh, std::vector<float>& data) : options(mesh) {
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(
        [](void* out, const void* a, const void* b, std::size_t n) { gloo::sum<float>(out, a, b, n); });
  }
  void run() { gloo::allreduce(options); }
};

struct halving_doubling {
  gloo::AllreduceHalvingDoubling<float> algorithm;

  halving_doubling(const context& mesh, std::vector<float>& data)
      : algorithm(mesh, {data.data()}, static_cast<int>(data.size())) {}
  void run() { algorithm.run(); }
};

template <class Algorithm>
struct gloo_rank {
  struct buffer {
    std::unique_ptr<std::vector<float>> elements;
    Algorithm algorithm;
    float* data() { return elements->data(); }
    std::size_t size() const { return elements->size(); }
  };

  context mesh;

  int rank() const { return mesh->rank; }
  int size() const { return mesh->size; }
  void barrier() {
    gloo::BarrierOptions options(mesh);
    gloo::barrier(options);
  }
  buffer make_buffer(std::size_t count) {
    auto elements = std::make_unique<std::vector<float>>(count);
    Algorithm algorithm(mesh, *elements);
    return {std::move(elements), std::move(algorithm)};
  }
  void call(buffer& data) { data.algorithm.run(); }
  std::size_t wrong_after(int calls, const buffer& data, const peers::values& random) {
    return random.wrong_after(calls, *data.elements);
  }
};

template <class Algorithm>
int run(const peers::arguments& given) {
  return peers::on_forked_ranks(given.ranks, [&](int rank) {
    gloo_rank<Algorithm> self{connect(rank, given.ranks, given.more[1])};
    peers::obey(given.path, given.name, self);
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const peers::arguments given(argc, argv);
  if (given.more.size() == 2 && given.more[0] == "ring") return run<ring>(given);
  if (given.more.size() == 2 && given.more[0] == "halving_doubling") return run<halving_doubling>(given);
  throw std::invalid_argument("ring or halving_doubling, and a folder in which the ranks meet");
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
