// SPDX-License-Identifier: BSL-1.0
#include "meeting.hpp"

#include <ddpp/detail/resolve.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <unistd.h>

namespace launcher {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(node_info, token, host, local_ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(meeting_place, host, store_host, store_port, master_port)

namespace {

using namespace std::chrono_literals;

constexpr auto answer_time = 5s;  ///< of the store, once connected
constexpr std::chrono::milliseconds first_attempt = 500ms, longest_attempt = 4s;  ///< to connect
constexpr auto pause = 50ms;
constexpr auto rest = 1s;  ///< between questions that nobody answers: the job has other things to look at

std::string key(const char* name, int number) { return name + std::string("/") + std::to_string(number); }
std::string key(const char* name, int number, int node) {
  return key(name, number) + "/" + std::to_string(node);
}
std::string alive(const std::string& token) { return "alive/" + token; }

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "an unknown host";
}

std::string where(const endpoint& at) { return ddpp::detail::host_and_port(at.host, at.port); }

/// Whoever is not on this host must prove to belong to the job.
void require_secret(const endpoint& at) {
  if (!ddpp::detail::job_secret().empty()) return;
  std::string why;
  const auto addresses = ddpp::detail::resolve(at.host, at.port, why);
  if (!addresses.empty() &&
      std::all_of(addresses.begin(), addresses.end(), [](const auto& each) { return each.is_loopback(); }))
    return;
  throw meeting_failed(
      "several nodes need a secret that all of them have: set DDPP_SECRET, or DDPP_SECRET_FILE to a file "
      "with it, on "
      "each (for one: head -c 32 /dev/urandom | base64)");
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

template <class F>
auto meeting::ask(F&& call) -> std::optional<decltype(call())> {
  const auto begin = clock::now();
  if (begin < next_try_) return std::nullopt;
  try {
    if (silent_since_ && !store_->check({"info/" + self_.token})) fail("another job is served there now");
    auto answer = call();
    silent_since_.reset();
    return answer;
  } catch (const ddpp::timeout_error& e) {
    if (!silent_since_) silent_since_ = begin;
    if (clock::now() - *silent_since_ >= ddpp::detail::longest_silence)
      fail(ddpp::detail::text("it is silent: ", e.what()));
    next_try_ = clock::now() + rest;
    return std::nullopt;
  } catch (const ddpp::error& e) {
    fail(e.what());
  }
}

void meeting::fail(const std::string& why) const {
  throw meeting_failed("lost the node that serves " + where(*todo_.meeting) + ": " + why);
}

meeting::meeting(const plan& todo, const std::function<void()>& interrupt) : todo_(todo) {
  self_ = {ddpp::detail::random_secret(), host_name() + " (process " + std::to_string(::getppid()) + ")",
           todo.local_ranks};
  require_secret(*todo.meeting);
  const auto until = clock::now() + todo.meeting_timeout;
  std::chrono::milliseconds attempt = first_attempt;
  for (bool together = false; !together; std::this_thread::sleep_for(pause)) {
    interrupt();
    if (clock::now() >= until) give_up();
    try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now());
      if (!store_ && !connect(std::min(attempt, left))) {
        attempt = std::min(2 * attempt, longest_attempt);
        continue;
      }
      together = join();
    } catch (const ddpp::authentication_error& e) {
      throw meeting_failed(e.what());
    } catch (const ddpp::error& e) {  // the store has gone: perhaps another comes
      problem_ = e.what();
      alive_.reset();
      store_.reset();
      node_ = -1;
    }
  }
}

meeting::~meeting() = default;

std::string meeting::address() const {
  return store_->serves() ? todo_.meeting->host : store_->local_address();
}

bool meeting::connect(std::chrono::milliseconds limit) {
  const ddpp::tcp_store_options options{.timeout = std::max(limit, 1ms),
                                        .secret = ddpp::detail::job_secret()};
  std::string not_served;
  try {
    store_ = std::make_shared<ddpp::tcp_store>(
        ddpp::detail::store_listener(todo_.meeting->host, todo_.meeting->port), options);
    store_->set_timeout(answer_time);
    return true;
  } catch (const ddpp::authentication_error&) {
    throw;
  } catch (const ddpp::error& e) {
    not_served = e.what();
  }
  try {
    store_ = std::make_shared<ddpp::tcp_store>(todo_.meeting->host, todo_.meeting->port,
                                               ddpp::tcp_store::client, options);
    store_->set_timeout(answer_time);
    return true;
  } catch (const ddpp::authentication_error&) {
    throw;
  } catch (const ddpp::error& e) {
    problem_ = std::string(e.what()) + "; this node cannot serve it: " + not_served;
    return false;
  }
}

/// One step. True once this node is in the roster.
bool meeting::join() {
  if (node_ < 0) {
    agree("job", todo_.job, "--rdzv-id");
    agree("nodes", std::to_string(todo_.nodes), "--nnodes");
    if (store_->check({"over"})) throw ddpp::init_error("an earlier job of this name is ending there");
    if (!alive_) {
      alive_ = store_->hold(alive(self_.token));
      store_->set("info/" + self_.token, nlohmann::json(self_).dump());
    }
    claim();
  }
  if (node_ == 0) complete();
  if (read_roster()) return true;
  if (store_->check({"over"})) throw meeting_failed(store_->get("over"));
  return false;
}

void meeting::agree(const std::string& key, const std::string& value, const std::string& what) {
  const std::string agreed = store_->compare_set(key, "", value);
  if (agreed == value) return;
  throw meeting_failed("the nodes at " + where(*todo_.meeting) + " have " + what + " " + agreed +
                       ", this one has " + value);
}

void meeting::claim() {
  const int first = todo_.node_rank.value_or(0);
  const int last = todo_.node_rank.value_or(todo_.nodes - 1);
  std::vector<std::string> holders;
  for (int node = first; node <= last; ++node) {
    if (claim(node)) {
      node_ = node;
      return;
    }
    const auto holder =
        nlohmann::json::parse(store_->get("info/" + store_->get(key("node", node)))).get<node_info>();
    holders.push_back("node " + std::to_string(node) + " is " + holder.host);
  }
  throw meeting_failed((todo_.node_rank ? "this node has come twice: " : "all nodes have come already: ") +
                       list(holders));
}

/// A node whose ddpp-run has ended before all had come is replaced by the next that comes.
bool meeting::claim(int node) {
  const std::string holder = store_->compare_set(key("node", node), "", self_.token);
  if (holder == self_.token) return true;
  if (store_->is_held(alive(holder)) || store_->check({"roster"})) return false;
  return store_->compare_set(key("node", node), holder, self_.token) == self_.token;
}

bool meeting::is_taken(int node) {
  const std::string where_it_is = key("node", node);
  return store_->check({where_it_is}) && store_->is_held(alive(store_->get(where_it_is)));
}

/// By node 0: fixes who is who, once all have come.
void meeting::complete() {
  nlohmann::json roster = nlohmann::json::array();
  for (int node = 0; node < todo_.nodes; ++node) {
    if (!is_taken(node)) return;
    roster.push_back(nlohmann::json::parse(store_->get("info/" + store_->get(key("node", node)))));
  }
  store_->compare_set("roster", "", roster.dump());
}

bool meeting::read_roster() {
  if (!store_->check({"roster"})) return false;
  nodes_ = nlohmann::json::parse(store_->get("roster")).get<std::vector<node_info>>();
  if (nodes_.at(static_cast<std::size_t>(node_)).token == self_.token) return true;
  throw meeting_failed("this node was taken for gone, and replaced by " +
                       nodes_[static_cast<std::size_t>(node_)].host);
}

std::string meeting::missing_nodes() {
  std::vector<std::string> here, missing;
  for (int node = 0; node < todo_.nodes; ++node) {
    const std::string name = "node " + std::to_string(node);
    if (is_taken(node)) {
      const auto info =
          nlohmann::json::parse(store_->get("info/" + store_->get(key("node", node)))).get<node_info>();
      here.push_back(name + " on " + info.host);
    } else {
      missing.push_back(name);
    }
  }
  return list(missing) + (missing.size() == 1 ? " has" : " have") + " not come within " +
         ddpp::detail::text_of(todo_.meeting_timeout) + "; there are " + list(here);
}

void meeting::give_up() {
  std::string why = "nobody serves " + where(*todo_.meeting) + " after " +
                    ddpp::detail::text_of(todo_.meeting_timeout) +
                    ": no node has that address, or the one that has it has not come: " + problem_;
  try {
    if (store_) {
      why = store_->compare_set("over", "", missing_nodes());
      leave(1s);
    }
  } catch (const ddpp::error&) {
  } catch (const meeting_failed&) {
  }
  throw meeting_failed(why);
}

bool meeting::set(const std::string& key, const std::string& value) {
  return ask([&] {
           store_->set(key, value);
           return true;
         })
      .has_value();
}

std::optional<std::string> meeting::value(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return store_->get(key);
}

bool meeting::set_place(int attempt, const meeting_place& place) {
  return set(key("place", attempt), nlohmann::json(place).dump());
}

std::optional<meeting_place> meeting::place(int attempt) {
  const auto encoded = ask([&] { return value(key("place", attempt)); }).value_or(std::nullopt);
  if (!encoded) return std::nullopt;
  return nlohmann::json::parse(*encoded).get<meeting_place>();
}

job_failure meeting::announce(int attempt, job_failure failure) {
  const auto counts = ask([&] { return store_->compare_set(key("failure", attempt), "", encode(failure)); });
  if (counts) return decode_failure(*counts);
  failure.is_final = true;  // the others would wait for this node to start again with them, or not
  return failure;
}

std::optional<job_failure> meeting::failure(int attempt) {
  const auto encoded = ask([&] {
                         if (store_->serves()) find_lost_nodes(attempt);
                         return value(key("failure", attempt));
                       }).value_or(std::nullopt);
  if (!encoded) return std::nullopt;
  return decode_failure(*encoded);
}

void meeting::find_lost_nodes(int attempt) {
  if (clock::now() < next_look_) return;
  next_look_ = clock::now() + 500ms;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (store_->is_held(alive(nodes_[node].token))) continue;
    if (all_done(attempt)) return;  // it has gone because of that
    job_failure lost;
    lost.node = static_cast<int>(node);
    lost.message = "lost node " + std::to_string(node) + ": ddpp-run on " + nodes_[node].host + " has gone";
    lost.is_final = true;
    store_->compare_set(key("failure", attempt), "", encode(lost));
  }
}

bool meeting::set_done(int attempt) { return set(key("done", attempt, node_), ""); }

bool meeting::all_done(int attempt) {
  std::vector<std::string> all;
  for (int node = 0; node < todo_.nodes; ++node) all.push_back(key("done", attempt, node));
  return ask([&] { return store_->check(all); }).value_or(false);
}

void meeting::leave(std::chrono::milliseconds limit) {
  const auto until = clock::now() + limit;
  alive_.reset();
  if (!store_ || !store_->serves()) return;
  ask([&] {
    store_->compare_set("over", "", "the job is over");
    const auto is_there = [&](int node) { return is_taken(node); };
    for (int node = 0; node < todo_.nodes && clock::now() < until;) {
      if (!is_there(node))
        ++node;
      else
        std::this_thread::sleep_for(pause);
    }
    return true;
  });
}

}  // namespace launcher
