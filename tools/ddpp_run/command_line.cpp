// SPDX-License-Identifier: BSL-1.0
#include "command_line.hpp"

#include <ddpp/detail/secret.hpp>
#include <ddpp/version.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "cores.hpp"
#include "program.hpp"
#include "signals.hpp"

namespace launcher {
namespace {

constexpr int most_ranks = 65'536;

/// What was typed, before it is understood.
struct typed {
  std::string nodes = "1", local_ranks = "1", meeting, conf, backend = "c10d", job, role = "default", log_dir,
              redirects = "0", tees = "0", shown_ranks, signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
              bind = "none", master_addr, start_method, local_addr;
  int node_rank = -1, master_port = -1, max_restarts = 0;
  double monitor_interval = 0.1, grace = 10;
  bool standalone = false, passes_local_rank = false, no_python = false, module = false, no_prefix = false,
       use_env = false;
};

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

int number(const std::string& option, std::string_view text, int least, int most) {
  int value = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || stop != text.data() + text.size() || value < least || value > most) {
    throw bad_input(option + ": '" + std::string(text) + "' is no number from " + std::to_string(least) +
                    " to " + std::to_string(most));
  }
  return value;
}

/// "--a-b,--a_b": torchrun knows both spellings.
std::string both_spellings(const std::string& name) {
  std::string other = name.substr(2);
  std::replace(other.begin(), other.end(), '-', '_');
  return "--" + other == name ? name : name + ",--" + other;
}

/// torchrun takes each option from PET_NAME, too; Kubeflow's PyTorchJob sets these.
std::string environment_name(const std::string& option) {
  std::string name = "PET_" + option.substr(2);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

class command_line {
 public:
  command_line()
      : app_(
            "Starts a program as several ranks, on this node or on several, as torchrun does: sets RANK, "
            "WORLD_SIZE,\n"
            "LOCAL_RANK, MASTER_ADDR and their like, shows their output line by line, and ends all when one "
            "fails.\n"
            "The exit status is that of the first rank that failed (128 + n for signal n).\n\n"
            "usage: ddpp-run [OPTION...] PROGRAM [ARGUMENT...]") {
    app_.prefix_command();
    app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app_.set_version_flag("--version", std::string("ddpp-run ") + ddpp::version);
    add_ranks();
    add_meeting();
    add_output();
    add_rest();
  }

  typed parse(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) std::exit(app_.exit(e));
      throw bad_input(e.what());
    }
    return in_;
  }

  std::vector<std::string> command() const {
    std::vector<std::string> words = app_.remaining();
    if (!words.empty() && words.front() == "--")
      words.erase(words.begin());
    else if (!words.empty() && words.front().starts_with('-'))
      throw bad_input("there is no option " + words.front() + " (see --help)");
    if (words.empty()) throw bad_input("which program? usage: ddpp-run [OPTION...] PROGRAM [ARGUMENT...]");
    return words;
  }

 private:
  template <class T>
  CLI::Option* option(const std::string& name, T& value, const std::string& help,
                      const std::string& brief = "") {
    return app_.add_option(brief + both_spellings(name), value, help)->envname(environment_name(name));
  }
  CLI::Option* flag(const std::string& name, bool& value, const std::string& help,
                    const std::string& brief = "") {
    return app_.add_flag(brief + both_spellings(name), value, help)->envname(environment_name(name));
  }

  void add_ranks() {
    option("--nproc-per-node", in_.local_ranks,
           "ranks on this node: a number, cpu, gpu, or auto (gpu where there are any)")
        ->capture_default_str();
    option("--nnodes", in_.nodes, "how many nodes, each of which starts ddpp-run")->capture_default_str();
    option("--node-rank", in_.node_rank, "this node's number, from 0 (by arrival)");
    flag("--standalone", in_.standalone, "one node, whatever the environment says");
  }

  void add_meeting() {
    option("--rdzv-endpoint", in_.meeting, "host:port where several nodes meet; an address of one of them");
    option("--rdzv-id", in_.job, "the job's name, the same on all nodes");
    option("--rdzv-backend", in_.backend, "c10d or static: both are ddpp's own store");
    option("--rdzv-conf", in_.conf,
           "timeout=S: how long nodes wait for each other (600); the rest is accepted");
    option("--master-addr", in_.master_addr, "instead of --rdzv-endpoint: the host of node 0");
    option("--master-port", in_.master_port,
           "and its port (29500); on one node: the ranks' MASTER_PORT (any free one)");
  }

  void add_output() {
    option("--log-dir", in_.log_dir, "keeps output and error files, by job, attempt and local rank");
    option("--redirects", in_.redirects,
           "to files, not here: 1 stdout, 2 stderr, 3 both; 0:1,1:3 by local rank", "-r,");
    option("--tee", in_.tees, "to files and here, as above", "-t,");
    option("--local-ranks-filter", in_.shown_ranks, "show the output of these local ranks only: 0,2");
    flag("--no-prefix", in_.no_prefix, "lines as they are, without [rank]");
  }

  void add_rest() {
    option("--max-restarts", in_.max_restarts, "how often all ranks start again after a failure")
        ->capture_default_str();
    option("--monitor-interval", in_.monitor_interval,
           "seconds between looks at other nodes; ends here are noticed at once")
        ->capture_default_str();
    option("--grace", in_.grace, "seconds between SIGTERM and SIGKILL for ranks that are to end")
        ->capture_default_str();
    option("--signals-to-handle", in_.signals,
           "passed on to the ranks; SIGTERM, SIGINT, SIGHUP and SIGQUIT end the job, others do not")
        ->capture_default_str();
    option("--bind-to", in_.bind, "none, or core: each rank gets its share of the cores")
        ->capture_default_str();
    flag("--pass-local-rank", in_.passes_local_rank, "adds the argument --local-rank=N");
    flag("--module", in_.module, "PROGRAM is a Python module", "-m,");
    flag("--no-python", in_.no_python, "PROGRAM is run as it is, even if it ends in .py");
    option("--role", in_.role, "the ranks' ROLE_NAME")->capture_default_str();
    option("--start-method", in_.start_method, "accepted")->group("");
    option("--local-addr", in_.local_addr, "accepted")->group("");
    flag("--use-env", in_.use_env, "accepted: it is so")->group("");
  }

  CLI::App app_;
  typed in_;
};

int parse_nodes(const std::string& text) {
  const auto colon = text.find(':');
  const int least = number("--nnodes", text.substr(0, colon), 1, most_ranks);
  if (colon == text.npos) return least;
  if (number("--nnodes", text.substr(colon + 1), 1, most_ranks) == least) return least;
  throw bad_input("--nnodes " + text + ": a job does not change its size; give one number");
}

endpoint parse_endpoint(const std::string& text, std::uint16_t default_port) {
  endpoint result{text, default_port};
  const auto colon = text.rfind(':');
  const bool bare_v6 = !text.starts_with('[') && text.find(':') != colon;
  if (colon != text.npos && !bare_v6 && text.find(']', colon) == text.npos) {
    result.host = text.substr(0, colon);
    result.port = static_cast<std::uint16_t>(number("--rdzv-endpoint", text.substr(colon + 1), 0, 65535));
  }
  if (result.host.starts_with('[') && result.host.ends_with(']'))
    result.host = result.host.substr(1, result.host.size() - 2);
  if (result.host.empty()) throw bad_input("--rdzv-endpoint '" + text + "' has no host; give host:port");
  return result;
}

streams parse_streams(const std::string& option, std::string_view text) {
  const int bits = number(option, text, 0, 3);
  return {(bits & 1) != 0, (bits & 2) != 0};
}

stream_choice parse_stream_choice(const std::string& option, const std::string& text) {
  stream_choice result;
  if (text.find(':') == text.npos) {
    result.all = parse_streams(option, text);
    return result;
  }
  for (const std::string_view item : split(text, ',')) {
    const auto colon = item.find(':');
    if (colon == item.npos) throw bad_input(option + ": '" + text + "' is neither like 3 nor like 0:1,1:3");
    result.of_rank[number(option, item.substr(0, colon), 0, most_ranks)] =
        parse_streams(option, item.substr(colon + 1));
  }
  return result;
}

std::chrono::milliseconds parse_seconds(const std::string& option, double seconds) {
  if (!(seconds >= 0 && seconds <= 1e9)) {
    throw bad_input(option + " takes seconds, from 0, not " + std::to_string(seconds));
  }
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

/// Of torchrun's "key=value,..." how long to wait; the rest is about its own protocol.
void read_conf(plan& todo, const std::string& conf) {
  for (const std::string_view item : split(conf, ',')) {
    const auto equals = item.find('=');
    if (equals == item.npos) throw bad_input("--rdzv-conf: '" + std::string(item) + "' is no key=value");
    const std::string_view key = item.substr(0, equals);
    if (key != "timeout" && key != "join_timeout") continue;
    todo.meeting_timeout = std::chrono::seconds(
        number("--rdzv-conf " + std::string(key), item.substr(equals + 1), 1, 1'000'000'000));
  }
}

void set_meeting(plan& todo, const typed& in) {
  if (in.backend != "c10d" && in.backend != "static") {
    throw bad_input("--rdzv-backend " + in.backend +
                    ": there is none; c10d and static mean ddpp's own store, which needs no server");
  }
  read_conf(todo, in.conf);
  todo.nodes = in.standalone ? 1 : parse_nodes(in.nodes);
  if (in.master_port != -1)
    todo.master_port =
        static_cast<std::uint16_t>(number("--master-port", std::to_string(in.master_port), 0, 65535));
  if (todo.master_port == 0) todo.master_port.reset();
  if (!in.master_addr.empty()) todo.master_addr = in.master_addr;
  todo.job = in.job;
  if (todo.nodes == 1) {
    if (in.node_rank > 0)
      throw bad_input("--node-rank " + std::to_string(in.node_rank) + " of one node does not exist");
    if (todo.job.empty()) todo.job = ddpp::detail::random_secret().substr(0, 8);
    return;
  }
  if (in.node_rank != -1)
    todo.node_rank = number("--node-rank", std::to_string(in.node_rank), 0, todo.nodes - 1);
  if (todo.job.empty()) todo.job = "none";
  if (!in.meeting.empty())
    todo.meeting = parse_endpoint(in.meeting, 29400);
  else if (todo.master_addr)
    todo.meeting = endpoint{*todo.master_addr, todo.master_port.value_or(29500)};
  else
    throw bad_input(
        "several nodes need --rdzv-endpoint host:port, an address of one of them, the same on all");
  if (todo.meeting->port == 0) throw bad_input("--rdzv-endpoint: several nodes cannot meet at port 0");
}

void set_output(plan& todo, const typed& in) {
  todo.log_dir = in.log_dir;
  todo.redirects = parse_stream_choice("--redirects", in.redirects);
  todo.tees = parse_stream_choice("--tee", in.tees);
  todo.prefixes = !in.no_prefix;
  for (const std::string_view rank : split(in.shown_ranks, ','))
    todo.shown_ranks.push_back(number("--local-ranks-filter", rank, 0, most_ranks));
}

void set_signals(plan& todo, const typed& in) {
  for (const std::string_view name : split(in.signals, ',')) {
    const int signal = signal_number(name);
    if (signal == 0) throw bad_input("--signals-to-handle: '" + std::string(name) + "' is no signal");
    if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD)
      throw bad_input("--signals-to-handle: " + std::string(name) + " cannot be passed on");
    todo.signals.push_back(signal);
  }
  // Those that end the job always do so in order, or what ranks have started would be left.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    if (std::count(todo.signals.begin(), todo.signals.end(), signal) == 0) todo.signals.push_back(signal);
  }
}

}  // namespace

plan parse_command_line(int argc, char** argv) {
  command_line line;
  const typed in = line.parse(argc, argv);
  plan todo;
  todo.local_ranks = parse_local_ranks(in.local_ranks);
  set_meeting(todo, in);
  set_output(todo, in);
  set_signals(todo, in);
  todo.max_restarts =
      number("--max-restarts", std::to_string(in.max_restarts), 0, std::numeric_limits<int>::max());
  todo.monitor_interval =
      std::max(parse_seconds("--monitor-interval", in.monitor_interval), std::chrono::milliseconds(1));
  todo.grace = parse_seconds("--grace", in.grace);
  todo.role = in.role;
  todo.passes_local_rank = in.passes_local_rank;
  if (in.bind != "none" && in.bind != "core")
    throw bad_input("--bind-to " + in.bind + ": there are none and core");
  todo.binds_to_cores = in.bind == "core";
  if (in.module && in.no_python) throw bad_input("--module and --no-python exclude each other");
  todo.command = resolve_program(line.command(), in.module, !in.no_python);
  return todo;
}

}  // namespace launcher
