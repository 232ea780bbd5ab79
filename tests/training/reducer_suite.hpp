// SPDX-License-Identifier: BSL-1.0
// What distributed_data_parallel promises, as functions over any transport. Each launches its own ranks.
#pragma once

#include <ddpp/all_reduce.hpp>
#include <ddpp/barrier.hpp>
#include <ddpp/distributed_data_parallel.hpp>
#include <ddpp/launch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "../support/ranks.hpp"
#include "memory.hpp"

namespace training {

using ddpp::parameter;
using ddpp::reducer_error;

/// The text of the Error that f throws.
template <class Error, class F>
std::string text_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::logic_error("nothing was thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Some parameters of float, named p0, p1, ..., and their gradients, in memory that T moves.
template <class T>
struct floats {
  std::vector<array<T, float>> values, gradients;
  std::vector<parameter> list;

  explicit floats(const std::vector<std::size_t>& sizes, float value = 0)
      : values(sizes.size()), gradients(sizes.size()) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      values[i].assign(sizes[i], value);
      gradients[i].assign(sizes[i], 0);
      list.emplace_back("p" + std::to_string(i), values[i], gradients[i]);
    }
  }
  void fill(float value) {
    for (auto& g : gradients) std::fill(g.begin(), g.end(), value);
  }
  bool all(float value) const {
    return std::all_of(gradients.begin(), gradients.end(), [&](const auto& g) {
      return std::all_of(g.begin(), g.end(), [&](float x) { return x == value; });
    });
  }
};

inline std::vector<std::size_t> last_first(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

template <class D>
void step(D& ddp, const std::vector<std::size_t>& order) {
  ddp.prepare();
  for (const std::size_t i : order) ddp.mark_ready(i);
  ddp.wait();
}

constexpr double kib = 1.0 / 1024;  // in MiB

template <class T>
void averages_of_mixed_types() {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const bool view : {false, true}) {
      ddpp::launch<T>(ranks, [&](auto& comm) {
        array<T, float> a(1000), ga(1000), empty, gempty;
        array<T, double> b(77), gb(77);
        array<T, ddpp::half> c(33), gc(33);
        array<T, ddpp::bfloat16> d(129), gd(129);
        array<T, float> e(1), ge(1);
        std::fill(a.begin(), a.end(), float(comm.rank() + 5));
        std::fill(d.begin(), d.end(), ddpp::bfloat16(float(comm.rank() + 3)));
        distributed_data_parallel ddp(
            comm,
            {parameter("a", a, ga), parameter("b", b, gb), parameter("c", c, gc),
             parameter("empty", empty, gempty), parameter("d", d, gd), parameter("e", e, ge)},
            {.bucket_cap_mb = kib, .gradient_as_bucket_view = view});
        EXPECT(a[999] == 5 && float(d[128]) == 3);
        const float mean = float(ranks - 1) / 2;
        for (int s = 0; s < 3; ++s) {
          ddp.prepare();
          const auto write = [&]<class E>(std::size_t i, E) {
            for (E& x : ddp.template grad<E>(i)) x = E(float(comm.rank() + s));
            ddp.mark_ready(i);
          };
          write(5, 0.0f), write(4, ddpp::bfloat16()), write(3, 0.0f);
          write(1, 0.0), write(2, ddpp::half()), write(0, 0.0f);
          ddp.wait();
          const auto holds = [&]<class E>(std::size_t i, double error, E) {
            return std::ranges::all_of(ddp.template grad<E>(i), [&](E x) {
              return std::abs(static_cast<double>(x) - double(mean + float(s))) <=
                     error * double(mean + float(s));
            });
          };
          EXPECT(holds(0, 1e-6, 0.0f) && holds(1, 1e-15, 0.0) && holds(5, 1e-6, 0.0f));
          EXPECT(holds(2, 2e-3, ddpp::half()) && holds(4, 2e-2, ddpp::bfloat16()));
        }
      });
    }
  }
}

template <class T>
void layout_follows_rank_0() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({256, 256, 256, 256, 256, 256});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = 2 * kib});
    EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{4, 5}, {2, 3}, {0, 1}});
    EXPECT(ddp.statistics().bucket_bytes == std::vector<std::size_t>(3, 2048));
    std::vector<std::size_t> order = {3, 0, 5, 1, 2, 4};
    if (comm.rank() == 1) std::reverse(order.begin(), order.end());
    for (int s = 0; s < 3; ++s) {
      model.fill(float(comm.rank()));
      step(ddp, order);
      EXPECT(model.all(1));
      if (s > 0) EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{3, 0}, {5, 1}, {2, 4}});
    }
    EXPECT(ddp.statistics().steps == 3);
  });
}

/// Trains `sizes` for three steps; returns the layout in the end.
template <class C>
ddpp::bucket_layout trains(C& comm, const std::vector<std::size_t>& sizes, ddpp::ddp_options options) {
  floats<typename C::transport_type> model(sizes);
  distributed_data_parallel ddp(comm, model.list, std::move(options));
  const auto value = [](int rank, std::size_t i, int s) { return float(rank + int(i % 7) + s); };
  for (int s = 0; s < 3; ++s) {
    ddp.prepare();
    for (const std::size_t i : last_first(sizes.size())) {
      std::ranges::fill(ddp.template grad<float>(i), value(comm.rank(), i, s));
      ddp.mark_ready(i);
    }
    ddp.wait();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const float mean = value(0, i, s) + float(comm.size() - 1) / 2;
      EXPECT(std::ranges::all_of(ddp.template grad<float>(i),
                                 [&](float x) { return std::abs(x - mean) <= 1e-6f * mean; }));
    }
  }
  return ddp.bucket_assignment();
}

template <class T>
void unusual_models() {
  for (const bool view : {false, true}) {
    ddpp::launch<T>(3, [&](auto& comm) {
      const ddpp::ddp_options plain{.gradient_as_bucket_view = view};
      EXPECT(trains(comm, {0}, plain) == ddpp::bucket_layout{{0}});
      EXPECT(trains(comm, {0, 0, 3, 0}, plain).size() == 1);
      EXPECT(trains(comm, {1}, plain).size() == 1);
      // The first limit, of 1 MiB, is passed by one large parameter; the rest has 25.
      EXPECT(trains(comm, {10, 700'000, 5, 300'000, 20}, plain) == ddpp::bucket_layout{{4, 3}, {2, 1, 0}});
      EXPECT(trains(comm, std::vector<std::size_t>(1000, 3),
                    {.bucket_cap_mb = kib, .find_unused_parameters = true, .gradient_as_bucket_view = view})
                 .size() == 12);
    });
  }
}

template <class T>
void memory_shared_by_mistake_is_refused() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({4, 4, 4});
    array<T, float> own(4), another(4), block(20), gradients(20);
    const auto with = [&](parameter more) {
      auto list = model.list;
      list.push_back(std::move(more));
      return list;
    };
    const auto refused = [&](const std::vector<parameter>& list) {
      return text_of<ddpp::usage_error>([&] { distributed_data_parallel ddp(comm, list); });
    };
    std::string text = refused(with({"thief", own, model.gradients[1]}));
    EXPECT(contains(text, "gradients of parameter 1 (\"p1\") and parameter 3 (\"thief\") share memory"));
    text = refused(with({"tied", model.values[2], another}));
    EXPECT(contains(text, "(\"tied\") has the values of parameter 2 (\"p2\") but another gradient"));
    // A table of offsets that is wrong by one.
    const auto part = [](array<T, float>& of, std::size_t at) { return std::span(of).subspan(at, 8); };
    text = refused({{"a", part(block, 7), part(gradients, 8)}, {"b", part(block, 0), part(gradients, 0)}});
    EXPECT(contains(text, "values of parameter 0 (\"a\") and parameter 1 (\"b\") share memory"));
    text = refused({{"a", own}, {"b", another}});
    EXPECT(contains(text, "nothing to reduce"));

    text = text_of<reducer_error>([&] {
      const auto list = comm.rank() == 1 ? with({"x", own, model.gradients[0]}) : with({"x", own, another});
      distributed_data_parallel ddp(comm, list);
    });
    EXPECT(contains(text, "share memory on rank 1"));
    // Frozen ones may be listed again; and in views the gradients that were given are not used.
    distributed_data_parallel frozen(comm, with({"p0 again", model.values[0]}));
    distributed_data_parallel view(comm, with({"thief", own, model.gradients[1]}),
                                   {.gradient_as_bucket_view = true});
    ddpp::barrier(comm);
  });
}

template <class T>
void several_models_and_groups() {
  ddpp::launch<T>(4, [](auto& comm) {
    auto part = comm.split(comm.rank() % 2);
    const ddpp::ddp_options small{.bucket_cap_mb = kib};
    floats<T> a({300, 300}), b({300, 300}), c({300, 300});
    distributed_data_parallel first(comm, a.list, small), second(comm, b.list, small);
    distributed_data_parallel in_half(part, c.list, small);
    static_assert(!std::is_copy_constructible_v<decltype(first)> &&
                  !std::is_move_constructible_v<decltype(first)>);  // the progress thread knows where it is
    const auto begin = [&](int s) {
      first.prepare(), second.prepare(), in_half.prepare();
      a.fill(float(comm.rank() + s)), b.fill(float(2 * comm.rank() + s)), c.fill(float(comm.rank() + s));
      in_half.mark_ready(1), first.mark_ready(1), second.mark_ready(1);
    };
    for (int s = 0; s < 3; ++s) {
      begin(s);
      second.mark_ready(0), first.mark_ready(0), in_half.mark_ready(0);
      first.wait(), second.wait(), in_half.wait();
      EXPECT(a.all(1.5f + float(s)) && b.all(3.0f + float(s)));
      EXPECT(c.all(float(1 + comm.rank() % 2 + s)));
    }
    text_of<ddpp::mismatch_error>([&] {
      begin(3);
      if (comm.rank() == 2) second.mark_ready(0);  // before, and not after: its bucket comes first here
      first.mark_ready(0), first.wait();
      if (comm.rank() != 2) second.mark_ready(0);
      second.wait();
    });
    in_half.mark_ready(0), in_half.wait();  // another group
    EXPECT(c.all(float(1 + comm.rank() % 2 + 3)));
  });
}

template <class T>
void ranks_that_disagree_on_a_step() {
  const auto all_fail = [](auto train) {
    ddpp::launch<T>(3, [&](auto& comm) {
      floats<T> model({300, 300});
      text_of<ddpp::group_error>([&] { train(comm, model); });
      text_of<ddpp::group_error>([&] { ddpp::barrier(comm); });
    });
  };
  const ddpp::ddp_options small{.bucket_cap_mb = kib};
  all_fail([&](auto& comm, floats<T>& model) {  // a weight on one rank only
    distributed_data_parallel ddp(comm, model.list, small);
    ddp.prepare(comm.rank() == 1 ? ddpp::prepare_options{.weight = 2} : ddpp::prepare_options{});
    ddp.mark_ready(1), ddp.mark_ready(0);
    ddp.wait();
  });
  // Another hook. What NCCL's own messages belong to is not compared inside one.
  if constexpr (!ddpp::has_stream_order<T>) {
    all_fail([&](auto& comm, floats<T>& model) {
      if (comm.rank() == 1) {
        distributed_data_parallel ddp(comm, model.list, small, ddpp::hooks::fp16_compress{});
        step(ddp, {1, 0});
      } else {
        distributed_data_parallel ddp(comm, model.list, small);
        step(ddp, {1, 0});
      }
    });
  }
  all_fail([&](auto& comm, floats<T>& model) {  // no_sync on one rank only, for the rest of the training
    distributed_data_parallel ddp(comm, model.list, small);
    step(ddp, {1, 0});
    {
      auto guard = comm.rank() == 1 ? std::make_unique<decltype(ddp.no_sync())>(ddp.no_sync()) : nullptr;
      step(ddp, {1, 0});
    }
    ddpp::barrier(comm);
  });
}

template <class T>
void different_models_are_refused() {
  ddpp::launch<T>(3, [](auto& comm) {
    const bool odd = comm.rank() == 1;
    array<T, float> running(4), more(5);
    array<T, double> d(3), gd(3);
    const auto refused = [&](floats<T>& model, ddpp::ddp_options options = {}) {
      return text_of<reducer_error>(
          [&] { distributed_data_parallel ddp(comm, model.list, std::move(options)); });
    };
    floats<T> nine({3, 3, 3, 3, 3, 3, 3, 3, 3}), ten({3, 3, 3, 3, 3, 3, 3, 3, 3, 3}), none({});
    std::string text = refused(odd ? nine : ten);
    EXPECT(contains(text, "10 parameters on rank 0, rank 2") && contains(text, "9 parameters on rank 1"));
    EXPECT(contains(text, "p9"));
    text = refused(odd ? none : ten);
    EXPECT(contains(text, "0 parameters on rank 1"));

    floats<T> size({3, odd ? 18u : 17u});
    text = refused(size);
    EXPECT(contains(text, "\"p1\"") && contains(text, "17 float on rank 0, rank 2") &&
           contains(text, "18 float on rank 1"));
    floats<T> renamed({3});
    renamed.list.emplace_back(odd ? "left" : "right", renamed.values[0], renamed.gradients[0]);
    text = refused(renamed);
    EXPECT(contains(text, "left") && contains(text, "right"));
    floats<T> typed({});
    if (odd)
      typed.list.emplace_back("x", d, gd);
    else
      typed.list.emplace_back("x", std::span(running).first(3), std::span(more).first(3));
    text = refused(typed);
    EXPECT(contains(text, "3 double on rank 1"));
    floats<T> frozen({3});
    if (odd)
      frozen.list.emplace_back("f", more);
    else
      frozen.list.emplace_back("f", more, more);
    text = refused(frozen);
    EXPECT(contains(text, "frozen on rank 1"));
    text = refused(ten, {.buffers = {odd ? std::span(running) : std::span(more)}});
    EXPECT(contains(text, "buffer 0: 20 bytes on rank 0, rank 2"));
    text = refused(ten, {.static_graph = odd});
    EXPECT(contains(text, "static_graph on rank 1"));

    text_of<ddpp::usage_error>([&] { distributed_data_parallel ddp(comm, none.list); });
    text_of<ddpp::usage_error>(
        [&] { distributed_data_parallel ddp(comm, ten.list, {.bucket_cap_mb = 0.0}); });
    ddpp::barrier(comm);  // none of this has harmed the communicator
  });
}

template <class T>
void mistakes_of_all_are_recoverable() {
  ddpp::launch<T>(2, [](auto& comm) {
    for (const bool view : {false, true}) {
      floats<T> model({400, 300, 300}, 0);
      array<T, float> ice(4, float(comm.rank()));
      model.list.emplace_back("ice", ice);
      distributed_data_parallel ddp(comm, model.list,
                                    {.bucket_cap_mb = kib, .gradient_as_bucket_view = view});
      EXPECT(ice[3] == 0);
      const auto good = [&] {
        ddp.prepare();
        for (const std::size_t i : {2u, 1u, 0u}) {
          for (float& x : ddp.template grad<float>(i)) x = float(2 * comm.rank());
          ddp.mark_ready(i);
        }
        ddp.wait();
        for (const std::size_t i : {2u, 1u, 0u})
          EXPECT(std::ranges::all_of(ddp.template grad<float>(i), [](float x) { return x == 1; }));
      };
      const auto says = [](auto&& f, const char* part) { EXPECT(contains(text_of<reducer_error>(f), part)); };
      good();
      says([&] { ddp.wait(); }, "without prepare");
      says([&] { ddp.mark_ready(1); }, "\"p1\"");
      good();
      ddp.prepare();
      says([&] { ddp.mark_ready(3); }, "\"ice\") is frozen");
      text_of<ddpp::usage_error>([&] { ddp.mark_ready(4); });
      text_of<ddpp::usage_error>([&] { ddp.template grad<double>(0); });
      ddp.mark_ready(2);
      says([&] { ddp.mark_ready(2); }, "\"p2\") was marked ready twice");
      says([&] { ddp.mark_ready(1); }, "\"p2\")");
      good();
      ddp.prepare();
      ddp.mark_ready(2);
      says([&] { ddp.prepare(); }, "\"p0\"");
      if (comm.rank() == 0)
        says([&] { ddp.wait(); }, "\"p1\"");  // rank 1 goes on at once: they meet all the same
      good();
      ddp.prepare();
      ddp.mark_ready(1);
      says([&] { ddp.wait(); }, "\"p0\"), parameter 2 (\"p2\")");
      good();
      ddp.prepare();  // not the same one everywhere
      for (const std::size_t i : {2u, 1u, 0u}) {
        if (i != (comm.rank() == 0 ? 0u : 2u)) ddp.mark_ready(i);
      }
      says([&] { ddp.wait(); }, comm.rank() == 0 ? "\"p0\"" : "\"p2\"");
      good();
      text_of<ddpp::usage_error>([&] { ddp.prepare({.weight = -1}); });
      good();
    }
  });
}

template <class T>
void mistake_of_one_fails_all() {
  for (int kind = 0; kind < 3; ++kind) {
    ddpp::launch<T>(3, [&](auto& comm) {
      floats<T> model({400, 300, 300});
      distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib});
      const auto begin = [&] {
        ddp.prepare();
        ddp.mark_ready(2);
      };
      if (comm.rank() == 1) {
        begin();
        if (kind == 0) text_of<reducer_error>([&] { ddp.wait(); });
        if (kind == 1) {
          text_of<reducer_error>([&] { ddp.mark_ready(2); });
          text_of<ddpp::group_error>([&] { ddp.prepare(); });
        }
        if (kind == 2) {
          text_of<reducer_error>([&] { ddp.prepare(); });
          text_of<reducer_error>([&] { ddp.wait(); });
        }
      } else {
        const std::string text = text_of<ddpp::group_error>([&] {
          begin();
          ddp.mark_ready(1);
          ddp.mark_ready(0);
          ddp.wait();
        });
        EXPECT(contains(text, "rank 1"));
      }
      text_of<ddpp::group_error>([&] { ddpp::barrier(comm); });
    });
  }
}

template <class T>
void exception_in_backward_releases_the_others() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({400, 300, 300});
    const auto train = [&] {
      distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib});
      ddp.prepare();
      ddp.mark_ready(2);
      ddp.mark_ready(1);
      if (comm.rank() == 2) throw std::bad_alloc();
      ddp.mark_ready(0);
      ddp.wait();
    };
    if (comm.rank() == 2) {
      try {
        train();
      } catch (const std::bad_alloc&) {
      }
    } else {
      EXPECT(contains(text_of<ddpp::group_error>(train), "rank 2"));
    }
  });
}

/// A model that goes in the middle of a step, on all ranks, leaves the communicator as it was.
template <class T>
void unfinished_step_of_all() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({400, 300, 300});
    for (int kind = 0; kind < 3; ++kind) {
      distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib});
      ddp.prepare();
      if (kind > 0 || comm.rank() == 0) ddp.mark_ready(2);
      if (kind > 1) text_of<reducer_error>([&] { ddp.mark_ready(2); });
      if (kind > 1 && comm.rank() == 1) text_of<reducer_error>([&] { ddp.wait(); });
    }
    ddpp::barrier(comm);
  });
}

template <class T>
void unused_parameters() {
  constexpr int ranks = 3;
  for (const bool view : {false, true}) {
    ddpp::launch<T>(ranks, [&](auto& comm) {
      floats<T> model({400, 300, 300, 5});
      distributed_data_parallel ddp(
          comm, model.list,
          {.bucket_cap_mb = kib, .find_unused_parameters = true, .gradient_as_bucket_view = view});
      const auto layout = ddp.bucket_assignment();
      // Parameter u is left out by the ranks in the set `out`, each other one used by all.
      for (std::size_t u = 0; u < 4; ++u) {
        for (unsigned out = 0; out < 1u << ranks; ++out) {
          ddp.prepare();
          for (std::size_t i = 4; i-- > 0;) {
            for (float& x : ddp.template grad<float>(i)) x = float(3 * (comm.rank() + 1));
            if (i != u || !(out >> comm.rank() & 1)) ddp.mark_ready(i);
          }
          ddp.wait();
          float of_u = 0;
          for (int r = 0; r < ranks; ++r) of_u += out >> r & 1 ? 0 : float(r + 1);
          if (out == 7) {
            EXPECT(ddp.globally_unused() == std::vector<std::size_t>{u});
            if (!view) of_u = float(3 * (comm.rank() + 1));  // untouched
          } else {
            EXPECT(ddp.globally_unused().empty());
          }
          for (std::size_t i = 0; i < 4; ++i) {
            EXPECT(std::ranges::all_of(ddp.template grad<float>(i),
                                       [&](float x) { return std::abs(x - (i == u ? of_u : 6)) < 1e-5f; }));
          }
        }
      }
      ddp.prepare();  // nobody uses anything
      ddp.wait();
      EXPECT(ddp.globally_unused().size() == 4 && ddp.bucket_assignment() == layout);
    });
  }
}

template <class T>
void accumulation() {
  for (const bool view : {false, true}) {
    ddpp::launch<T>(2, [&](auto& comm) {
      floats<T> model({400, 300, 300});
      distributed_data_parallel ddp(
          comm, model.list,
          {.bucket_cap_mb = kib, .find_unused_parameters = true, .gradient_as_bucket_view = view});
      const auto add = [&](std::size_t i, float x) {
        for (float& g : ddp.template grad<float>(i)) g += x;
        ddp.mark_ready(i);
      };
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < 3; ++i) std::ranges::fill(ddp.template grad<float>(i), 0.0f);
        {
          auto outer = ddp.no_sync();
          {
            auto inner = ddp.no_sync();
            ddp.prepare();
            add(0, 1);
            if (comm.rank() == 1) add(1, 4);  // the set of used parameters accumulates too
            ddp.wait();
          }
          ddp.prepare();
          add(0, 2);
          ddp.wait();
          EXPECT(ddp.template grad<float>(0)[7] == 3);
        }
        ddp.prepare();
        add(0, float(comm.rank()));
        ddp.wait();
        EXPECT(ddp.template grad<float>(0)[399] == 3.5f && ddp.template grad<float>(1)[299] == 2);
        EXPECT(ddp.globally_unused() == (std::vector<std::size_t>{2}));
        EXPECT(ddp.statistics().steps == std::uint64_t(round + 1));
      }
      {  // the guard counts where prepare() is called
        auto guard = ddp.no_sync();
        ddp.prepare();
      }
      add(0, 1);
      ddp.wait();
      EXPECT(ddp.statistics().steps == 3);
      ddp.prepare();
      {  // too late for this step
        auto guard = ddp.no_sync();
        add(0, 1);
        ddp.wait();
      }
      EXPECT(ddp.statistics().steps == 4);
    });
  }
}

template <class T>
void view_keeps_gradients_across_rebuild() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({256, 256, 256});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib, .gradient_as_bucket_view = true});
    for (std::size_t i = 0; i < 3; ++i) std::ranges::fill(ddp.template grad<float>(i), float(i));
    step(ddp, {0, 2, 1});
    {
      auto guard = ddp.no_sync();
      step(ddp, {0, 2, 1});  // adds nothing
    }
    ddp.prepare();
    EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{0}, {2}, {1}});
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT(ddp.template grad<float>(i)[255] == float(i));
      ddp.mark_ready(i);
    }
    ddp.wait();

    // A layout that stays the same stays where it is.
    distributed_data_parallel same(comm, model.list, {.bucket_cap_mb = kib, .gradient_as_bucket_view = true});
    const float* const place = same.template grad<float>(1).data();
    for (int s = 0; s < 3; ++s) step(same, {2, 1, 0});
    EXPECT(same.template grad<float>(1).data() == place);
  });
}

template <class T>
void static_graph() {
  for (const bool local_first : {false, true}) {
    for (const bool view : {false, true}) {
      ddpp::launch<T>(2, [&](auto& comm) {
        floats<T> model({400, 300, 300, 10});
        distributed_data_parallel ddp(
            comm, model.list, {.bucket_cap_mb = kib, .gradient_as_bucket_view = view, .static_graph = true});
        // Rank 0 uses 3, 1, 0 and rank 1 uses 3, 0; nobody uses 2.
        const std::vector<std::size_t> order =
            comm.rank() == 0 ? std::vector<std::size_t>{3, 1, 0} : std::vector<std::size_t>{3, 0};
        const auto run = [&](const std::vector<std::size_t>& which) {
          ddp.prepare();
          for (const std::size_t i : which) {
            std::ranges::fill(ddp.template grad<float>(i), float(2 + 2 * comm.rank()));
            ddp.mark_ready(i);
          }
          ddp.wait();
        };
        if (local_first) {
          auto guard = ddp.no_sync();
          run(order);
        }
        for (int s = 0; s < 4; ++s) {
          if (s == 2) {
            auto guard = ddp.no_sync();
            run(order);
          }
          if (!view) std::ranges::fill(ddp.template grad<float>(2), 8.0f);
          run(order);
          EXPECT(ddp.template grad<float>(0)[1] == 3 && ddp.template grad<float>(3)[1] == 3);
          EXPECT(ddp.template grad<float>(1)[1] == 1);
          EXPECT(ddp.template grad<float>(2)[1] == (view ? 0 : 8));
          EXPECT(ddp.globally_unused() == std::vector<std::size_t>{2});
        }
        EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{3, 1}, {0}, {2}});  // rebuilt, all the same
        EXPECT(
            contains(text_of<reducer_error>([&] { run({3}); }), "\"p0\""));  // the ranks are not equally far
        EXPECT(contains(text_of<reducer_error>([&] { run({0, 3}); }), "\"p0\""));
        EXPECT(contains(text_of<reducer_error>([&] { run({3, 2}); }), "\"p2\""));
        run(order);
        EXPECT(ddp.template grad<float>(0)[1] == 3);
      });
    }
  }
}

template <class T>
void buffers() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({3});
    array<T, double> mean(5), large(40'000);
    array<T, int> count(3);
    const auto spoil = [&](int s) {
      mean.assign(5, comm.rank() + s);
      large.assign(large.size(), 10 * comm.rank() + s);
      count.assign(3, comm.rank() + 2 * s);
    };
    const auto are = [&](int rank, int s) {
      return mean[4] == rank + s && large.back() == 10 * rank + s && count[0] == rank + 2 * s;
    };
    spoil(1);
    distributed_data_parallel ddp(comm, model.list, {.buffers = {mean, large, count}});
    EXPECT(are(0, 1));
    spoil(2), step(ddp, {0}), EXPECT(are(0, 2));
    {
      auto guard = ddp.no_sync();
      spoil(3), step(ddp, {0}), EXPECT(are(0, 3));            // the step before did synchronise
      spoil(4), step(ddp, {0}), EXPECT(are(comm.rank(), 4));  // this one's did not
    }
    spoil(5), step(ddp, {0}), EXPECT(are(comm.rank(), 5));
    spoil(6), step(ddp, {0}), EXPECT(are(0, 6));

    distributed_data_parallel apart(comm, model.list,
                                    {.broadcast_buffers = false, .buffers = {mean, large, count}});
    spoil(7), step(apart, {0}), EXPECT(are(comm.rank(), 7));
    mean = array<T, double>(500);
    EXPECT(contains(text_of<reducer_error>([&] { ddp.prepare(); }), "buffer 0"));
  });
}

template <class T>
void forwards_without_backward() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({1, 2});
    array<T, int> buffer(1);
    distributed_data_parallel ddp(comm, model.list, {.buffers = {buffer}});
    buffer[0] = comm.rank() + 1;
    ddp.refresh_buffers();
    EXPECT(buffer[0] == 1);
    buffer[0] = comm.rank() + 1;
    ddp.refresh_buffers(), EXPECT(buffer[0] == comm.rank() + 1);  // once after each step that synchronises
    step(ddp, {1, 0}), EXPECT(buffer[0] == comm.rank() + 1);
    ddp.prepare(), EXPECT(buffer[0] == 1);
    buffer[0] = comm.rank() + 1;
    ddp.refresh_buffers(), EXPECT(buffer[0] == comm.rank() + 1);  // not between forward and backward
    ddp.mark_ready(1), ddp.mark_ready(0), ddp.wait();

    distributed_data_parallel alone(comm, model.list, {.find_unused_parameters = true});
    model.fill(float(comm.rank()));
    {
      auto guard = alone.no_sync();
      alone.prepare(), alone.mark_ready(0), alone.wait();
    }
    if (comm.rank() == 0) alone.prepare(), alone.cancel(), alone.cancel();
    alone.prepare(), alone.mark_ready(1), alone.cancel(), alone.wait();  // a gradient came: it goes on
    EXPECT(model.all(0.5f));                                             // the first one's from before
    alone.join([&] { alone.prepare(), alone.cancel(); });
    alone.prepare();
    alone.cancel();
  });
}

template <class T>
void initial_values() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({300'000, 2, 70'000, 1}, float(comm.rank() + 1)), own({5}, float(comm.rank()));
    model.list.emplace_back("tied", model.values[1], model.gradients[1]);  // the same parameter once more
    distributed_data_parallel ddp(comm, model.list);
    for (const auto& v : model.values) EXPECT(std::ranges::all_of(v, [](float x) { return x == 1; }));
    EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{1, 2, 3}, {0}});
    ddp.prepare();
    model.fill(float(comm.rank()));
    for (const std::size_t i : {0u, 4u, 2u, 3u}) ddp.mark_ready(i);
    EXPECT(contains(text_of<reducer_error>([&] { ddp.mark_ready(1); }), "\"p1\""));
    distributed_data_parallel apart(comm, own.list, {.init_sync = false});
    EXPECT(own.values[0][4] == float(comm.rank()));
  });
}

template <class T>
void weights() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({400, 300, 300});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib});
    const auto average = [&](double weight) {
      ddp.prepare({.weight = weight});
      model.fill(float(comm.rank() + 1));
      for (const std::size_t i : {2u, 1u, 0u}) ddp.mark_ready(i);
      ddp.wait();
      EXPECT(model.all(model.gradients[0][0]));
      return model.gradients[0][0];
    };
    EXPECT(std::abs(average(comm.rank() == 0 ? 6 : 3) - 1.75f) < 1e-6f);
    EXPECT(average(comm.rank() == 1 ? 10 : 0) == 2);
    EXPECT(average(0) == 0);
    model.fill(float(comm.rank()));
    step(ddp, {2, 1, 0});
    EXPECT(std::abs(model.gradients[0][0] - 1) < 1e-6f);

    // The mean over no samples is not a number, and counts for nothing.
    for (const bool view : {false, true}) {
      distributed_data_parallel empty(comm, model.list,
                                      {.bucket_cap_mb = kib, .gradient_as_bucket_view = view});
      for (const int working : {2, 0}) {
        const bool works = comm.rank() < working;
        empty.prepare({.weight = works ? 5 : 0});
        for (const std::size_t i : {2u, 1u, 0u}) {
          std::ranges::fill(empty.template grad<float>(i), works ? float(comm.rank()) : std::nanf(""));
          empty.mark_ready(i);
        }
        empty.wait();
        for (const std::size_t i : {2u, 1u, 0u})
          EXPECT(empty.template grad<float>(i)[299] == (working == 2 ? 0.5f : 0));
      }
    }
  });
}

/// A user's own: the greatest gradient instead of the average.
struct greatest {
  int calls = 0;
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) {
    ++calls;
    bucket.visit([&](auto gradients) {
      memory_of<typename C::transport_type>::scale(comm, gradients, bucket.scale() * comm.size());
      ddpp::all_reduce(comm, gradients, ddpp::max);
    });
  }
};

/// Keeps what it was given.
struct notes {
  std::vector<std::size_t> indices = {}, counts = {};
  ddpp::bucket_layout parameters = {};
  std::vector<double> scales = {};
  std::thread::id thread = {};
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) {
    indices.push_back(bucket.index());
    counts.push_back(bucket.count());
    parameters.emplace_back(bucket.parameters().begin(), bucket.parameters().end());
    scales.push_back(bucket.scale());
    EXPECT(bucket.dtype() == ddpp::dtype::float32 && bucket.is_last() == (bucket.index() == 1));
    EXPECT(bucket.offsets().front() == 0 && bucket.offsets().back() == bucket.count());
    text_of<ddpp::usage_error>([&] { (void)bucket.template data<double>(); });
    thread = std::this_thread::get_id();
    ddpp::all_reduce(comm, bucket.template data<float>(), ddpp::premul_sum(float(bucket.scale())));
  }
};

struct throws_on_rank_1 {
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) {
    if (comm.rank() == 1 && bucket.is_last()) throw std::runtime_error("no more");
    ddpp::hooks::all_reduce{}(comm, bucket);
  }
};

/// Leaves the others alone in the reduction of bucket 0.
struct forgets_on_rank_1 {
  template <class C>
  void operator()(C& comm, ddpp::gradient_bucket& bucket) {
    if (comm.rank() == 1 && bucket.index() == 0) return;
    ddpp::hooks::all_reduce{}(comm, bucket);
  }
};

template <class T>
void hooks() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({400, 300, 300});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib}, greatest{});
    for (int s = 0; s < 2; ++s) {
      model.fill(float(comm.rank() + s));
      step(ddp, {2, 1, 0});
      EXPECT(model.all(float(2 + s)));
    }
    EXPECT(ddp.hook().calls == 6);
    distributed_data_parallel noted(comm, model.list, {.bucket_cap_mb = 2 * kib}, notes{});
    model.fill(float(comm.rank()));
    step(noted, {0, 1, 2});
    EXPECT(std::abs(model.gradients[2][0] - 1) < 1e-6f);
    const notes& seen = noted.hook();
    EXPECT(seen.indices == std::vector<std::size_t>({0, 1}) && seen.parameters == noted.bucket_assignment());
    EXPECT(seen.parameters == ddpp::bucket_layout({{2}, {0, 1}}));
    EXPECT(seen.counts == std::vector<std::size_t>({300, 700}));
    EXPECT(seen.scales == std::vector<double>(2, 1.0 / 3));
    EXPECT((seen.thread == std::this_thread::get_id()) == ddpp::has_stream_order<T>);
    distributed_data_parallel composed(comm, model.list, {}, ddpp::hooks::bf16_compress<greatest>{});
    model.fill(1.001f + float(comm.rank()));
    step(composed, {0, 1, 2});
    EXPECT(composed.hook().inner.calls == 1);
    EXPECT(std::abs(model.gradients[0][0] - 3.001f) < 0.02f && model.gradients[0][0] != 3.001f);
    distributed_data_parallel compressed(comm, model.list, {}, ddpp::hooks::fp16_compress{});
    model.fill(60'000.0f);  // three times that is beyond the range: scaled before it is rounded
    step(compressed, {0, 1, 2});
    EXPECT(std::abs(model.gradients[0][0] - 60'000) < 60);

    distributed_data_parallel failing(comm, model.list, {.bucket_cap_mb = kib}, throws_on_rank_1{});
    const auto fail = [&] { step(failing, {2, 1, 0}); };
    if (comm.rank() == 1)
      EXPECT(contains(text_of<std::runtime_error>(fail), "no more"));
    else
      EXPECT(contains(text_of<ddpp::revoked_error>(fail), "no more"));
    EXPECT(contains(text_of<ddpp::revoked_error>([&] { step(failing, {2, 1, 0}); }), "rank 1"));
  });
  // What NCCL's own messages belong to is not compared inside a hook: there the time runs out.
  using expected = std::conditional_t<ddpp::has_stream_order<T>, ddpp::timeout_error, ddpp::mismatch_error>;
  ddpp::init_options limited;
  limited.init_timeout = std::chrono::seconds(60);
  if (ddpp::has_stream_order<T>) limited.timeout = std::chrono::seconds(4);
  ddpp::launch<T>(
      3,
      [](auto& comm) {
        floats<T> model({400, 300, 300});
        distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib}, forgets_on_rank_1{});
        text_of<expected>([&] { step(ddp, {2, 1, 0}); });
      },
      limited);
}

template <class T>
void overlap_without_a_call() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({300, 300});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib});
    for (int s = 0; s < 3; ++s) {
      ddp.prepare();
      model.fill(1);
      ddp.mark_ready(1);
      while (ddp.statistics().buckets_finished_this_step == 0) std::this_thread::yield();
      ddp.mark_ready(0);
      ddp.wait();
      EXPECT(ddp.statistics().buckets_finished_this_step == 2);
    }
    EXPECT(ddp.statistics().communicating.count() > 0 && ddp.statistics().waiting.count() > 0);
  });
}

template <class T>
void marks_from_several_threads() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model(std::vector<std::size_t>(64, 200));
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = 4 * kib});
    for (int s = 0; s < 10; ++s) {
      ddp.prepare();
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (std::size_t i = t; i < 64; i += 4) {
            std::fill(model.gradients[i].begin(), model.gradients[i].end(), float(comm.rank() + s));
            ddp.mark_ready(i);
          }
        });
      }
      for (auto& thread : threads) thread.join();
      ddp.wait();
      EXPECT(model.all(float(s) + 0.5f));
    }
  });
}

/// A mark that has begun is part of the step: wait() waits for it. One that comes later finds no step.
template <class T>
void wait_for_marks_of_other_threads() {
  ddpp::launch<T>(1, [](auto& comm) {
    floats<T> model({1'000'000, 3});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib, .find_unused_parameters = true});
    for (int s = 0; s < 30; ++s) {
      ddp.prepare();
      ddp.mark_ready(1);
      std::atomic<bool> begins{false}, came_late{false};
      std::thread marks([&] {
        begins = true;
        try {
          ddp.mark_ready(0);
        } catch (const reducer_error&) {
          came_late = true;
        }
      });
      while (!begins) std::this_thread::yield();
      ddp.wait();
      const std::size_t finished = ddp.statistics().buckets_finished_this_step;
      marks.join();
      EXPECT(finished == 2 && ddp.globally_unused().size() == (came_late ? 1 : 0));
    }
  });
}

template <class T>
void replaced_storage_is_noticed() {
  ddpp::launch<T>(2, [](auto& comm) {
    floats<T> model({3, 3});
    distributed_data_parallel ddp(comm, model.list);
    step(ddp, {1, 0});
    ddp.prepare();
    ddp.mark_ready(1);
    model.gradients[0] = array<T, float>(300);
    EXPECT(contains(text_of<reducer_error>([&] { ddp.mark_ready(0); }), "\"p0\""));

    floats<T> other({3, 3});
    distributed_data_parallel sparse(comm, other.list, {.find_unused_parameters = true});
    sparse.prepare();
    other.gradients[1] = array<T, float>(300);
    EXPECT(contains(text_of<reducer_error>([&] { sparse.wait(); }), "\"p1\""));
  });
}

template <class T>
void join() {
  constexpr int ranks = 3;
  for (const bool view : {false, true}) {
    for (const bool live : {false, true}) {
      for (const bool unused : {false, true}) {
        ddpp::launch<T>(ranks, [&](auto& comm) {
          floats<T> model({256, 256, 256}, 1);
          array<T, int> buffer(2);
          distributed_data_parallel ddp(comm, model.list,
                                        {.bucket_cap_mb = kib,
                                         .find_unused_parameters = unused,
                                         .gradient_as_bucket_view = view,
                                         .buffers = {buffer}});
          const int batches[] = {0, 5, 3};  // rank 0 never works
          ddp.join(
              [&] {
                for (int b = 0; b < batches[comm.rank()]; ++b) {
                  if (b == 1) {
                    auto guard = ddp.no_sync();
                    step(ddp, {0, 2, 1});
                  }
                  buffer.assign(2, 10 * comm.rank() + b);
                  ddp.prepare();
                  if (b > 1) EXPECT(buffer[1] == 10 * (b < 3 ? 2 : 1) + b);
                  for (const std::size_t i : {0u, 2u, 1u}) {
                    std::ranges::fill(ddp.template grad<float>(i), 6.0f);
                    if (!unused || i != 2) ddp.mark_ready(i);
                  }
                  ddp.wait();
                  const int working = b < 3 ? 2 : 1;
                  const float expected = live ? 6 : 6 * float(working) / ranks;
                  EXPECT(std::abs(ddp.template grad<float>(1)[255] - expected) < 1e-5f);
                  for (auto& v : model.values) v[0] = float(100 * comm.rank() + b);
                }
              },
              {.divide_by_live = live});
          EXPECT(model.values[2][0] == 104 && model.values[0][255] == 1);
          if (!unused) EXPECT(ddp.bucket_assignment() == ddpp::bucket_layout{{0}, {2}, {1}});
          for (const std::size_t i : {0u, 2u, 1u})
            std::ranges::fill(ddp.template grad<float>(i), float(comm.rank()));
          step(ddp, {0, 2, 1});  // an ordinary step afterwards
          EXPECT(ddp.template grad<float>(1)[0] == 1);
        });
      }
    }
  }
}

template <class T>
void join_ends_early() {
  ddpp::launch<T>(3, [](auto& comm) {
    floats<T> model({10});
    distributed_data_parallel ddp(comm, model.list);
    int done = 0;
    const auto loop = [&] {
      for (; done < 2 + comm.rank(); ++done) step(ddp, {0});
    };
    text_of<reducer_error>([&] { ddp.join(loop, {.throw_on_early_end = true}); });
    EXPECT(done == 2);
    ddp.join([&] { step(ddp, {0}); }, {.throw_on_early_end = true});  // and goes on working
    ddp.join([&] { text_of<ddpp::usage_error>([&] { ddp.join([] {}); }); });
    const auto broken = [&] {
      ddp.join([&] {
        step(ddp, {0});
        if (comm.rank() == 1) throw std::bad_alloc();
      });
    };
    if (comm.rank() == 1)
      text_of<std::bad_alloc>(broken);
    else
      text_of<ddpp::revoked_error>(broken);
  });
}

template <class T>
void join_variants() {
  ddpp::launch<T>(2, [](auto& comm) {  // 3 and 5 batches, with a hook
    floats<T> model({400, 300});
    distributed_data_parallel ddp(comm, model.list, {.bucket_cap_mb = kib}, greatest{});
    ddp.join([&] {
      for (int b = 0; b < 3 + 2 * comm.rank(); ++b) {
        model.fill(float(b + 1 + 10 * comm.rank()));
        step(ddp, {1, 0});
        EXPECT(model.all(float(b + 11)));
      }
    });
    EXPECT(ddp.hook().calls == 10);
    distributed_data_parallel narrow(comm, model.list, {}, ddpp::hooks::fp16_compress{});
    narrow.join([&] {
      for (int b = 0; b < 5 - 2 * comm.rank(); ++b) {
        model.fill(1.0009f);
        step(narrow, {1, 0});
        EXPECT(std::abs(model.gradients[0][0] - (b < 3 ? 1.0009f : 0.50045f)) < 1e-3f);
      }
    });
  });
  ddpp::launch<T>(3, [](auto& comm) {  // weights: the mean over the samples of those at work
    floats<T> model({10});
    distributed_data_parallel ddp(comm, model.list);
    ddp.join([&] {
      for (int b = 0; b < comm.rank(); ++b) {
        ddp.prepare({.weight = comm.rank()});
        model.fill(float(comm.rank()));
        ddp.mark_ready(0);
        ddp.wait();
        EXPECT(std::abs(model.gradients[0][9] - (b == 0 ? 5.0f / 3 : 2)) < 1e-6f);
      }
    });
    for (float& v : model.values[0]) v = float(comm.rank());
    ddp.join([] {});  // nobody has any
    EXPECT(model.values[0][3] == 2);
    step(ddp, {0});
    const auto differ = [&] {
      ddp.join([&] {
        auto guard = comm.rank() == 1 ? std::make_unique<decltype(ddp.no_sync())>(ddp.no_sync()) : nullptr;
        step(ddp, {0});
      });
    };
    EXPECT(contains(text_of<reducer_error>(differ), "rank 0 and rank 1 differ in no_sync"));
    step(ddp, {0});  // all ranks know, and can go on
  });
}

/// What a rank uses that has only shadowed the first steps is not known from them.
template <class T>
void static_graph_after_shadowing() {
  for (const bool view : {false, true}) {
    ddpp::launch<T>(2, [&](auto& comm) {
      floats<T> model({300, 300, 300, 300});
      distributed_data_parallel ddp(
          comm, model.list, {.bucket_cap_mb = kib, .gradient_as_bucket_view = view, .static_graph = true});
      const auto run = [&](int steps) {
        const auto own = std::size_t(comm.rank());  // 3 is used by both, 2 by none
        ddp.join([&] {
          for (int s = 0; s < steps; ++s) {
            ddp.prepare();
            for (const std::size_t i : {std::size_t(3), own}) {
              std::ranges::fill(ddp.template grad<float>(i), 2.0f);
              ddp.mark_ready(i);
            }
            ddp.wait();
          }
        });
      };
      run(comm.rank() == 0 ? 2 : 0);
      for (int s = 0; s < 2; ++s) {
        run(2);
        EXPECT(ddp.template grad<float>(0)[0] == 1 && ddp.template grad<float>(1)[0] == 1);
        EXPECT(ddp.template grad<float>(3)[0] == 2 && ddp.globally_unused() == std::vector<std::size_t>{2});
      }
    });
  }
}

/// Random models, orders, sets of used parameters and accumulation, against a plain computation.
template <class T>
void random_training(unsigned seed) {
  std::mt19937 shape(seed);
  const auto any = [](std::mt19937& random, unsigned below) {
    return static_cast<unsigned>(random()) % below;
  };
  const int ranks = 1 + int(any(shape, 4));
  const bool view = any(shape, 2), unused = any(shape, 2);
  std::vector<std::size_t> sizes(1 + any(shape, 12));
  for (auto& n : sizes) n = any(shape, 3) == 0 ? any(shape, 3000) : any(shape, 40);
  const double cap = kib * double(1 + any(shape, 8));
  ddpp::launch<T>(ranks, [&](auto& comm) {
    floats<T> model(sizes);
    distributed_data_parallel ddp(
        comm, model.list,
        {.bucket_cap_mb = cap, .find_unused_parameters = unused, .gradient_as_bucket_view = view});
    std::mt19937 common(seed);  // the same on all ranks: what each rank does can be told by all
    std::vector<std::vector<float>> sum(std::size_t(ranks), std::vector<float>(sizes.size(), 0));
    std::vector<std::vector<bool>> used(std::size_t(ranks), std::vector<bool>(sizes.size(), false));
    for (std::size_t i = 0; i < sizes.size(); ++i) std::ranges::fill(ddp.template grad<float>(i), 0.0f);
    for (int s = 0; s < 12; ++s) {
      const bool local = any(common, 4) == 0;
      auto guard = local ? std::make_unique<decltype(ddp.no_sync())>(ddp.no_sync()) : nullptr;
      ddp.prepare();
      for (std::size_t r = 0; r < std::size_t(ranks); ++r) {
        std::vector<std::size_t> order(sizes.size());
        std::iota(order.begin(), order.end(), std::size_t(0));
        std::shuffle(order.begin(), order.end(), common);
        for (const std::size_t i : order) {
          if (unused && any(common, 3) == 0) continue;
          const auto x = float(any(common, 16) * unsigned(ranks));
          sum[r][i] += x;
          used[r][i] = true;
          if (int(r) != comm.rank()) continue;
          for (float& g : ddp.template grad<float>(i)) g += x;
          ddp.mark_ready(i);
        }
      }
      ddp.wait();
      if (local) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        float total = 0;
        for (const auto& of_rank : sum) total += of_rank[i];
        const bool touched = std::ranges::any_of(used, [&](const auto& u) { return bool(u[i]); });
        const float expected = touched ? total / float(ranks) : 0;
        for (const float g : ddp.template grad<float>(i))
          EXPECT(std::abs(g - expected) <= 1e-4f * (1 + expected));
        std::ranges::fill(ddp.template grad<float>(i), 0.0f);
      }
      for (auto& of_rank : sum) of_rank.assign(sizes.size(), 0);
      for (auto& of_rank : used) of_rank.assign(sizes.size(), false);
    }
  });
}

/// Random numbers of batches, with random models, options and sets of used parameters, against a plain
/// computation.
template <class T>
void random_joins(unsigned seed) {
  std::mt19937 shape(seed);
  const auto any = [](std::mt19937& random, unsigned below) {
    return static_cast<unsigned>(random()) % below;
  };
  const std::size_t ranks = 2 + any(shape, 3);
  const bool view = any(shape, 2), unused = any(shape, 2), live = any(shape, 2), weighted = any(shape, 2);
  std::vector<std::size_t> sizes(1 + any(shape, 6));
  for (auto& n : sizes) n = 1 + any(shape, 400);
  std::vector<unsigned> batches(ranks);
  for (auto& n : batches) n = any(shape, 5);
  ddpp::launch<T>(int(ranks), [&](auto& comm) {
    const auto me = std::size_t(comm.rank());
    floats<T> model(sizes);
    distributed_data_parallel ddp(
        comm, model.list,
        {.bucket_cap_mb = kib, .find_unused_parameters = unused, .gradient_as_bucket_view = view});
    const auto step = [&](unsigned batch) {
      std::vector<float> sum(sizes.size());
      std::vector<bool> used(sizes.size());
      float working = 0, weights = 0;
      ddp.prepare(weighted ? ddpp::prepare_options{.weight = double(me)} : ddpp::prepare_options{});
      for (std::size_t r = 0; r < ranks; ++r) {
        if (batches[r] <= batch) continue;
        const float weight = weighted ? float(r) : 1;
        working += 1, weights += weight;
        std::mt19937 random(1000 * seed + 10 * batch + unsigned(r));
        std::vector<std::size_t> order = last_first(sizes.size());
        std::shuffle(order.begin(), order.end(), random);
        for (const std::size_t i : order) {
          if (unused && any(random, 3) == 0) continue;
          const auto x = float(any(random, 16));
          sum[i] += weight * x;
          used[i] = true;
          if (r != me) continue;
          std::ranges::fill(ddp.template grad<float>(i), x);
          ddp.mark_ready(i);
        }
      }
      ddp.wait();
      const float divisor = weighted ? weights : live ? working : float(ranks);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (!used[i]) continue;
        const float expected = divisor > 0 ? sum[i] / divisor : 0;
        for (const float g : ddp.template grad<float>(i))
          EXPECT(std::abs(g - expected) <= 1e-5f * (1 + expected));
      }
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      ddp.join(
          [&] {
            for (unsigned b = 0; b < batches[me]; ++b) step(b);
          },
          {.divide_by_live = live});
    }
  });
}

}  // namespace training
