// SPDX-License-Identifier: BSL-1.0
// Merges the flight recorder's files of a group's ranks and says in a sentence where they diverged.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "dump.hpp"
#include "explanation.hpp"

int main(int argc, char** argv) {
  CLI::App app{
      "Says where the ranks of a group diverged, from the files that their flight recorders wrote "
      "(init_options::flight_recorder, DDPP_FLIGHT_RECORDER)."};
  std::vector<std::string> files;
  app.add_option("files", files, "one per rank; of several groups: each is explained")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    std::map<std::string, ddpp_explain::group_dumps> groups;
    for (const std::string& file : files) ddpp_explain::add(groups, ddpp_explain::read_dump(file));
    bool first = true;
    for (const auto& [name, group] : groups) {
      std::printf("%s%s\n", first ? "" : "\n", ddpp_explain::explain(group).c_str());
      first = false;
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ddpp-explain: %s\n", e.what());
    return 2;
  }
}
