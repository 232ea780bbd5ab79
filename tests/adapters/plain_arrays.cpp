// SPDX-License-Identifier: BSL-1.0
// Models without a tensor library: pointers with counts, one block with a table of sizes, nested vectors,
// arrays, and whatever else is contiguous, as Armadillo's matrices are. The transformer of the examples is
// one: its gradients are those that differences give, and ranks that share a batch learn what one rank learns
// from all of it.
#include <ddpp/all_reduce.hpp>
#include <ddpp/backends/threads.hpp>
#include <ddpp/broadcast.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/launch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/character_transformer_model.hpp"
#include "../skip.hpp"
#include "../support/expect.hpp"

#if __has_include(<armadillo>)
#define ARMA_DONT_USE_WRAPPER  // headers alone
#define ARMA_DONT_USE_BLAS
#define ARMA_DONT_USE_LAPACK
#include <armadillo>
#endif

namespace {

using ddpp::buffer;
using ddpp::mutable_buffer;
template <class X>
X& lvalue();

static_assert(mutable_buffer<std::vector<float>&> && mutable_buffer<std::array<double, 3>&> &&
              mutable_buffer<float (&)[4]>);
static_assert(mutable_buffer<std::span<float>> && mutable_buffer<std::span<double, 2>>);
static_assert(buffer<const std::vector<float>&> && !mutable_buffer<const std::vector<float>&>);
static_assert(buffer<std::span<const float>> && !mutable_buffer<std::span<const float>>);
static_assert(!buffer<std::vector<std::vector<float>>&> && !buffer<std::vector<bool>&>);
static_assert(!buffer<float*> && !buffer<float*&>, "a pointer does not say how many");

/// Gradients of the step: other ones on each rank and for each parameter.
float gradient_of(int rank, std::size_t parameter, int step) {
  return static_cast<float>(4 * rank + step) + 10 * static_cast<float>(parameter);
}
/// Their average over two ranks.
float average_of(std::size_t parameter, int step) {
  return (gradient_of(0, parameter, step) + gradient_of(1, parameter, step)) / 2;
}

/// Trains three steps on two ranks with the parameters that `model.list()` has, whose gradients are
/// model.gradient(i).
template <class Model>
void check_training() {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    Model model(static_cast<float>(comm.rank() + 1));
    const std::vector<ddpp::parameter> list = model.list();
    EXPECT(list.size() > 1);
    ddpp::distributed_data_parallel ddp(comm, list, {.bucket_cap_mb = 1e-5});
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (const float x : model.value(i)) EXPECT(x == 1);  // rank 0's
    }
    for (int step = 0; step < 3; ++step) {
      ddp.prepare();
      for (std::size_t i = list.size(); i-- > 0;) {
        for (float& x : model.gradient(i)) x = gradient_of(comm.rank(), i, step);
        ddp.mark_ready(i);
      }
      ddp.wait();
      for (std::size_t i = 0; i < list.size(); ++i) {
        for (const float x : model.gradient(i)) EXPECT(x == average_of(i, step));
      }
    }
  });
}

struct nested_vectors {
  std::vector<std::vector<float>> values, gradients;
  explicit nested_vectors(float x)
      : values{std::vector<float>(3, x), std::vector<float>(1, x), std::vector<float>(7, x)},
        gradients(values) {}
  std::vector<ddpp::parameter> list() {
    std::vector<ddpp::parameter> all;
    for (std::size_t i = 0; i < values.size(); ++i)
      all.emplace_back("layer" + std::to_string(i), values[i], gradients[i]);
    return all;
  }
  std::span<float> value(std::size_t i) { return values[i]; }
  std::span<float> gradient(std::size_t i) { return gradients[i]; }
};

struct pointers_with_counts {
  static constexpr std::size_t counts[] = {5, 2, 4};
  std::unique_ptr<float[]> values[3], gradients[3];
  explicit pointers_with_counts(float x) {
    for (std::size_t i = 0; i < 3; ++i) {
      values[i] = std::make_unique<float[]>(counts[i]);
      gradients[i] = std::make_unique<float[]>(counts[i]);
      std::fill_n(values[i].get(), counts[i], x);
    }
  }
  std::vector<ddpp::parameter> list() {
    std::vector<ddpp::parameter> all;
    for (std::size_t i = 0; i < 3; ++i) {
      float *const w = values[i].get(), *const g = gradients[i].get();
      all.emplace_back("tensor" + std::to_string(i), std::span(w, counts[i]), std::span(g, counts[i]));
    }
    return all;
  }
  std::span<float> value(std::size_t i) { return {values[i].get(), counts[i]}; }
  std::span<float> gradient(std::size_t i) { return {gradients[i].get(), counts[i]}; }
};

struct arrays {
  std::array<float, 3> weights, weights_gradient;
  float bias[2], bias_gradient[2];
  float scale, scale_gradient;
  explicit arrays(float x) : bias{x, x}, scale(x) { weights.fill(x); }
  std::vector<ddpp::parameter> list() {
    return {ddpp::parameter("weights", weights, weights_gradient),
            ddpp::parameter("bias", bias, bias_gradient),
            ddpp::parameter("scale", std::span(&scale, 1), std::span(&scale_gradient, 1))};
  }
  std::span<float> value(std::size_t i) {
    return i == 0 ? std::span<float>(weights) : i == 1 ? bias : std::span(&scale, 1);
  }
  std::span<float> gradient(std::size_t i) {
    return i == 0   ? std::span<float>(weights_gradient)
           : i == 1 ? bias_gradient
                    : std::span(&scale_gradient, 1);
  }
};

#if __has_include(<armadillo>)
static_assert(mutable_buffer<arma::mat&> && mutable_buffer<arma::fvec&> && mutable_buffer<arma::cube&>);
static_assert(mutable_buffer<arma::mat::fixed<3, 4>&> && mutable_buffer<arma::umat&> &&
              buffer<arma::cx_mat&>);
static_assert(buffer<const arma::mat&> && !mutable_buffer<const arma::mat&>);
static_assert(!buffer<decltype(lvalue<arma::mat>().row(0))> &&
              !buffer<decltype(lvalue<arma::mat>().submat(0, 0, 1, 1))>);
static_assert(!buffer<decltype(lvalue<arma::mat>() + lvalue<arma::mat>())> && !buffer<arma::sp_mat&>);

struct armadillo_matrices {
  arma::fmat weights, weights_gradient;
  arma::fvec bias, bias_gradient;
  arma::fcube filters, filters_gradient;
  explicit armadillo_matrices(float x)
      : weights(3, 4),
        weights_gradient(3, 4),
        bias(3),
        bias_gradient(3),
        filters(2, 3, 2),
        filters_gradient(2, 3, 2) {
    weights.fill(x);
    bias.fill(x);
    filters.fill(x);
  }
  std::vector<ddpp::parameter> list() {
    return {ddpp::parameter("weights", weights, weights_gradient),
            ddpp::parameter("bias", bias, bias_gradient),
            ddpp::parameter("filters", filters, filters_gradient)};
  }
  std::span<float> value(std::size_t i) {
    return i == 0 ? std::span<float>(weights) : i == 1 ? std::span<float>(bias) : std::span<float>(filters);
  }
  std::span<float> gradient(std::size_t i) {
    return i == 0   ? std::span<float>(weights_gradient)
           : i == 1 ? std::span<float>(bias_gradient)
                    : std::span<float>(filters_gradient);
  }
};
#endif

constexpr transformer_shape tiny{.vocabulary = 11, .context = 6, .width = 20, .heads = 2, .layers = 2};

/// Random characters, some of them more than once in a window.
character_batch random_batch(std::size_t windows, std::size_t length, std::uint32_t seed) {
  std::mt19937 random(seed);
  character_batch batch{windows, length};
  for (auto* list : {&batch.characters, &batch.following}) {
    for (std::size_t i = 0; i < windows * length; ++i)
      list->push_back(static_cast<std::uint8_t>(random() % tiny.vocabulary));
  }
  return batch;
}

/// Of a batch of four windows.
character_batch part_of(const character_batch& whole, int rank, int ranks) {
  const std::size_t windows = whole.windows / static_cast<std::size_t>(ranks);
  const auto first = static_cast<std::ptrdiff_t>(windows * whole.length) * rank;
  const auto last = first + static_cast<std::ptrdiff_t>(windows * whole.length);
  return {windows,
          whole.length,
          {whole.characters.begin() + first, whole.characters.begin() + last},
          {whole.following.begin() + first, whole.following.begin() + last}};
}

/// As initialised most gradients are too small to tell a wrong one: larger weights, and scales and shifts
/// that differ.
void stir(character_transformer<double>& model) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 0.3);
  for (double& p : model.parameters) p += normal(random);
}

std::vector<double> train(int ranks) {
  std::vector<double> result;
  ddpp::launch<ddpp::threads>(ranks, [&](auto& comm) {
    character_transformer<double> model(tiny, static_cast<std::uint32_t>(comm.rank()));
    adamw<double> optimizer(model.parameters.size());
    std::vector<ddpp::parameter> parameters;
    std::size_t at = 0;
    for (const auto& t : model.tensors) {
      parameters.emplace_back(t.name, std::span(model.parameters).subspan(at, t.count),
                              std::span(model.gradients).subspan(at, t.count));
      at += t.count;
    }
    ddpp::distributed_data_parallel ddp(comm, std::move(parameters), {.bucket_cap_mb = 0.01});
    EXPECT(ddp.bucket_assignment().size() > 3);
    for (std::uint32_t step = 0; step < 8; ++step) {
      const auto batch = part_of(random_batch(4, tiny.context, step), comm.rank(), comm.size());
      model.zero_gradients();
      ddp.prepare();
      model.forward(batch);
      model.backward(batch, [&](std::size_t i) { ddp.mark_ready(i); });
      ddp.wait();
      optimizer.step(model, 1e-3);
    }
    if (comm.rank() == 0) result = model.parameters;
  });
  return result;
}

}  // namespace

TEST_CASE("nested vectors, pointers with counts and arrays are parameters") {
  check_training<nested_vectors>();
  check_training<pointers_with_counts>();
  check_training<arrays>();
}

TEST_CASE("a vector that has got itself other memory is named") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    nested_vectors model(1);
    ddpp::distributed_data_parallel ddp(comm, model.list());
    ddp.prepare();
    model.gradients[1] = std::vector<float>(1000);
    const auto text = EXPECT_THROWS(ddpp::reducer_error, ddp.mark_ready(1));
    EXPECT(support::says(text, "layer1"));
  });
}

TEST_CASE("a gradient that a backward pass writes twice is marked after the second time") {
  ddpp::launch<ddpp::threads>(2, [](auto& comm) {
    const std::size_t sizes[] = {40, 3, 5};  // of the tensors "tied", "weights", "bias" in one block
    std::vector<float> values(48), gradients(48);
    std::vector<ddpp::parameter> list;
    std::size_t first = 0;
    for (const char* name : {"tied", "weights", "bias"}) {
      const std::size_t count = sizes[list.size()];
      list.emplace_back(name, std::span(values).subspan(first, count),
                        std::span(gradients).subspan(first, count));
      first += count;
    }
    ddpp::distributed_data_parallel ddp(comm, list, {.bucket_cap_mb = 1e-5});
    const float mine = static_cast<float>(comm.rank());
    const auto write = [&](std::size_t from, std::size_t count, float x) {
      for (float& g : std::span(gradients).subspan(from, count)) g += x;
    };
    for (int step = 0; step < 3; ++step) {
      std::fill(gradients.begin(), gradients.end(), 0.0f);
      ddp.prepare();
      write(0, 40, 1 + mine);  // as the output
      write(43, 5, mine);
      ddp.mark_ready(2);
      write(40, 3, 10 * mine);
      ddp.mark_ready(1);
      write(0, 40, 100 * mine);  // as the input
      ddp.mark_ready(0);
      ddp.wait();
      for (std::size_t i = 0; i < 48; ++i) EXPECT(gradients[i] == (i < 40 ? 51.5f : i < 43 ? 5.0f : 0.5f));
    }

    ddp.prepare();
    ddp.mark_ready(0);
    EXPECT(support::says(EXPECT_THROWS(ddpp::reducer_error, ddp.mark_ready(0)), "tied"));
    EXPECT_THROWS(ddpp::reducer_error, ddp.wait());
  });
}

TEST_CASE("Armadillo's matrices are buffers and parameters as they are") {
#if __has_include(<armadillo>)
  check_training<armadillo_matrices>();
  ddpp::launch<ddpp::threads>(3, [](auto& comm) {
    arma::mat a(2, 3);
    a.fill(comm.rank() + 1);
    a(1, 2) = 10 * (comm.rank() + 1);
    const arma::mat mine = a;
    arma::mat sum(2, 3);
    ddpp::all_reduce(comm, mine, sum);
    EXPECT(sum(0, 0) == 6 && sum(1, 2) == 60);
    ddpp::broadcast(comm, a, 2);
    EXPECT(a(0, 1) == 3 && a(1, 2) == 30);
  });
#else
  ddpp::testing::skip("libarmadillo-dev is not installed");
#endif
}

TEST_CASE("gradients are those of differences") {
  character_transformer<double> model(tiny, 1);
  stir(model);
  const auto batch = random_batch(3, tiny.context - 1, 2);
  model.zero_gradients();
  model.forward(batch);
  model.backward(batch, [](std::size_t) {});
  const std::vector<double> gradients = model.gradients;
  std::size_t at = 0;
  for (const auto& t : model.tensors) {
    double greatest = 0;
    for (std::size_t i = at; i < at + t.count; i += 1 + t.count / 40) {
      constexpr double h = 1e-5;
      const double here = model.parameters[i];
      model.parameters[i] = here + h;
      const double above = model.forward(batch);
      model.parameters[i] = here - h;
      const double below = model.forward(batch);
      model.parameters[i] = here;
      const double expected = (above - below) / (2 * h);
      CHECK_MESSAGE(std::abs(gradients[i] - expected) < 1e-7, t.name, " ", i - at, ": ", gradients[i], " ",
                    expected);
      greatest = std::max(greatest, std::abs(expected));
    }
    CHECK_MESSAGE(greatest > 1e-4, t.name, " has no gradient to speak of");
    at += t.count;
  }
}

TEST_CASE("each gradient is final when it is said to be, and all are said once") {
  character_transformer<double> model(tiny, 1);
  const auto batch = random_batch(2, tiny.context, 5);
  model.forward(batch);
  std::vector<std::size_t> first{0};
  for (const auto& t : model.tensors) first.push_back(first.back() + t.count);
  std::vector<std::pair<std::size_t, std::vector<double>>> said;
  model.backward(batch, [&](std::size_t i) {
    said.emplace_back(i, std::vector<double>(&model.gradients[first[i]],
                                             &model.gradients[first[i]] + (first[i + 1] - first[i])));
  });
  std::set<std::size_t> all;
  for (const auto& mark : said) {
    all.insert(mark.first);
    const bool final =
        std::equal(mark.second.begin(), mark.second.end(), &model.gradients[first[mark.first]]);
    CHECK_MESSAGE(final, model.tensors[mark.first].name);
  }
  CHECK(said.size() == model.tensors.size());
  CHECK(all.size() == model.tensors.size());
  CHECK(said.back().first == 0);  // written to first and last
}

TEST_CASE("several ranks learn what one does") {
  const auto alone = train(1);
  for (const int ranks : {2, 4}) {
    const auto together = train(ranks);
    REQUIRE(together.size() == alone.size());
    double difference = 0;
    for (std::size_t i = 0; i < alone.size(); ++i)
      difference = std::max(difference, std::abs(together[i] - alone[i]));
    CHECK(difference < 1e-9);
    CHECK(difference >
          0);  // sums in another order: had the ranks not shared the batch, all bits would be the same
  }
}
