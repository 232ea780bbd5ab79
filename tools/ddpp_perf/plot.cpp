// SPDX-License-Identifier: BSL-1.0
#include "plot.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "comparison.hpp"
#include "replaced_file.hpp"

extern char** environ;

namespace perf {
namespace {

// Okabe and Ito's colours, which people tell apart whatever their colour vision.
constexpr const char* colours[] = {"#000000", "#e69f00", "#56b4e9", "#009e73",
                                   "#0072b2", "#d55e00", "#cc79a7", "#999999"};

/// In gnuplot's single quotes.
std::string quoted(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? "''" : std::string(1, c);
  return all + "'";
}

/// Numbers the values of a field of tables in the order in which they first appear.
std::vector<std::size_t> numbered(const std::vector<table>& tables, std::string table::*field) {
  std::vector<std::string> known;
  std::vector<std::size_t> numbers;
  for (const table& table : tables) {
    const auto at = std::find(known.begin(), known.end(), table.*field);
    numbers.push_back(static_cast<std::size_t>(at - known.begin()));
    if (at == known.end()) known.push_back(table.*field);
  }
  return numbers;
}

std::string title_of(const plan& todo) {
  std::string title = todo.collective + " of " + todo.type;
  if (todo.op != "none") title += " (" + todo.op + ")";
  return title + ", " + std::to_string(todo.ranks) + (todo.ranks == 1 ? " rank" : " ranks");
}

/// Powers of two, of which few enough are named: "64", "1 Ki", "16 Mi".
std::string size_tics(const std::vector<row>& rows) {
  constexpr unsigned most_tics = 9;
  const auto first = static_cast<unsigned>(std::bit_width(rows.front().bytes) - 1);
  const auto last = static_cast<unsigned>(std::bit_width(rows.back().bytes));
  const unsigned step = 1 + (last - first) / most_tics;
  std::string tics;
  for (unsigned power = first; power <= last; power += step) {
    const std::size_t bytes = std::size_t{1} << power;
    const unsigned unit = power / 10;
    const std::string text =
        std::to_string(bytes >> (10 * unit)) + (unit == 0 ? "" : std::string(" ") + " KMGTPE"[unit] + "i");
    tics += (tics.empty() ? "(" : ", ") + quoted(text) + " " + std::to_string(bytes);
  }
  return tics + ")";
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// A colour for each algorithm (if there is one only: transport), a kind of points and dashes for each
/// transport.
std::string script_of(const plan& todo, const std::vector<table>& tables, const std::string& file) {
  const auto transports = numbered(tables, &table::transport);
  const auto algorithms = numbered(tables, &table::algorithm);
  const auto& coloured = todo.algorithms.size() == 1 ? transports : algorithms;
  constexpr std::size_t point_types[] = {7, 5, 9};  // discs, squares, triangles
  const std::vector<row>& sizes = tables[0].rows;
  std::string data, lines;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const std::string number = std::to_string(i);
    data += "$t" + number + " << END\n";
    for (const row& row : tables[i].rows) {
      data += std::to_string(row.bytes) + " " + number_text(representative(row).busbw) + "\n";
    }
    data += "END\n";
    lines += (i == 0 ? "plot $t" : ", $t") + number +
             " with linespoints linewidth 1.6 pointsize 0.6 linecolor '" +
             colours[coloured[i] % std::size(colours)] + "' dashtype " + std::to_string(transports[i] + 1) +
             " pointtype " + std::to_string(point_types[transports[i] % std::size(point_types)]) + " title " +
             quoted(tables[i].transport + ", " + tables[i].algorithm);
  }
  return data +
         "set terminal svg size 960,540 font 'sans-serif,13' background '#ffffff'\n"
         "set output " +
         quoted(file) + "\nset title " + quoted(title_of(todo)) +
         " noenhanced\n"
         "set xlabel 'size (bytes)'\nset ylabel 'bus bandwidth (GB/s)'\n"
         "set logscale x 2\nset logscale y 10\nset format y '%g'\nset xrange [" +
         number_text(static_cast<double>(sizes.front().bytes) * 0.99) + ":" +
         number_text(static_cast<double>(sizes.back().bytes) * 1.01) + "]\nset xtics " + size_tics(sizes) +
         "\n"
         "set grid xtics ytics linecolor '#dddddd' linetype 1\nset border 3\nset tics nomirror\n"
         "set key rmargin top Left reverse noenhanced samplen 3\n" +
         lines + "\n";
}

/// gnuplot's exit status, or -1 where it cannot be started.
int run_gnuplot(const std::vector<const char*>& arguments, const std::string& script) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> input(std::tmpfile(), std::fclose);
  if (!input || std::fputs(script.c_str(), input.get()) < 0 || std::fflush(input.get()) != 0) return -1;
  std::rewind(input.get());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(input.get()), 0);
  ::posix_spawn_file_actions_adddup2(&actions, 2, 1);
  std::vector<char*> argv{const_cast<char*>("gnuplot")};
  for (const char* argument : arguments) argv.push_back(const_cast<char*>(argument));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

void check_plot(const plan& todo) {
  if (todo.plot_file.empty()) return;
  if (run_gnuplot({}, "") != 0)
    throw bad_input("--plot needs gnuplot, which is not installed or does not work");
  replaced_file(todo.plot_file).check();
}

void write_plot(const plan& todo, const std::vector<table>& tables) {
  replaced_file file(todo.plot_file);
  if (run_gnuplot({"-"}, script_of(todo, tables, file.temporary_name())) != 0) {
    throw bad_input("gnuplot could not draw " + todo.plot_file);
  }
  file.keep();
}

}  // namespace perf
