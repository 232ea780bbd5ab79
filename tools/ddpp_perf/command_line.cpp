// SPDX-License-Identifier: BSL-1.0
#include "command_line.hpp"

#include <ddpp/environment.hpp>
#include <ddpp/version.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choices.hpp"
#include "collectives.hpp"

namespace perf {
namespace {

const std::vector<std::string> transports{"threads", "shm", "tcp"};
constexpr int most_ranks = 1024;
constexpr std::size_t most_sizes = 10'000;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

template <class List>
std::vector<std::string> names_in(const List& list) {
  return std::apply([](const auto&... each) { return std::vector<std::string>{std::string(each.name)...}; },
                    list);
}

void require_one_of(const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw bad_input(what + " '" + name + "' is unknown; there are " + joined(known));
}

/// "64K" is 65536.
std::size_t parse_size(const std::string& option, const std::string& text) {
  std::size_t digits = 0, value = 0;
  const auto most = std::numeric_limits<std::size_t>::max();
  const bool starts_with_digit = !text.empty() && text.front() >= '0' && text.front() <= '9';
  try {
    if (starts_with_digit) value = std::stoull(text, &digits);
  } catch (const std::exception&) {
    digits = 0;
  }
  int shift = 0;
  if (digits + 1 == text.size()) {
    const auto unit =
        std::string("KMGT").find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    shift = unit == std::string::npos ? -1 : 10 * (static_cast<int>(unit) + 1);
  }
  if (digits == 0 || digits + (shift != 0) != text.size() || shift < 0 || value > (most >> shift)) {
    throw bad_input(option + ": '" + text + "' is no size (8, 64K, 16M, 1G)");
  }
  return value << shift;
}

/// The bytes of one element, on each rank that has to bring some: sizes are whole multiples of it.
std::size_t unit_of(const plan& todo) {
  std::size_t unit = 0;
  visit_named(all_types, todo.type, [&]<class T>(std::type_identity<T>) { unit = sizeof(T); });
  visit_collective(todo.collective, [&](auto collective) {
    if (collective.size_is_of_all_ranks) unit *= static_cast<std::size_t>(todo.ranks);
  });
  return unit;
}

/// What the kernel believes can be allocated without swapping; nothing known: no limit.
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::size_t kibibytes = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

void require_memory(const plan& todo) {
  const auto buffers = 2 * static_cast<std::size_t>(todo.launched ? 1 : todo.ranks);
  const std::size_t available = available_memory();
  if (todo.max_bytes <= available / buffers) return;
  throw bad_input("-e " + std::to_string(todo.max_bytes) + " needs " + std::to_string(buffers) +
                  " buffers of that size, and only " + std::to_string(available) +
                  " bytes of memory are available");
}

/// What was typed, before it is understood.
struct typed {
  std::string collective, transport = "shm", algorithm = "automatic", type = "float", op = "sum", json_file,
                          plot_file;
  std::string min_bytes = "8", max_bytes = "64M", step_factor = "4", step_bytes;
  std::optional<int> ranks;
  int root = 0, iterations = 20, warmup_iterations = 5, check_iterations = 1;
};

typed parse(int argc, char** argv) {
  typed in;
  CLI::App app(
      "Times and checks collectives, as NVIDIA's nccl-tests do: the mean of the slowest rank,\n"
      "algbw = bytes / time, busbw = algbw times the share that has to cross each rank's link.");
  app.set_version_flag("--version", std::string("ddpp-perf ") + ddpp::version);
  app.add_option("collective", in.collective, joined(names_in(all_collectives{})))->required();
  app.add_option("--transport", in.transport, joined(transports) + ", all")->capture_default_str();
  app.add_option("--algorithm", in.algorithm, joined(names_in(all_algorithms{})) + ", all")
      ->capture_default_str();
  app.add_option("--ranks", in.ranks, "ranks to start on this machine (2); not under a launcher");
  app.add_option("-b,--minbytes", in.min_bytes, "smallest size; K, M, G are powers of 1024")
      ->capture_default_str();
  app.add_option("-e,--maxbytes", in.max_bytes, "largest size")->capture_default_str();
  auto* factor = app.add_option("-f,--stepfactor", in.step_factor, "each size is so many times the last");
  factor->capture_default_str();
  app.add_option("-i,--stepbytes", in.step_bytes, "each size is so much more than the last")
      ->excludes(factor);
  app.add_option("-n,--iters", in.iterations, "timed operations per size")->capture_default_str();
  app.add_option("-w,--warmup_iters", in.warmup_iterations, "operations before those")->capture_default_str();
  app.add_option("-c,--check", in.check_iterations, "operations whose results are checked; 0: none")
      ->capture_default_str();
  app.add_option("-d,--datatype", in.type, joined(names_in(all_types)))->capture_default_str();
  app.add_option("-o,--op", in.op, joined(names_in(all_ops)))->capture_default_str();
  app.add_option("-r,--root", in.root, "of a collective that has one")->capture_default_str();
  app.add_option("-J,--json", in.json_file, "write everything to this file, too");
  app.add_option("--plot", in.plot_file, "draw bus bandwidth over size into this file (SVG; needs gnuplot)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) std::exit(app.exit(e));
    throw bad_input(e.what());
  }
  return in;
}

std::vector<std::string> usable_algorithms(const std::string& collective_name) {
  std::vector<std::string> names;
  const auto add_if = [&](bool usable, std::string_view name) {
    if (usable) names.emplace_back(name);
  };
  visit_collective(collective_name, [&]<class Collective>(Collective) {
    using comm = ddpp::communicator<ddpp::threads>;
    std::apply(
        [&]<class... Algorithm>(Algorithm...) {
          (add_if(Collective::template can_use<Algorithm, comm>, Algorithm::name), ...);
        },
        all_algorithms{});
  });
  return names;
}

void require_built(const plan& todo) {
  for (const std::string& name : todo.algorithms) {
    bool built = false;
    visit_collective(todo.collective, [&]<class Collective>(Collective) {
      visit_algorithm(name, [&]<class Algorithm>(Algorithm) {
        visit_named(all_types, todo.type, [&]<class T>(std::type_identity<T>) {
          visit_named(all_ops, todo.op, [&]<class Op>(std::type_identity<Op>) {
            built = is_built<Collective, Algorithm, T, Op>;
          });
        });
      });
    });
    if (!built) {
      throw bad_input(todo.op + " of " + todo.type + " is not built for this: " + what_is_built);
    }
  }
}

void set_names(plan& todo, const typed& in) {
  require_one_of("collective", in.collective, names_in(all_collectives{}));
  require_one_of("datatype", in.type, names_in(all_types));
  require_one_of("op", in.op, names_in(all_ops));
  todo.collective = in.collective;
  todo.type = in.type;
  todo.op = in.op;
  todo.transports = transports;
  if (in.transport != "all") {
    require_one_of("transport", in.transport, transports);
    todo.transports = {in.transport};
  }
  todo.algorithms = usable_algorithms(in.collective);
  if (in.algorithm != "all") {
    require_one_of(in.collective + ": algorithm", in.algorithm, todo.algorithms);
    todo.algorithms = {in.algorithm};
  }
  require_built(todo);
}

void set_ranks(plan& todo, const typed& in) {
  const auto environment = ddpp::detail::read_environment();
  todo.launched = environment.by != nullptr;
  todo.ranks = todo.launched ? environment.size : in.ranks.value_or(2);
  todo.root = in.root;
  if (todo.launched && in.ranks) throw bad_input("--ranks was given, but a launcher has started this one");
  if (todo.launched && std::count(todo.transports.begin(), todo.transports.end(), "threads") != 0) {
    throw bad_input("transport threads joins ranks of one process, and a launcher has started several");
  }
  if (todo.ranks < 1 || todo.ranks > most_ranks) {
    throw bad_input("--ranks must be from 1 to " + std::to_string(most_ranks));
  }
  if (todo.root < 0 || todo.root >= todo.ranks) {
    throw bad_input("--root " + std::to_string(todo.root) + " is none of " + std::to_string(todo.ranks) +
                    " ranks");
  }
}

void set_sizes(plan& todo, const typed& in) {
  todo.min_bytes = parse_size("--minbytes", in.min_bytes);
  todo.max_bytes = parse_size("--maxbytes", in.max_bytes);
  if (todo.min_bytes == 0) throw bad_input("--minbytes must be at least 1");
  if (todo.min_bytes > todo.max_bytes) throw bad_input("--minbytes is greater than --maxbytes");
  if (in.step_bytes.empty()) {
    todo.step_factor = parse_size("--stepfactor", in.step_factor);
    if (todo.step_factor < 2) throw bad_input("--stepfactor must be at least 2");
  } else {
    todo.step_bytes = parse_size("--stepbytes", in.step_bytes);
    if (todo.step_bytes == 0 || (todo.max_bytes - todo.min_bytes) / todo.step_bytes >= most_sizes) {
      throw bad_input("--stepbytes must be at least 1 and make no more than " + std::to_string(most_sizes) +
                      " sizes");
    }
  }
  require_memory(todo);
}

void set_iterations(plan& todo, const typed& in) {
  const auto at_least = [](const char* option, int value, int least) {
    if (value < least) throw bad_input(std::string(option) + " must be at least " + std::to_string(least));
    return value;
  };
  todo.iterations = at_least("--iters", in.iterations, 1);
  todo.warmup_iterations = at_least("--warmup_iters", in.warmup_iterations, 0);
  todo.check_iterations = at_least("--check", in.check_iterations, 0);
}

}  // namespace

plan parse_command_line(int argc, char** argv) {
  const typed in = parse(argc, argv);
  plan todo;
  todo.json_file = in.json_file;
  todo.plot_file = in.plot_file;
  set_names(todo, in);
  set_ranks(todo, in);
  set_sizes(todo, in);
  set_iterations(todo, in);
  if (!todo.plot_file.empty() && (!has_sizes(todo.collective) || todo.ranks == 1)) {
    throw bad_input("--plot: there is no bandwidth to draw of a barrier, or of one rank");
  }
  visit_collective(todo.collective, [&](auto collective) {
    if (!collective.reduces) todo.op = "none";
    if (!collective.has_root) todo.root = -1;
  });
  return todo;
}

std::vector<row> rows_of(const plan& todo) {
  if (!has_sizes(todo.collective)) return std::vector<row>(1);
  const std::size_t unit = unit_of(todo);
  std::vector<row> rows;
  for (std::size_t bytes = todo.min_bytes; bytes <= todo.max_bytes;) {
    row row;
    row.count = bytes / unit;
    row.bytes = row.count * unit;
    if (row.count > 0) rows.push_back(row);
    if (todo.step_factor != 0) {
      if (bytes > todo.max_bytes / todo.step_factor) break;
      bytes *= todo.step_factor;
    } else {
      if (todo.step_bytes > todo.max_bytes - bytes) break;
      bytes += todo.step_bytes;
    }
  }
  if (rows.empty()) {
    throw bad_input("--maxbytes " + std::to_string(todo.max_bytes) + " is too small: the least of " +
                    todo.collective + " here is " + std::to_string(unit) + " bytes");
  }
  return rows;
}

}  // namespace perf
