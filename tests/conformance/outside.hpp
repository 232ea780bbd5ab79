// SPDX-License-Identifier: BSL-1.0
// The suite on ranks that somebody else has started, on several hosts perhaps (tests/hosts): each process
// runs all cases, and has a child be its rank of each group that is large enough, or is the rank itself where
// its launcher knows no children (tests/mpi).
#pragma once

#include <ddpp/communicator.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/init.hpp>
#include <ddpp/launch.hpp>
#include <ddpp/spawn.hpp>
#include <ddpp/tcp_store.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace conformance {

/// Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and DDPP_TEST_RANKS=outside, or =itself.
class outside {
 public:
  /// Null where the suite starts ranks itself.
  static outside* instance() {
    static outside only;
    return only.said_ == "outside" || only.said_ == "itself" ? &only : nullptr;
  }

  /// See on_ranks. What a child throws is a spawn_error. Nothing where there are fewer than n ranks.
  template <class T, class A, class F>
  void run(int n, F& f, std::chrono::milliseconds timeout, std::chrono::milliseconds init_timeout) {
    if (here_.rank == 0 && !store_) {  // the ranks come and go, and the store stays
      store_.emplace(master_, static_cast<std::uint16_t>(std::stoi(port_)), ddpp::tcp_store::server);
    }
    const std::string group = "group " + std::to_string(groups_++);
    if (here_.rank >= n || n > here_.size) return;
    const auto be_rank = [&](int) {
      auto comm = ddpp::init<T, A>({.init_method = "tcp://" + master_ + ":" + port_,
                                    .rank = here_.rank,
                                    .world_size = n,
                                    .timeout = timeout,
                                    .init_timeout = init_timeout,
                                    .group_name = group});
      ddpp::detail::run_rank(comm, f);
    };
    if (said_ == "itself")
      be_rank(here_.rank);
    else
      ddpp::spawn(1, be_rank);
  }

 private:
  outside() {
    if (const char* const master = std::getenv("MASTER_ADDR")) master_ = master;
    if (const char* const port = std::getenv("MASTER_PORT")) port_ = port;
    if (const char* const said = std::getenv("DDPP_TEST_RANKS")) said_ = said;
  }

  const ddpp::detail::launched here_ = ddpp::detail::read_environment();
  std::string master_, port_, said_;
  std::optional<ddpp::tcp_store> store_;
  int groups_ = 0;
};

}  // namespace conformance
