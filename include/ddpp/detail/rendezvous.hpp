// SPDX-License-Identifier: BSL-1.0
// From options and environment to a group that has come together: who this rank is, where the ranks meet, and
// the store that they meet in.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/await_key.hpp>
#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/flight_recorder.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/init_method.hpp>
#include <ddpp/detail/join_group.hpp>
#include <ddpp/detail/launch_meeting.hpp>
#include <ddpp/detail/network_interfaces.hpp>
#include <ddpp/detail/presence.hpp>
#include <ddpp/detail/resolve.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/error.hpp>
#include <ddpp/file_store.hpp>
#include <ddpp/init_options.hpp>
#include <ddpp/prefix_store.hpp>
#include <ddpp/store.hpp>
#include <ddpp/tcp_store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ddpp {

namespace detail {

/// Who this rank is and where it meets the others.
struct appointment {
  int rank = 0;
  int size = 1;
  init_method place = {};             ///< unused when there is a store, or nobody to meet
  std::shared_ptr<store> known = {};  ///< the user's, or the one of the launch that made this rank
  ddpp::secret secret = {};           ///< of that launch; empty: the job's
};

[[gnu::cold]] inline int agreed_number(const char* name, int option, int in_method) {
  if (option >= 0 && in_method >= 0 && option != in_method) {
    throw usage_error(text("init: ", name, " is given twice and differs: ", option, " as an option, ",
                           in_method, " in the init method"));
  }
  return option >= 0 ? option : in_method;
}

/// A larger number is a mistake that would only show when memory runs out.
inline constexpr int most_ranks = 65'536;

[[gnu::cold]] inline void check_init_options(const init_options& options) {
  if (options.store && !options.init_method.empty()) {
    throw usage_error(
        text("init: a store and an init method (\"", options.init_method, "\") exclude each other"));
  }
  check_timeouts(options);
  if (options.rank < -1) throw init_error(text("init: rank ", options.rank, " is negative"));
  if (options.world_size < -1 || options.world_size == 0) {
    throw init_error(text("init: world_size ", options.world_size, " is not positive"));
  }
}

/// A place on this host that only the ranks of one launch share, for launchers that name none.
[[gnu::cold]] inline init_method host_local_place(const std::string& job) {
  init_method place;
  place.is = init_method::kind::file;
  place.path = text("/tmp/ddpp-", ::geteuid(), "-");
  for (const char c : job)
    place.path += (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? c : '-';
  return place;
}

/// torchrun's agent serves a store of its own at MASTER_PORT, in a protocol of its own.
inline bool torchrun_serves_master_port() {
  const char* const value = variable("TORCHELASTIC_USE_AGENT_STORE");
  return value && (std::string_view(value) == "True" || std::string_view(value) == "1");
}

/// What the launcher calls this job, when all its ranks are on this host; else empty.
[[gnu::cold]] inline std::string host_local_job(const launched& here) {
  if (!here.by || here.local_size != here.size) return {};
  const auto value = [](const char* name) { return variable(name) ? variable(name) : ""; };
  if (torchrun_serves_master_port()) {
    return text("torchrun-", value("TORCHELASTIC_RUN_ID"), "-", value("MASTER_PORT"), "-",
                value("TORCHELASTIC_RESTART_COUNT"));
  }
  const std::string_view by = here.by->name;
  if (by == "Open MPI") {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (variable(name)) return text("openmpi-", value(name));
    }
  }
  if (by == "Slurm") return text("slurm-", value("SLURM_JOB_ID"), "-", value("SLURM_STEP_ID"));
  if (by == "PMI") return text("pmi-", ::getppid());
  return {};
}

/// MASTER_ADDR and MASTER_PORT, or a file where the launcher's ranks are all on this host.
[[gnu::cold]] inline init_method place_from_environment(const launched& here) {
  const char* const address = variable("MASTER_ADDR");
  const bool usable = !torchrun_serves_master_port();
  if (usable && address && variable("MASTER_PORT")) {
    init_method place;
    place.is = init_method::kind::tcp;
    place.host = address;
    const int port = number_in("MASTER_PORT");
    if (port < 1 || port > 65535) {
      throw init_error(text("MASTER_PORT is ", port, ", which is no port from 1 to 65535"));
    }
    place.port = static_cast<std::uint16_t>(port);
    return place;
  }
  if (usable && (address || variable("MASTER_PORT"))) {
    throw init_error(address ? "MASTER_ADDR is set but MASTER_PORT is not"
                             : "MASTER_PORT is set but MASTER_ADDR is not");
  }
  if (const std::string job = host_local_job(here); !job.empty()) return host_local_place(job);
  if (!usable) {
    throw init_error(
        "MASTER_PORT is taken by torchrun's agent (TORCHELASTIC_USE_AGENT_STORE), and the ranks are on "
        "several hosts: "
        "set DDPP_INIT_METHOD=tcp://host:port with a free port on the host of rank 0");
  }
  throw init_error(
      "there are several ranks, but MASTER_ADDR and MASTER_PORT are not set: set them to the host of rank 0 "
      "and a free "
      "port there, or give an init method (tcp://host:port or file:///path)");
}

/// A rank of `launch` meets the others where they have met before, unless it has been given another place (as
/// one that it has spawned itself).
inline bool meets_by_launch() {
  return meeting_of_this_rank != nullptr && !variable("MASTER_ADDR") && !variable("MASTER_PORT");
}

/// Explicit numbers first, then the launcher's; nothing at all is a world of one, half of anything is an
/// error.
[[gnu::cold]] inline appointment resolve_appointment(const init_options& options) {
  check_init_options(options);
  const char* const replaced =
      options.init_method.empty() && !options.store ? variable("DDPP_INIT_METHOD") : nullptr;
  const std::string method = replaced                      ? replaced
                             : options.init_method.empty() ? "env://"
                                                           : options.init_method;
  appointment result;
  result.place = init_method_parser(method).parse();
  result.known = options.store;
  const bool by_environment = !options.store && result.place.is == init_method::kind::env;

  result.rank = agreed_number("rank", options.rank, result.place.rank);
  result.size = agreed_number("world_size", options.world_size, result.place.world_size);
  if ((result.rank < 0) != (result.size < 0)) {
    throw init_error(result.rank < 0 ? "init: world_size is given but rank is not: give both or neither"
                                     : "init: rank is given but world_size is not: give both or neither");
  }
  launched here;
  if (result.rank < 0) {
    here = read_environment();
    if (!here.by && !by_environment) {
      throw init_error(
          "init: a store, tcp:// and file:// need rank and world_size, and no launcher has set any");
    }
    result.rank = here.rank;
    result.size = here.size;
  } else {
    check_rank_below_size("rank", result.rank, "world_size", result.size);
    if (by_environment && result.size > 1 && torchrun_serves_master_port()) here = read_environment();
  }
  if (result.size > most_ranks) {
    throw init_error(
        text("init: ", result.size, " ranks are too many; a group has ", most_ranks, " at most"));
  }
  if (by_environment && result.size > 1) {
    if (meets_by_launch()) {
      result.known = meeting_of_this_rank->store;
      result.secret = meeting_of_this_rank->secret;
    } else {
      result.place = place_from_environment(here);
    }
  }
  return result;
}

/// The tcp stores that this process serves or is a client of: several groups at one address share them. A
/// forked child has its own (the parent's mutex may have been held by a thread that does not exist there).
class store_registry {
 public:
  static store_registry& instance() {
    static std::atomic<store_registry*> current{
        new store_registry};  // never destroyed: used until the process ends
    store_registry* now = current.load();
    while (now->guard_.in_child()) {
      auto fresh = std::make_unique<store_registry>();
      fresh->before_ = now;
      if (current.compare_exchange_strong(now, fresh.get())) return *fresh.release();
    }
    return *now;
  }

  std::shared_ptr<tcp_store> find(const std::string& where) {
    const std::lock_guard lock(mutex_);
    for (const entry& each : stores_) {
      if (each.where == where) return each.store.lock();
    }
    return nullptr;
  }

  void put(const std::string& where, const std::shared_ptr<tcp_store>& made) {
    const std::lock_guard lock(mutex_);
    std::erase_if(stores_, [&](const entry& each) { return each.store.expired() || each.where == where; });
    stores_.push_back({where, made});
  }

 private:
  struct entry {
    std::string where;
    std::weak_ptr<tcp_store> store;
  };

  fork_guard guard_;
  std::mutex mutex_;
  std::vector<entry> stores_;
  store_registry* before_ = nullptr;
};

inline std::shared_ptr<tcp_store> join_tcp_store(const init_method& place,
                                                 std::chrono::milliseconds timeout) {
  return std::make_shared<tcp_store>(place.host, place.port, tcp_store::client,
                                     tcp_store_options{.timeout = timeout, .secret = job_secret()});
}

/// Serves the store unless somebody does already. The address may be taken for a moment only, by a server
/// that is ending: so it tries both in turn. Who joins a server with many strangers at its door has to queue
/// behind them, and would begin anew at each turn: so each lasts longer than the one before.
[[gnu::cold]] inline std::shared_ptr<tcp_store> serve_or_join_tcp_store(const init_method& place,
                                                                        deadline until) {
  // Where this host cannot listen at all, only a store that is there already can help.
  const deadline soon = std::min(until, deadline_after(std::chrono::seconds(5)));
  for (std::chrono::milliseconds turn(500);; turn *= 2) {
    bool in_use = false;
    std::string why_not_served;
    try {
      return std::make_shared<tcp_store>(
          store_listener(place.host, place.port, &in_use),
          tcp_store_options{.timeout = time_left(until), .secret = job_secret()});
    } catch (const authentication_error&) {
      throw;
    } catch (const init_error& e) {
      why_not_served = e.what();
    }
    try {
      return join_tcp_store(place, std::min(time_left(until), turn));
    } catch (const timeout_error& e) {
      if (time_left(in_use ? until : soon).count() > 0) continue;
      throw init_error(text(why_not_served, "; and nobody else serves a store there: ", e.what()));
    }
  }
}

[[gnu::cold]] inline std::shared_ptr<tcp_store> open_tcp_store(const init_method& place, int rank,
                                                               deadline until) {
  if (rank == 0) return serve_or_join_tcp_store(place, until);
  try {
    return join_tcp_store(place, time_left(until));
  } catch (const timeout_error& e) {
    throw timeout_error(
        text(e.what(), "; rank 0 serves the store there, unless somebody else does: rank 0 has not come"));
  }
}

/// Of the process that serves the store: each rank calls over one connection and holds its place with
/// another.
[[gnu::cold]] inline void check_descriptors_for(int ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 2 * static_cast<rlim_t>(ranks)) return;
  throw resource_error(text("init: this process serves the store to ", ranks,
                            " ranks, which takes two descriptors for each, and may open ", limit.rlim_cur,
                            ": see ulimit -n"));
}

/// All ranks of a group have come to a store, and its keys there have a prefix.
struct joined_group {
  std::shared_ptr<store> meeting = {};
  std::string prefix = {};
  std::shared_ptr<presence> mine = {};
};

[[gnu::cold]] inline joined_group join_in(std::shared_ptr<store> meeting, const appointment& at,
                                          const std::string& name, deadline until,
                                          std::chrono::milliseconds timeout) {
  group_formation forming(*meeting, name, at.rank, at.size, until, timeout);
  std::string prefix = forming.run();
  return {std::move(meeting), std::move(prefix), std::make_shared<presence>(forming.take_presence())};
}

/// Joins the group in a tcp store. A store left over from an earlier group may go while this rank waits in it
/// (its rank 0 has finished that group later than this rank did): then there is a new one to join.
[[gnu::cold]] inline joined_group join_by_tcp(const appointment& at, const std::string& name, deadline until,
                                              std::chrono::milliseconds timeout) {
  const std::string where = host_and_port(at.place.host, at.place.port);
  std::shared_ptr<tcp_store> meeting = store_registry::instance().find(where);
  for (retry_pause pause;; pause.sleep(until)) {
    if (!meeting) {
      meeting = open_tcp_store(at.place, at.rank, until);
      if (meeting->serves()) check_descriptors_for(at.size);
      store_registry::instance().put(where, meeting);
    }
    try {
      return join_in(meeting, at, name, until, timeout);
    } catch (const authentication_error&) {
      throw;
    } catch (const rank_taken&) {
      throw;
    } catch (const init_error&) {
      if (time_left(until).count() == 0) throw;
    }
    meeting.reset();
  }
}

/// Where this rank listens: at DDPP_SOCKET_IFNAME's address, else where it has reached the others from.
[[gnu::cold]] inline std::string own_host(const std::string& reached) {
  std::string unused;
  const std::vector<address> end = resolve(reached, 0, unused);
  const address chosen = chosen_address(end.empty() ? address() : end.front());
  return chosen.length() == 0 ? reached : chosen.host();
}

/// A group that has come together.
struct gathering {
  bootstrap boot = {};
  bool serves_the_store = false;  ///< this process does, and the others need it until they have settled
  std::shared_ptr<presence> mine = {};
};

/// Blocks until all ranks of the group have come to the store, and knows what a transport is constructed
/// from.
[[gnu::cold]] inline gathering come_together(const init_options& options) {
  const std::chrono::milliseconds timeout = options.init_timeout.value_or(options.timeout);
  const deadline until = deadline_after(timeout);
  const appointment at = resolve_appointment(options);
  gathering result;
  bootstrap& boot = result.boot;
  boot.rank = at.rank;
  boot.size = at.size;
  boot.deadline = until;
  boot.timeout = options.timeout;
  boot.flight_recorder = flight_recorder_of(options);
  if (at.size == 1) return result;

  joined_group joined;
  if (!at.known && at.place.is == init_method::kind::tcp) {
    joined = join_by_tcp(at, options.group_name, until, timeout);
  } else {
    const auto meeting = at.known ? at.known : std::make_shared<file_store>(at.place.path, timeout);
    joined = join_in(meeting, at, options.group_name, until, timeout);
  }
  if (!options.store) joined.meeting->set_timeout(options.timeout);
  const auto* const tcp = dynamic_cast<const tcp_store*>(joined.meeting.get());
  result.serves_the_store = !at.known && tcp && tcp->serves();
  result.mine = joined.mine;
  boot.host = own_host(tcp ? tcp->local_address() : "127.0.0.1");
  boot.secret = at.secret.empty() ? job_secret() : at.secret;
  boot.check_peers = [mine = joined.mine] { mine->look(); };
  boot.store = std::make_shared<prefix_store>(joined.prefix, std::move(joined.meeting));
  return result;
}

/// Says that this rank has become a member. Who serves the store waits for all the others, who need it until
/// then. `failed` tells that the group has failed meanwhile. A store that lives on keeps no keys of the
/// group: the last to settle deletes them, `go` first (see join_group.hpp), and who was waiting for that the
/// rest.
template <class Failed>
void settle(const gathering& group, Failed&& failed) {
  const bootstrap& boot = group.boot;
  if (boot.size == 1) return;
  try {
    group.mine->settle();
    if (group.serves_the_store) boot.store->add("awaited", 1);
    if (boot.store->add("settled", 1) == boot.size) {
      boot.store->delete_key("go");
      for (int r = 1; r < boot.size; ++r) boot.store->delete_key(text("rank/", r));
      boot.store->delete_key("settled");
      if (boot.store->check({"awaited"})) boot.store->set("all settled", "");
    }
  } catch (const init_error&) {
    // Of the store another process may let go as soon as it has read this, or the group has failed.
    if (group.serves_the_store) throw;
  }
  while (group.serves_the_store && !boot.store->check({"all settled"}) && !failed()) {
    const auto slice = std::min(time_left(boot.deadline), std::chrono::milliseconds(500));
    try {
      boot.store->wait({"all settled"}, slice);
    } catch (const timeout_error&) {
      if (slice.count() > 0) continue;
      throw timeout_error("init: some ranks came together with this one but did not become members in time");
    }
  }
  if (group.serves_the_store && boot.store->add("awaited", -1) == 0) {
    forget_keys(boot, {"awaited", "all settled"});
  }
}

}  // namespace detail
}  // namespace ddpp
