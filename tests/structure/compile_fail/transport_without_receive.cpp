// SPDX-License-Identifier: BSL-1.0
// A transport that lacks something is told what.
// expect: error: .*(constraint|no matching)
// expect: irecv
#include <ddpp/ddpp.hpp>

struct request {
  bool test() { return true; }
  void wait(ddpp::deadline) {}
};

struct transport {
  struct options {};
  static constexpr std::string_view name = "lonely";
  static constexpr ddpp::memory_space memory = ddpp::memory_space::host;
  static constexpr ddpp::launch_kind launch = ddpp::launch_kind::threads;
  transport(const ddpp::bootstrap&, const options&) {}
  int rank() const { return 0; }
  int size() const { return 1; }
  request isend(std::span<const std::byte>, int, int) { return {}; }
#ifdef WRONG
  request receive(std::span<std::byte>, int, int) { return {}; }
#else
  request irecv(std::span<std::byte>, int, int) { return {}; }
#endif
  void abort(const ddpp::failure&) {}
};

using communicator = ddpp::communicator<transport>;
