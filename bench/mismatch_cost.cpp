// SPDX-License-Identifier: BSL-1.0
// What the detection of mismatches adds to an operation on 8 bytes, for a count of instructions
// (bench/mismatch_cost runs this under callgrind). Nothing here waits, so that the same is executed each
// time: one thread drives both ranks, and a message is asked for when it is there. usage: mismatch_cost
// exchange|front_door with|without OPERATIONS, or: mismatch_cost sizes
#include <ddpp/ddpp.hpp>
#include <ddpp/hash_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>

namespace {

/// A transport that cannot say where its rank stands: nothing is announced to it.
struct quiet : ddpp::threads {
  using ddpp::threads::threads;
  void enter(const ddpp::fingerprint&) = delete;
};
static_assert(ddpp::transport<quiet> && !ddpp::has_control_plane<quiet>);

std::unique_ptr<ddpp::threads> join(int rank, const std::shared_ptr<ddpp::store>& store) {
  ddpp::bootstrap boot;
  boot.rank = rank;
  boot.size = 2;
  boot.store = store;
  boot.deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  return std::make_unique<ddpp::threads>(boot, ddpp::threads::options{});
}

/// Two ranks exchange 8 bytes, as in a step of recursive doubling: in a collective, or as messages without
/// one.
void exchange(bool with_fingerprints, int operations) {
  const auto store = std::make_shared<ddpp::hash_store>();
  std::unique_ptr<ddpp::threads> ranks[2];
  {
    std::thread other([&] { ranks[1] = join(1, store); });
    ranks[0] = join(0, store);
    other.join();
  }
  const int tag = with_fingerprints ? ddpp::detail::collective_tag : 1;
  double out[2] = {1, 2}, in[2] = {};
  ddpp::fingerprint print{.count = 1, .element_size = 8, .op = ddpp::collective::all_reduce};
  const auto until = std::chrono::steady_clock::now() + std::chrono::hours(1);
  for (int i = 0; i < operations; ++i) {
    ++print.sequence;
    if (with_fingerprints) {
      for (auto& rank : ranks) rank->enter(print);
    }
    for (int r = 0; r < 2; ++r) ranks[r]->isend(std::as_bytes(std::span(&out[r], 1)), 1 - r, tag).wait(until);
    for (int r = 0; r < 2; ++r)
      ranks[r]->irecv(std::as_writable_bytes(std::span(&in[r], 1)), 1 - r, tag).wait(until);
    if (with_fingerprints) {
      for (auto& rank : ranks) rank->leave();
    }
  }
  if (in[0] != 2 || in[1] != 1) std::abort();
}

/// all_reduce of 8 bytes in a group of one, where there is nothing but the way in and out.
template <class Transport>
void front_door(int operations) {
  ddpp::communicator<Transport> alone{ddpp::bootstrap{}};
  double x = 1;
  for (int i = 0; i < operations; ++i) ddpp::all_reduce(alone, std::span(&x, 1));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "sizes") {
    std::printf("fingerprint %zu, entry of a ring %zu bytes, its payload from byte %zu\n",
                sizeof(ddpp::fingerprint), sizeof(ddpp::detail::fabric_entry),
                offsetof(ddpp::detail::fabric_entry, inline_bytes));
    return 0;
  }
  if (argc != 4) return 2;
  const bool with = argv[2] == std::string("with");
  const int operations = std::atoi(argv[3]);
  if (what == "exchange")
    exchange(with, operations);
  else if (what == "front_door" && with)
    front_door<ddpp::threads>(operations);
  else if (what == "front_door")
    front_door<quiet>(operations);
  else
    return 2;
}
