// SPDX-License-Identifier: BSL-1.0
// A timeline of training steps as trace events, the JSON that chrome://tracing and Perfetto show: when
// buckets were ready, when they were reduced, and when the program waited. Only where DDPP_TRACE names a
// file; each rank writes "<DDPP_TRACE>.rank<n>.<process>.json". The closing bracket is left out, as the
// format allows: each line is written as it ends, and a file is of use whatever ends the program.
#pragma once

#include <ddpp/detail/text.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>

namespace ddpp::detail {

class step_trace {
 public:
  using clock = std::chrono::steady_clock;
  enum class lane : int { program = 1, communication = 2 };

  explicit step_trace(int rank) : rank_(rank) {
    if (const char* const base = variable("DDPP_TRACE")) open(base);
  }

  bool is_on() const noexcept { return file_ != nullptr; }

  /// From its construction to its destruction. `number` is added to the name unless it is negative.
  class span {
   public:
    span(step_trace& trace, lane where, const char* name, int number = -1)
        : trace_(trace),
          where_(where),
          name_(name),
          number_(number),
          begin_(trace.is_on() ? clock::now() : time{}) {}
    span(const span&) = delete;
    ~span() {
      if (trace_.is_on()) trace_.add(where_, name_, number_, begin_, clock::now());
    }

   private:
    using time = clock::time_point;
    step_trace& trace_;
    const lane where_;
    const char* const name_;
    const int number_;
    const time begin_;
  };

  /// The program's time since `begin_step`.
  void begin_step() {
    if (is_on()) step_begun_ = clock::now();
  }
  void end_computation() {
    if (is_on()) add(lane::program, "forward and backward", -1, step_begun_, clock::now());
  }

  void bucket_is_ready(std::size_t index) {
    if (!is_on()) return;
    const std::lock_guard lock(mutex_);
    std::fprintf(
        file_.get(),
        "{\"name\": \"bucket %zu ready\", \"ph\": \"i\", \"s\": \"t\", \"pid\": %d, \"tid\": %d, \"ts\": "
        "%s},\n",
        index, rank_, static_cast<int>(lane::program), microseconds(clock::now().time_since_epoch()).c_str());
  }

 private:
  struct close_file {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };

  /// Several models of one rank have files of their own.
  [[gnu::cold]] void open(const char* base) {
    static std::mutex mutex;
    static std::map<std::string, int> made;
    const std::string name = text(base, ".rank", rank_, ".", ::getpid());
    const std::lock_guard lock(mutex);
    const int number = ++made[name];
    const std::string path = number == 1 ? name + ".json" : text(name, "-", number, ".json");
    file_.reset(std::fopen(path.c_str(), "we"));
    if (!file_) throw usage_error("DDPP_TRACE: cannot write " + path);
    std::setvbuf(file_.get(), nullptr, _IOLBF, BUFSIZ);
    std::fputs("[\n", file_.get());
    std::fprintf(
        file_.get(),
        "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}},\n",
        rank_, rank_);
    for (const lane each : {lane::program, lane::communication}) {
      std::fprintf(file_.get(),
                   "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": "
                   "{\"name\": \"%s\"}},\n",
                   rank_, static_cast<int>(each), each == lane::program ? "program" : "communication");
    }
  }

  void add(lane where, const char* name, int number, clock::time_point begin, clock::time_point end) {
    const std::string whole = number < 0 ? std::string(name) : text(name, " ", number);
    const std::lock_guard lock(mutex_);
    std::fprintf(file_.get(),
                 "{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %s, \"dur\": %s},\n",
                 whole.c_str(), rank_, static_cast<int>(where),
                 microseconds(begin.time_since_epoch()).c_str(), microseconds(end - begin).c_str());
  }

  /// With three decimals, whatever the program's locale. Times count from the system's start, for all ranks
  /// of a host.
  static std::string microseconds(clock::duration time) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    return text(ns / 1000, ".", std::to_string(1000 + ns % 1000).substr(1));
  }

  const int rank_;
  clock::time_point step_begun_ = {};
  std::mutex mutex_;
  std::unique_ptr<std::FILE, close_file> file_;
};

}  // namespace ddpp::detail
