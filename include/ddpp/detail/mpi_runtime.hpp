// SPDX-License-Identifier: BSL-1.0
// MPI in this process: begun by the first who needs it, unless the program has begun it itself, and ended
// with the process then.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI 3 has dropped
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif

#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/failure.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <mpi.h>
#include <mutex>
#include <string>
#include <thread>

static_assert(MPI_VERSION > 3 || (MPI_VERSION == 3 && MPI_SUBVERSION >= 1),
              "ddpp: the backend `mpi` needs MPI 3.1");

namespace ddpp::detail {

inline std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  if (MPI_Error_string(code, words.data(), &length) != MPI_SUCCESS) return text("error ", code);
  return std::string(words.data(), static_cast<std::size_t>(length));
}

/// For calls while ranks come together.
inline void require_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw init_error(text(call, " failed: ", mpi_error_text(code)));
}

class mpi_runtime {
 public:
  /// Begins MPI if nobody has. Throws `init_error` where it has ended, or does not permit several threads.
  static mpi_runtime& instance() {
    static mpi_runtime* const only = new mpi_runtime;  // never destroyed: used until the process ends
    if (only->guard_.in_child()) throw usage_error("MPI cannot be used in a child forked by a rank");
    only->check();
    return *only;
  }

  /// MPI is not to be called any more.
  static bool has_ended() noexcept {
    int ended = 0;
    return MPI_Finalized(&ended) != MPI_SUCCESS || ended;
  }

  /// A group has failed: ranks may be waiting for each other in calls that will not return.
  void expect_no_good_end() noexcept { clean_.store(false); }

 private:
  mpi_runtime() {
    int begun = 0;
    require_mpi(MPI_Initialized(&begun), "MPI_Initialized");
    if (begun) return;
    int level = 0;
    require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // MPICH gives errors of messages that have ended to these, not to their own communicator.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    registered() = this;
    std::atexit([] { registered()->finish(); });
  }

  static mpi_runtime*& registered() {
    static mpi_runtime* self = nullptr;
    return self;
  }

  static void check() {
    if (has_ended())
      throw init_error("MPI_Finalize has been called: MPI cannot be begun again in this process");
    int level = 0;
    require_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) {
      throw init_error(
          text("MPI was begun with thread level ", name_of_level(level),
               ", but ddpp calls it from several threads: call MPI_Init_thread with MPI_THREAD_MULTIPLE, or "
               "leave beginning MPI to ddpp"));
    }
  }

  static const char* name_of_level(int level) {
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
  }

  // MPI_Finalize waits for all ranks: after a failure, for no longer than a while.
  void finish() noexcept {
    if (guard_.in_child() || has_ended()) return;
    if (!clean_.load()) {
      std::thread([] {
        std::this_thread::sleep_for(longest_end);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }).detach();
    }
    MPI_Finalize();
  }

  static constexpr std::chrono::seconds longest_end{10};

  fork_guard guard_;
  std::atomic<bool> clean_{true};
};

}  // namespace ddpp::detail
