// SPDX-License-Identifier: BSL-1.0
// The suite as test cases of one transport: define TRANSPORT and include this.
#include <doctest/doctest.h>

#include "reducer_suite.hpp"

TEST_CASE("gradients of mixed types are averaged") { training::averages_of_mixed_types<TRANSPORT>(); }
TEST_CASE("buckets follow the order of rank 0") { training::layout_follows_rank_0<TRANSPORT>(); }
TEST_CASE("models of unusual shapes") { training::unusual_models<TRANSPORT>(); }
TEST_CASE("memory shared by mistake is refused") {
  training::memory_shared_by_mistake_is_refused<TRANSPORT>();
}
TEST_CASE("several models on one communicator, and one on a subgroup") {
  training::several_models_and_groups<TRANSPORT>();
}
TEST_CASE("ranks that disagree on a step") { training::ranks_that_disagree_on_a_step<TRANSPORT>(); }
TEST_CASE("different models are refused on all ranks") {
  training::different_models_are_refused<TRANSPORT>();
}
TEST_CASE("mistakes of all ranks are recoverable") { training::mistakes_of_all_are_recoverable<TRANSPORT>(); }
TEST_CASE("a mistake of one rank fails all") { training::mistake_of_one_fails_all<TRANSPORT>(); }
TEST_CASE("an exception in backward releases the others") {
  training::exception_in_backward_releases_the_others<TRANSPORT>();
}
TEST_CASE("a step may stay unfinished on all ranks") { training::unfinished_step_of_all<TRANSPORT>(); }
TEST_CASE("unused parameters") { training::unused_parameters<TRANSPORT>(); }
TEST_CASE("accumulation") { training::accumulation<TRANSPORT>(); }
TEST_CASE("gradients in buckets survive a rebuild") {
  training::view_keeps_gradients_across_rebuild<TRANSPORT>();
}
TEST_CASE("static graph") { training::static_graph<TRANSPORT>(); }
TEST_CASE("forward passes that no backward pass follows") {
  training::forwards_without_backward<TRANSPORT>();
}
TEST_CASE("buffers") { training::buffers<TRANSPORT>(); }
TEST_CASE("initial values and shared parameters") { training::initial_values<TRANSPORT>(); }
TEST_CASE("weighted averages") { training::weights<TRANSPORT>(); }
TEST_CASE("hooks") { training::hooks<TRANSPORT>(); }
TEST_CASE("a full bucket is reduced with no further call") { training::overlap_without_a_call<TRANSPORT>(); }
TEST_CASE("marks from several threads") { training::marks_from_several_threads<TRANSPORT>(); }
TEST_CASE("wait() waits for marks of other threads") {
  training::wait_for_marks_of_other_threads<TRANSPORT>();
}
TEST_CASE("replaced storage is noticed") { training::replaced_storage_is_noticed<TRANSPORT>(); }
TEST_CASE("join") { training::join<TRANSPORT>(); }
TEST_CASE("join with hooks, weights, no batches") { training::join_variants<TRANSPORT>(); }
TEST_CASE("a static graph after shadowing") { training::static_graph_after_shadowing<TRANSPORT>(); }
TEST_CASE("join that ends early") { training::join_ends_early<TRANSPORT>(); }
TEST_CASE("random training") {
  for (unsigned seed = 1; seed <= 20; ++seed) training::random_training<TRANSPORT>(seed);
  for (unsigned seed = 1; seed <= 20; ++seed) training::random_joins<TRANSPORT>(seed);
}
