// SPDX-License-Identifier: BSL-1.0
// What a launcher has put into the environment: torchrun, ddpp-run, mpirun, srun and their like.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace ddpp {
namespace detail {

/// Null when the variable is unset or empty.
inline const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// A whole decimal number from 0; `init_error` naming the variable and its value otherwise.
[[gnu::cold]] inline int number_in(const char* name) {
  const std::string_view value = variable(name);
  int number = 0;
  const auto [stop, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (problem != std::errc() || stop != value.data() + value.size() || number < 0) {
    throw init_error(text(name, " is \"", value, "\", which is no number from 0 to 2147483647"));
  }
  return number;
}

/// The names that a launcher uses. The local ones are optional.
struct launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

inline constexpr launcher launchers[] = {
    {"ddpp", "DDPP_RANK", "DDPP_WORLD_SIZE", "DDPP_LOCAL_RANK", "DDPP_LOCAL_WORLD_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};
inline constexpr launcher slurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

/// A Kubernetes Indexed Job gives each pod a number, and its manifest the size. (The number alone makes no
/// rank: such jobs may as well be many small ones.)
inline constexpr launcher indexed_job = {"Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE"};

/// A batch script or an interactive shell has Slurm's variables too, but nobody has started ranks there: only
/// srun's steps have an ordinary step number.
inline bool inside_srun_step() {
  const char* const step = variable("SLURM_STEP_ID");
  std::uint32_t number = 0;
  if (!step || std::from_chars(step, step + std::strlen(step), number).ec != std::errc()) return false;
  constexpr std::uint32_t first_special_step = 0xfffffff0;
  return number < first_special_step;
}

/// Where this process stands among those that its launcher has started.
struct launched {
  const launcher* by = nullptr;  ///< null: nobody has set anything, and this is a world of one
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

inline void check_rank_below_size(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank < size) return;
  throw init_error(text(rank_name, " is ", rank, ", but ", size_name, " is ", size));
}

[[gnu::cold]] inline launched read_launcher(const launcher& by) {
  const auto require = [](const char* present, const char* missing) {
    if (variable(missing)) return;
    throw init_error(
        text(present, " is set but ", missing, " is not: set both, or neither for a world of one"));
  };
  require(by.rank, by.size);
  require(by.size, by.rank);
  launched result{&by, number_in(by.rank), number_in(by.size)};
  check_rank_below_size(by.rank, result.rank, by.size, result.size);
  const bool has_local_rank = variable(by.local_rank) != nullptr;
  const bool has_local_size = by.local_size && variable(by.local_size);
  if (has_local_rank) result.local_rank = number_in(by.local_rank);
  if (has_local_size) result.local_size = number_in(by.local_size);
  if (has_local_rank && has_local_size) {
    check_rank_below_size(by.local_rank, result.local_rank, by.local_size, result.local_size);
  }
  return result;
}

/// DDPP_*, torchrun's variables (an Indexed Job's number instead of RANK), Open MPI's, PMI's, Slurm's inside
/// srun steps: the first of which any is set. Throws `init_error` when that one's are incomplete or no
/// numbers.
[[gnu::cold]] inline launched read_environment() {
  for (const launcher& each : launchers) {
    if (variable(each.rank)) return read_launcher(each);
    if (!variable(each.size)) continue;
    const bool by_index = std::string_view(each.size) == indexed_job.size && variable(indexed_job.rank);
    return read_launcher(by_index ? indexed_job : each);
  }
  if (inside_srun_step() && (variable(slurm.rank) || variable(slurm.size))) {
    launched result = read_launcher(slurm);
    if (variable("SLURM_NTASKS_PER_NODE"))
      result.local_size = number_in("SLURM_NTASKS_PER_NODE");
    else if (const char* nodes = variable("SLURM_NNODES"); nodes && std::string_view(nodes) == "1") {
      result.local_size = result.size;
    }
    return result;
  }
  if (variable("PMIX_RANK")) {
    throw init_error(
        "PMIX_RANK is set but nothing tells how many ranks there are: set RANK and WORLD_SIZE, or DDPP_RANK "
        "and "
        "DDPP_WORLD_SIZE");
  }
  return {};
}

}  // namespace detail

/// This rank's number among those on this host, as the launcher gave it; 0 when there is none. It chooses a
/// device. (Ranks that are threads of one process share it.) Throws `init_error` for a broken environment.
inline int local_rank() { return detail::read_environment().local_rank; }

/// How many ranks the launcher has started on this host; 1 when there is none or it does not say.
inline int local_size() { return detail::read_environment().local_size; }

/// How many ranks the launcher has started on all hosts, of which this process is one: `init` joins them. 0
/// when there is none: this program may `launch` its own.
inline int launched_ranks() {
  const detail::launched found = detail::read_environment();
  return found.by ? found.size : 0;
}

}  // namespace ddpp
