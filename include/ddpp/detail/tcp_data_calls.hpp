// SPDX-License-Identifier: BSL-1.0
// Data connections in the making: called for when a rank first has something to send or to receive. Two ranks
// that call each other at once: the lower rank's connection stays, the other is answered `duplicate`.
#pragma once

#include <ddpp/detail/deadline.hpp>
#include <ddpp/detail/handshake.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_connector.hpp>
#include <ddpp/detail/tcp_endpoint.hpp>
#include <ddpp/detail/tcp_meeting.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddpp::detail {

class tcp_data_calls {
 public:
  struct finished {
    int peer = -1;
    descriptor socket = {};       ///< or none:
    bool is_refused = false;      ///< nobody listens there any more
    bool is_out_of_time = false;  ///< it takes the connection, and does not answer
    std::string problem = {};
  };

  tcp_data_calls(int rank, int size, const credentials& known)
      : rank_(rank), known_(known), has_connection_(static_cast<std::size_t>(size)) {}

  bool has_connection(int peer) const { return has_connection_[static_cast<std::size_t>(peer)]; }
  bool is_calling(int peer) const {
    return std::any_of(calls_.begin(), calls_.end(), [&](const call& each) { return each.peer == peer; });
  }
  void begin(int peer, const tcp_meeting& meeting, deadline until) {
    const tcp_endpoint& to = meeting.endpoint(peer);
    const introduction who{purpose::data, meeting.group(), rank_, peer};
    calls_.push_back(
        {peer, tcp_connector(to.host, to.port, who, until, refusals_for_gone, meeting.source())});
  }

  /// Of a peer that calls.
  admission judge(int peer) {
    if (has_connection(peer)) return admission::duplicate;
    const auto ours =
        std::find_if(calls_.begin(), calls_.end(), [&](const call& each) { return each.peer == peer; });
    if (ours == calls_.end()) return admission::welcome;
    if (rank_ < peer) return admission::duplicate;
    calls_.erase(ours);
    return admission::welcome;
  }
  void note_connection(int peer) { has_connection_[static_cast<std::size_t>(peer)] = true; }

  void add_to(std::vector<pollfd>& entries) const {
    for (const call& each : calls_) each.connector.add_to(entries);
  }
  deadline next_due() const {
    deadline due = deadline::max();
    for (const call& each : calls_) due = std::min(due, each.connector.next_due());
    return due;
  }
  /// Goes on with all calls; returns those that have come to an end.
  std::vector<finished> serve() {
    std::vector<finished> all;
    for (auto each = calls_.begin(); each != calls_.end();) {
      const auto state = each->connector.advance(known_);
      if (state == tcp_connector::state::in_progress) {
        ++each;
        continue;
      }
      finished one{each->peer};
      if (state == tcp_connector::state::connected) {
        note_connection(each->peer);
        one.socket = each->connector.take();
      } else {
        one.is_refused = each->connector.refused();
        one.is_out_of_time = each->connector.out_of_time();
        one.problem = each->connector.error_text();
      }
      if (state != tcp_connector::state::duplicate) all.push_back(std::move(one));
      each = calls_.erase(each);
    }
    return all;
  }

 private:
  static constexpr std::chrono::milliseconds refusals_for_gone{1'000};

  struct call {
    int peer = -1;
    tcp_connector connector;
  };

  const int rank_;
  const credentials& known_;
  std::vector<bool> has_connection_;
  std::list<call> calls_;
};

}  // namespace ddpp::detail
