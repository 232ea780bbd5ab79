// SPDX-License-Identifier: BSL-1.0
// Runs a test of relacy's under one of its schedulers, and says what it has found.
#pragma once

#include <cstdlib>
#include <doctest/doctest.h>
#include <string>

#include "relacy_atomics.hpp"

namespace model {

inline bool runs_long() {
  const char* const full = std::getenv("DDPP_TEST_FULL");
  return full != nullptr && *full != '\0';
}

struct outcome {
  rl::test_result_e result;
  rl::iteration_t executions;
  std::string story;  // where it failed: each access, in order
};

template <class Test, template <rl::thread_id_t> class Scheduler>
outcome explore(rl::test_params& params, flaw with) {
  using scheduler = Scheduler<Test::params::thread_count>;
  current_flaw = with;
  rl::ostringstream story, state;  // whose memory is not the test's
  params.output_stream = params.progress_stream = &story;
  params.execution_depth_limit = 20'000;
  const rl::test_result_e result = rl::run_test<Test, scheduler>(params, state, false);
  if (result != rl::test_result_success) {  // once more, to hear how
    params.initial_state = state.str();
    params.collect_history = true;
    rl::run_test<Test, scheduler>(params, state, true);
  }
  return {result, params.stop_iteration, story.str().c_str()};
}

/// So many executions, and ten times as many in the long suites. Each choice is random.
template <class Test>
outcome at_random(rl::iteration_t executions, flaw with = {}) {
  rl::test_params params;
  params.search_type = rl::sched_random;
  params.iteration_count = executions * (runs_long() ? 10 : 1);
  return explore<Test, rl::random_scheduler>(params, with);
}

/// All executions in which threads that could have gone on are interrupted at most so many times, and once
/// more often in the long suites.
template <class Test>
outcome with_interruptions(unsigned most, flaw with = {}) {
  rl::test_params params;
  params.search_type = rl::sched_bound;
  params.context_bound = most + (runs_long() ? 1 : 0);
  return explore<Test, rl::context_bound_scheduler>(params, with);
}

inline void check_right(const outcome& found) {
  MESSAGE("right in ", found.executions, " executions");
  INFO(found.story);
  CHECK(found.result == rl::test_result_success);
}

inline void check_wrong(const outcome& found, rl::test_result_e expected) {
  MESSAGE("wrong in execution ", found.executions);
  INFO(found.story);
  CHECK(found.result == expected);
}

}  // namespace model
