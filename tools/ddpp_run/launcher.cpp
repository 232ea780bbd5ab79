// SPDX-License-Identifier: BSL-1.0
#include "launcher.hpp"

#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/tcp_store.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "attempt.hpp"
#include "console.hpp"
#include "meeting.hpp"
#include "process_tree.hpp"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using ddpp::detail::text;

/// A signal came that ends the job before it has begun.
struct told_to_end {
  int signal;
};

/// Others may be silent for so long and come back to hear that all has ended well.
constexpr auto longest_absence = ddpp::detail::longest_silence + 10s;

/// This process needs several descriptors per rank. Returns what was allowed before.
rlimit raise_limit_of_files() {
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) != 0) return before;
  rlimit most = before;
  most.rlim_cur = before.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &most);
  return before;
}

/// Before the first rank is started, as some would have to be ended again.
void check_limit_of_files(int ranks, int connections) {
  rlimit now{};
  const auto needed = static_cast<rlim_t>(32 + 3 * ranks + connections);
  if (::getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur >= needed) return;
  throw ddpp::resource_error(
      text(ranks, " ranks here need ", needed, " open files, and no more than ", now.rlim_cur,
           " are allowed: raise the hard limit (ulimit -Hn; LimitNOFILE of a service)"));
}

/// A port that nobody else is given, but a program that rank 0 starts can listen on, if it reuses addresses,
/// as nearly all do.
class reserved_port {
 public:
  reserved_port() : socket_(ddpp::detail::open_socket(AF_INET)) {
    ddpp::detail::set_option(socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0)
      throw ddpp::resource_error(text("could not reserve a port: ", ddpp::detail::system_text(errno)));
  }
  std::uint16_t port() const { return ddpp::detail::address::local_of(socket_.get()).port(); }

 private:
  ddpp::detail::descriptor socket_;
};

/// What one attempt's ranks meet at, where this node provides it. A new one for each attempt: nobody finds
/// the old one's keys.
class served_place {
 public:
  served_place(const plan& todo, const std::string& host)
      : listener_(std::in_place, host, std::uint16_t{0}),
        place_{host, listener_->address(), listener_->port(), 0} {
    if (todo.nodes == 1 && todo.master_addr) place_.host = *todo.master_addr;
    if (todo.nodes == 1 && todo.master_port)
      place_.master_port = *todo.master_port;
    else
      place_.master_port = reserved_.emplace().port();
  }
  const meeting_place& place() const { return place_; }
  /// Starts the store's thread: after the ranks have been forked.
  void serve() {
    store_ = std::make_unique<ddpp::tcp_store>(std::move(*listener_),
                                               ddpp::tcp_store_options{.secret = ddpp::detail::job_secret()});
  }

 private:
  std::optional<ddpp::detail::store_listener> listener_;
  std::optional<reserved_port> reserved_;
  meeting_place place_;
  std::unique_ptr<ddpp::tcp_store> store_;
};

class node {
 public:
  node(const plan& todo, const sigset_t& rank_signals, const std::string& folder,
       const std::function<bool()>& kept)
      : todo_(todo),
        signals_(todo.signals),
        setting_{todo_,  screen_, signals_, raise_limit_of_files(), rank_signals, kept, nullptr,
                 folder, 0,       0,        todo.local_ranks} {}

  int run() {
    try {
      come_together();
      const int status = run_attempts();
      if (others_) others_->leave(status == 0 ? longest_absence : 2 * todo_.grace + 10s);
      screen_.give_up();
      return status;
    } catch (const told_to_end& told) {
      screen_.say(signal_name(told.signal) + " has ended the job before it had begun");
      return 128 + told.signal;
    } catch (const std::exception& e) {
      screen_.say(e.what());
      screen_.give_up();
      return 1;
    }
  }

 private:
  void come_together() {
    if (todo_.nodes == 1) {
      ddpp::detail::ensure_job_secret();
    } else {
      others_ = std::make_unique<meeting>(todo_, [&] { throw_if_told_to_end(); });
      setting_.others = others_.get();
      setting_.node = others_->node();
      setting_.world_size = 0;
      for (std::size_t i = 0; i < others_->nodes().size(); ++i) {
        if (static_cast<int>(i) == setting_.node) setting_.first_rank = setting_.world_size;
        setting_.world_size += others_->nodes()[i].local_ranks;
      }
    }
    check_limit_of_files(todo_.local_ranks, setting_.node == 0 ? setting_.world_size : 0);
    if (todo_.local_ranks > 1 && !std::getenv("OMP_NUM_THREADS"))
      screen_.say(text("OMP_NUM_THREADS is not set: each of the ", todo_.local_ranks, " ranks here gets 1"));
    if (!todo_.log_dir.empty() || todo_.redirects.any() || todo_.tees.any())
      screen_.say("logs are in " + setting_.folder);
  }

  int run_attempts() {
    for (int number = 0;; ++number) {
      const std::optional<job_failure> failure = run_attempt(number);
      if (!failure) return 0;
      screen_.say(report(*failure));
      if (failure->is_final || number >= todo_.max_restarts) return exit_status(*failure);
      screen_.say(text("all ranks start again (restart ", number + 1, " of ", todo_.max_restarts, ")"));
    }
  }

  std::optional<job_failure> run_attempt(int number) {
    std::optional<served_place> here;
    if (setting_.node == 0) here.emplace(todo_, others_ ? others_->address() : "127.0.0.1");
    while (here && others_ && !others_->set_place(number, here->place())) {
      throw_if_told_to_end();
      std::this_thread::sleep_for(20ms);
    }
    attempt ranks(setting_, number, here ? here->place() : place_of_node_0(number));
    if (here) here->serve();
    return ranks.run();
  }

  meeting_place place_of_node_0(int number) {
    for (;; std::this_thread::sleep_for(20ms)) {
      throw_if_told_to_end();
      if (const auto place = others_->place(number)) return *place;
      if (const auto failure = others_->failure(number)) throw meeting_failed(report(*failure));
    }
  }

  void throw_if_told_to_end() {
    while (const auto signal = signals_.next()) {
      if (ends_the_job(*signal)) throw told_to_end{*signal};
    }
  }

  const plan& todo_;
  console screen_;
  signal_queue signals_;
  node_setting setting_;
  std::unique_ptr<meeting> others_;
};

}  // namespace

int launch(const plan& todo, const sigset_t& rank_signals, const std::string& folder,
           const std::function<bool()>& kept) {
  ::signal(SIGPIPE, SIG_IGN);
  adopt_orphans();
  return node(todo, rank_signals, folder, kept).run();
}

}  // namespace launcher
