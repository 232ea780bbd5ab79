// SPDX-License-Identifier: BSL-1.0
// One start of all the ranks of this node, until all have ended.
#pragma once

#include <ddpp/detail/rank_processes.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include "console.hpp"
#include "job_failure.hpp"
#include "meeting.hpp"
#include "plan.hpp"
#include "rank_output.hpp"
#include "signals.hpp"

namespace launcher {

/// What is the same in every attempt.
struct node_setting {
  const plan& todo;
  console& screen;
  signal_queue& signals;
  rlimit rank_files;                  ///< how many descriptors a rank may open
  const sigset_t& rank_signals;       ///< what is blocked in the ranks
  const std::function<bool()>& kept;  ///< the process that the user started is there
  meeting* others;                    ///< null: this is the only node
  std::string folder;                 ///< for logs and error files
  int node = 0;
  int first_rank = 0;
  int world_size = 1;
};

class attempt {
 public:
  /// Starts the ranks. Throws `ddpp::error` and std::runtime_error when it cannot; then none is left.
  attempt(const node_setting& setting, int number, const meeting_place& place);
  ~attempt();
  attempt(const attempt&) = delete;
  attempt& operator=(const attempt&) = delete;

  /// Blocks until all ranks of all nodes have ended well (returns nothing), or some have failed, or the job
  /// was told to end. Then nothing of this node's is left.
  std::optional<job_failure> run();

 private:
  using clock = std::chrono::steady_clock;

  void start_rank(int local_rank, const meeting_place& place);
  [[noreturn]] void become_rank(int local_rank,
                                const std::vector<std::pair<std::string, std::string>>& environment,
                                const std::vector<char*>& arguments, const std::vector<int>& cores, int out,
                                int err);
  std::string rank_folder(int local_rank) const;
  file_descriptor open_stream(int local_rank, int fd);

  void watch();
  void wait_for_news(bool of_signals);
  void take_signals();
  void take_ends();
  void ask_others();
  bool all_have_finished();
  void fail(job_failure failure);
  job_failure failure_of(std::size_t local_rank);

  void pass_on(int signal);
  void send_to_all(int signal);
  void wind_down();
  void wait_for_others_to_fail();
  void finish_output();
  bool is_rank(pid_t process) const;
  bool something_runs() const;

  const node_setting& setting_;
  int number_;
  ddpp::detail::rank_reports reports_;
  ddpp::detail::child_processes ranks_;
  rank_output output_;
  std::optional<job_failure> failure_ = {};
  bool failed_here_ = false;
  int ending_signal_ = SIGTERM;
  bool announced_done_ = false;
  clock::time_point next_question_ = {};
};

}  // namespace launcher
