// SPDX-License-Identifier: BSL-1.0
// A store served by one process over TCP.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/secret.hpp>
#include <ddpp/detail/socket.hpp>
#include <ddpp/detail/tcp_store_client.hpp>
#include <ddpp/detail/tcp_store_server.hpp>
#include <ddpp/store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddpp {

struct tcp_store_options {
  /// How long a client tries to reach the server, and store::timeout() afterwards.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// What both ends prove to know. Unset: the job's (DDPP_SECRET, DDPP_SECRET_FILE); a server makes one when
  /// there is none. Empty: none, and only this host is talked to.
  std::optional<ddpp::secret> secret = {};
  /// Neither prove nor ask for a proof, whoever it is: what security::none is for a transport.
  bool unauthenticated = false;
};

/// The server keeps everything in memory and serves thousands of clients from one thread until it is
/// destroyed; it can be used as a store itself. A client may be used from any thread: a waiting call does not
/// hold up another. In a forked child both work as clients, and destroying them there harms nobody. Keys have
/// at most 4 KiB, values 64 MiB (usage_error otherwise). Every function throws timeout_error that names the
/// keys and the server, and init_error when the server has gone.
class tcp_store final : public store {
 public:
  enum role : std::uint8_t { client, server };
  using options = tcp_store_options;

  /// A client connects, trying again until options.timeout: timeout_error names host, port and what was
  /// tried; authentication_error when the secrets differ. A server listens on `host` only, on any free port
  /// if it is 0: init_error when it cannot.
  tcp_store(const std::string& host, std::uint16_t port, role as = client, const options& with = {})
      : tcp_store(as == server ? std::optional(detail::store_listener(host, port)) : std::nullopt, host, port,
                  with) {}

  /// Serves on a listener made before: what connected meanwhile has waited.
  explicit tcp_store(detail::store_listener listener, const options& with = {})
      : tcp_store(std::optional(std::move(listener)), {}, 0, with) {}

  const std::string& host() const noexcept { return host_; }
  std::uint16_t port() const noexcept { return port_; }
  /// Whether this object is the server: others need it.
  bool serves() const noexcept { return server_ != nullptr; }
  /// This host's numeric address on the way to the server.
  std::string local_address() const { return client_->local_address(); }

  using store::wait;
  void set(const std::string& key, std::string_view value) override { client_->set(key, value, limit()); }
  std::string get(const std::string& key) override { return client_->multi_get({key}, limit()).front(); }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return client_->add(key, amount, limit());
  }
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired) override {
    return client_->compare_set(key, expected, desired, limit());
  }
  void append(const std::string& key, std::string_view tail) override { client_->append(key, tail, limit()); }
  bool check(const std::vector<std::string>& keys) override { return client_->check(keys, limit()); }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    client_->wait(keys, timeout);
  }
  bool delete_key(const std::string& key) override { return client_->delete_key(key, limit()); }
  std::int64_t num_keys() override { return client_->num_keys(limit()); }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    return client_->multi_get(keys, limit());
  }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    client_->multi_set(keys, values, limit());
  }
  void queue_push(const std::string& key, std::string_view value) override {
    client_->queue_push(key, value, limit());
  }
  std::string queue_pop(const std::string& key) override { return client_->queue_pop(key, limit()); }
  std::int64_t queue_length(const std::string& key) override { return client_->queue_length(key, limit()); }

  std::shared_ptr<void> hold(const std::string& key) override { return client_->hold(key, limit()); }
  bool is_held(const std::string& key) override { return client_->is_held(key, limit()); }

  std::chrono::milliseconds timeout() const override { return limit(); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_.store(timeout.count()); }
  bool outlives_ranks() const override { return false; }

 private:
  tcp_store(std::optional<detail::store_listener> listener, const std::string& host, std::uint16_t port,
            const options& with)
      : host_(listener ? listener->host() : host),
        port_(listener ? listener->port() : port),
        timeout_(with.timeout.count()) {
    detail::credentials known;
    known.open = with.unauthenticated;
    if (!known.open) {
      known.secret = with.secret ? *with.secret
                     : listener  ? detail::ensure_job_secret()
                                 : detail::job_secret();
    }
    if (listener) server_ = std::make_unique<detail::store_server>(std::move(*listener), known);
    client_ = std::make_unique<detail::store_client>(host_, port_, known, with.timeout);
  }

  std::chrono::milliseconds limit() const { return std::chrono::milliseconds(timeout_.load()); }

  std::string host_;
  std::uint16_t port_;
  std::atomic<std::chrono::milliseconds::rep> timeout_;
  std::unique_ptr<detail::store_server> server_;  // outlives the client that this object uses itself
  std::unique_ptr<detail::store_client> client_;
};

}  // namespace ddpp
