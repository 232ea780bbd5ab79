// SPDX-License-Identifier: BSL-1.0
#include "attempt.hpp"

#include <ddpp/detail/process_tree.hpp>
#include <ddpp/detail/rank_environment.hpp>
#include <ddpp/detail/text.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "cores.hpp"
#include "process_tree.hpp"

namespace launcher {
namespace {

using namespace std::chrono_literals;

/// After the first failure the other ranks have so long (at most the grace period) to say why they fail, too,
/// and to end by themselves.
constexpr std::chrono::milliseconds settle_time = 1s;
/// Even where the system has no pidfd, ends are noticed so soon.
constexpr auto longest_wait = 50ms;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "an unknown host";
}

void bind_to(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

attempt::attempt(const node_setting& setting, int number, const meeting_place& place)
    : setting_(setting),
      number_(number),
      reports_(static_cast<std::size_t>(setting.todo.local_ranks)),
      output_(setting.screen) {
  for (int i = 0; i < setting_.todo.local_ranks; ++i) start_rank(i, place);
  output_.start();
}

attempt::~attempt() {
  ranks_.kill_all();
  kill_all_descendants();
}

std::string attempt::rank_folder(int local_rank) const {
  return ddpp::detail::text(setting_.folder, "/attempt_", number_, "/", local_rank);
}

file_descriptor attempt::open_stream(int local_rank, int fd) {
  const plan& todo = setting_.todo;
  const streams redirected = todo.redirects.of(local_rank), teed = todo.tees.of(local_rank);
  const auto applies = [&](const streams& each) { return fd == STDOUT_FILENO ? each.out : each.err; };
  const bool is_chosen = todo.shown_ranks.empty() ||
                         std::count(todo.shown_ranks.begin(), todo.shown_ranks.end(), local_rank) != 0;
  rank_output::stream treated;
  treated.fd = fd;
  treated.shown = is_chosen && (!applies(redirected) || applies(teed));
  if (todo.prefixes) treated.prefix = ddpp::detail::text("[", setting_.first_rank + local_rank, "] ");
  if (applies(redirected) || applies(teed)) {
    treated.file = rank_folder(local_rank) + (fd == STDOUT_FILENO ? "/stdout.log" : "/stderr.log");
  }
  return output_.add(local_rank, std::move(treated));
}

void attempt::start_rank(int local_rank, const meeting_place& place) {
  using ddpp::detail::text;
  const plan& todo = setting_.todo;
  std::filesystem::create_directories(rank_folder(local_rank));
  const file_descriptor out = open_stream(local_rank, STDOUT_FILENO),
                        err = open_stream(local_rank, STDERR_FILENO);

  const int rank = setting_.first_rank + local_rank;
  std::vector<std::pair<std::string, std::string>> environment{
      {"MASTER_ADDR", place.host},
      {"MASTER_PORT", text(place.master_port)},
      {"DDPP_INIT_METHOD", text("tcp://", ddpp::detail::host_and_port(place.store_host, place.store_port))},
      {"GROUP_WORLD_SIZE", text(todo.nodes)},
      {"ROLE_NAME", todo.role},
      {"ROLE_RANK", text(rank)},
      {"ROLE_WORLD_SIZE", text(setting_.world_size)},
      {"TORCHELASTIC_RESTART_COUNT", text(number_)},
      {"TORCHELASTIC_MAX_RESTARTS", text(todo.max_restarts)},
      {"TORCHELASTIC_RUN_ID", todo.job},
      {"TORCHELASTIC_ERROR_FILE", rank_folder(local_rank) + "/error.json"},
  };
  if (todo.local_ranks > 1 && !std::getenv("OMP_NUM_THREADS"))
    environment.emplace_back("OMP_NUM_THREADS", "1");

  std::vector<std::string> words = todo.command;
  if (todo.passes_local_rank) words.push_back(text("--local-rank=", local_rank));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  std::vector<int> cores;
  if (todo.binds_to_cores) cores = shares_of_cores(todo.local_ranks)[static_cast<std::size_t>(local_rank)];
  ranks_.start(reports_[static_cast<std::size_t>(local_rank)],
               [&] { become_rank(local_rank, environment, arguments, cores, out.get(), err.get()); });
}

/// In the child. It leads a session, so that it and most of what it starts can be signalled at once.
void attempt::become_rank(int local_rank, const std::vector<std::pair<std::string, std::string>>& environment,
                          const std::vector<char*>& arguments, const std::vector<int>& cores, int out,
                          int err) {
  ::setsid();
  bind_to(cores);
  ddpp::detail::set_rank_environment(setting_.first_rank + local_rank, setting_.world_size, local_rank,
                                     setting_.todo.local_ranks, setting_.node);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (setting_.first_rank + local_rank != 0) {
    if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0)
      ::dup2(nothing, STDIN_FILENO);
  }
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::setrlimit(RLIMIT_NOFILE, &setting_.rank_files);
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &setting_.rank_signals, nullptr);
  ::execvp(arguments.front(), arguments.data());
  const int code = errno;
  reports_[static_cast<std::size_t>(local_rank)].fail(
      ddpp::detail::text("cannot run ", arguments.front(), ": ", std::strerror(code)), false);
  std::_Exit(code == ENOENT ? 127 : 126);
}

std::optional<job_failure> attempt::run() {
  try {
    watch();
  } catch (const meeting_failed& e) {
    job_failure lost;
    lost.node = setting_.node;
    lost.message = e.what();
    if (failure_)
      setting_.screen.say(lost.message);
    else
      failure_ = lost;
    failure_->is_final = true;
  }
  wind_down();
  return failure_;
}

void attempt::watch() {
  while (!failure_ && !all_have_finished()) {
    wait_for_news(true);
    take_signals();
    take_ends();
    if (!failure_) ask_others();
    reap_orphans([&](pid_t process) { return is_rank(process); });
  }
}

void attempt::wait_for_news(bool of_signals) {
  pollfd entries[] = {{of_signals ? setting_.signals.descriptor() : -1, POLLIN, 0},
                      {ranks_.events(), POLLIN, 0}};
  const std::chrono::milliseconds limit =
      setting_.others ? std::min<std::chrono::milliseconds>(longest_wait, setting_.todo.monitor_interval)
                      : longest_wait;
  ::poll(entries, 2, static_cast<int>(limit.count()));
}

void attempt::take_signals() {
  while (const auto signal = setting_.signals.next()) {
    if (!ends_the_job(*signal)) {
      pass_on(*signal);
      continue;
    }
    job_failure told;
    told.node = setting_.node;
    told.signal = setting_.kept() ? *signal : SIGKILL;
    told.message = setting_.kept() ? signal_name(*signal) + " has ended the job"
                                   : "ddpp-run has been killed, and with it the job";
    if (setting_.others)
      told.message = ddpp::detail::text("node ", setting_.node, " (", host_name(), "): ", told.message);
    told.is_final = true;
    ending_signal_ = *signal;
    fail(told);
    failure_->is_final = true;  // also where another node's counts, which would not be
    return;
  }
}

void attempt::take_ends() {
  for (const std::size_t i : ranks_.wait_for_ends({})) {
    const auto& child = ranks_.all()[i];
    if (child.exit_code == 0 && child.signal == 0) continue;
    if (failure_ && !(failed_here_ && failure_->follows_another)) continue;
    const job_failure failure = failure_of(i);
    if (failure_ && failure.follows_another) continue;
    failed_here_ = true;
    setting_.screen.say(ddpp::detail::text("rank ", failure.rank, " has failed (", text_of_end(failure),
                                           "): this attempt ends"));
    fail(failure);
  }
}

/// One that only follows another rank's failure is not announced before that one has had time to be.
void attempt::fail(job_failure failure) {
  failure_ = failure;
  if (setting_.others && !failure.follows_another) failure_ = setting_.others->announce(number_, failure);
}

job_failure attempt::failure_of(std::size_t local_rank) {
  const auto& child = ranks_.all()[local_rank];
  const int local = static_cast<int>(local_rank);
  job_failure failure;
  failure.rank = setting_.first_rank + local;
  failure.local_rank = local;
  failure.node = setting_.node;
  failure.process = child.pid;
  failure.host = host_name();
  failure.exit_code = child.exit_code;
  failure.signal = child.signal;
  const auto& report = reports_[local_rank];
  if (report.end() == ddpp::detail::rank_end::failed) failure.message = report.text();
  const std::string file = rank_folder(local) + "/error.json";
  read_error_file(failure, file);
  if (!setting_.todo.log_dir.empty() && std::filesystem::exists(file)) failure.error_file = file;
  failure.last_lines = output_.last_lines(local, 1s);
  return failure;
}

void attempt::ask_others() {
  if (!setting_.others || clock::now() < next_question_) return;
  next_question_ = clock::now() + setting_.todo.monitor_interval;
  if (announced_done_ && setting_.others->all_done(number_)) return;
  failure_ = setting_.others->failure(number_);
}

bool attempt::all_have_finished() {
  if (ranks_.running() > 0) return false;
  if (!setting_.others) return true;
  announced_done_ = announced_done_ || setting_.others->set_done(number_);
  return announced_done_ && setting_.others->all_done(number_);
}

bool attempt::is_rank(pid_t process) const {
  const auto& all = ranks_.all();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& each) { return each.running && each.pid == process; });
}

bool attempt::something_runs() const {
  return ranks_.running() > 0 || (ddpp::detail::proc_is_ours() && has_children());
}

/// To those processes of each rank that have a handler for it, as others (a shell around the program) would
/// only die; to the rank itself where none has.
void attempt::pass_on(int signal) {
  for (const auto& rank : ranks_.all()) {
    if (!rank.running) continue;
    bool caught = false;
    std::vector<pid_t> processes = ddpp::detail::descendants_of(rank.pid);
    processes.push_back(rank.pid);
    for (const pid_t process : processes) {
      if (catches(process, signal)) caught = ::kill(process, signal) == 0 || caught;
    }
    if (!caught) rank.send(signal);
  }
}

/// To everything that descends from here, once.
void attempt::send_to_all(int signal) {
  std::vector<pid_t> groups;
  for (const auto& rank : ranks_.all()) {
    if (rank.running && ::kill(-rank.pid, signal) == 0) groups.push_back(rank.pid);
  }
  for (const auto& rank : ranks_.all()) {  // not yet a session's leader, and perhaps unknown to /proc
    if (rank.running && std::count(groups.begin(), groups.end(), rank.pid) == 0) rank.send(signal);
  }
  for (const pid_t process : ddpp::detail::descendants_of(::getpid())) {
    if (is_rank(process) || std::count(groups.begin(), groups.end(), ::getpgid(process)) != 0) continue;
    ::kill(process, signal);
  }
}

void attempt::wait_for_others_to_fail() {
  const auto until = clock::now() + std::min(settle_time, setting_.todo.grace);
  while (ranks_.running() > 0 && clock::now() < until) {
    wait_for_news(false);
    take_ends();
  }
  if (!failure_->follows_another || !setting_.others) return;
  while (clock::now() < until && failure_->follows_another) {
    if (const auto first = setting_.others->failure(number_)) failure_ = first;
    std::this_thread::sleep_for(10ms);
  }
  failure_ = setting_.others->announce(number_, *failure_);
}

/// The others end by themselves, or get the signal, and after the grace period SIGKILL.
void attempt::wind_down() {
  const bool is_rank_failure = failure_ && failure_->rank >= 0;
  try {
    if (is_rank_failure) wait_for_others_to_fail();
  } catch (const meeting_failed& e) {
    setting_.screen.say(e.what());
    failure_->is_final = true;
  }
  if (setting_.kept() && something_runs()) {
    send_to_all(ending_signal_);
    for (const auto until = clock::now() + setting_.todo.grace; something_runs() && clock::now() < until;) {
      if (ranks_.wait_for_ends(std::min(until, clock::now() + 10ms)).empty() && ranks_.running() == 0)
        std::this_thread::sleep_for(5ms);
      reap_orphans([&](pid_t process) { return is_rank(process); });
    }
  }
  ranks_.kill_all();
  kill_all_descendants();
  finish_output();
}

/// A user who reads slowly gets everything, unless the job was told to end.
void attempt::finish_output() {
  bool in_a_hurry = failure_ && failure_->rank < 0;
  for (const auto until = clock::now() + 2s; !output_.finish(100ms);) {
    while (const auto signal = setting_.signals.next()) {
      if (!ends_the_job(*signal)) continue;
      in_a_hurry = true;
      if (failure_) failure_->is_final = true;
    }
    if ((in_a_hurry || has_children()) && clock::now() >= until) return setting_.screen.give_up();
  }
}

}  // namespace launcher
