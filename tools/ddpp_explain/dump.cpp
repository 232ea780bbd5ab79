// SPDX-License-Identifier: BSL-1.0
#include "dump.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace ddpp_explain {
namespace {

std::vector<recorded> operations_of(const nlohmann::json& list) {
  std::vector<recorded> result;
  for (const auto& item : list) {
    recorded each;
    each.sequence = item.at("sequence");
    each.operation = item.at("operation");
    each.description = item.at("description");
    each.state = item.at("state");
    each.peer = item.value("peer", -1);
    each.tag = item.value("tag", 0);
    for (const char* state : {"queued", "running", "done", "failed"}) {
      if (item.contains(state)) each.since[state] = item.at(state);
    }
    result.push_back(std::move(each));
  }
  return result;
}

}  // namespace

dump read_dump(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file);
  try {
    const nlohmann::json content = nlohmann::json::parse(in);
    if (content.at("ddpp_flight_recorder") != 1) throw std::runtime_error("of another version");
    dump result;
    result.file = file;
    result.group = content.at("group");
    result.transport = content.at("transport");
    result.reason = content.at("reason");
    result.rank = content.at("rank");
    result.size = content.at("size");
    result.written = content.at("written");
    result.collectives = operations_of(content.at("collectives"));
    result.messages = operations_of(content.at("messages"));
    if (result.size < 1 || result.rank < 0 || result.rank >= result.size)
      throw std::runtime_error("its rank is not below its size");
    return result;
  } catch (const std::exception& e) {
    throw std::runtime_error(file + " is no file of ddpp's flight recorder: " + e.what());
  }
}

void add(std::map<std::string, group_dumps>& groups, dump next) {
  group_dumps& group = groups[next.group];
  if (!group.by_rank.empty() && group.size != next.size) {
    throw std::runtime_error(next.file + " and " + group.by_rank.begin()->second.file +
                             " are of different runs: their groups have " + std::to_string(next.size) +
                             " and " + std::to_string(group.size) + " ranks");
  }
  group.size = next.size;
  const int rank = next.rank;
  const std::string file = next.file;
  const auto [place, is_new] = group.by_rank.emplace(rank, std::move(next));
  if (!is_new) {
    throw std::runtime_error(file + " and " + place->second.file + " are both of rank " +
                             std::to_string(rank));
  }
}

}  // namespace ddpp_explain
