// SPDX-License-Identifier: BSL-1.0
// What a rank did last, for the question that a hang leaves: the latest collectives and messages, in two
// small rings, written to a file when the group fails and whenever the process gets SIGUSR2. Only where it
// was asked for (init_options::flight_recorder, DDPP_FLIGHT_RECORDER): recording takes a lock and reads the
// clock.
#pragma once

#include <ddpp/detail/fingerprint_text.hpp>
#include <ddpp/detail/fork_guard.hpp>
#include <ddpp/detail/joining_thread.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/environment.hpp>
#include <ddpp/fingerprint.hpp>
#include <ddpp/init_options.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <semaphore.h>
#include <signal.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace ddpp::detail {

enum class recorded_state : std::uint8_t { queued, running, done, failed };

inline const char* name_of(recorded_state state) {
  static constexpr const char* names[] = {"queued", "running", "done", "failed"};
  return names[static_cast<std::size_t>(state)];
}

/// A message as a person would name it.
struct message_description {
  const char* operation;
  const char* direction;
  int peer, tag;
  std::uint64_t sequence;

  std::string text() const {
    return detail::text(operation, " #", sequence, direction, peer, " (tag ", tag, ")");
  }
};

inline std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20)
      quoted += c;
    else
      quoted += c == '\n' ? "\\n" : " ";
  }
  return quoted + '"';
}

/// The last entries by sequence number. Not thread-safe.
template <class What>
class recent_operations {
 public:
  using clock = std::chrono::system_clock;

  struct entry {
    What what = {};
    recorded_state state = recorded_state::done;
    std::array<clock::time_point, 4> since = {};  ///< by state; the epoch: has not been in it
  };

  void note(const What& what, recorded_state state) {
    entry* found = find(what.sequence);
    if (found == nullptr) {
      found = &entries_[count_++ % entries_.size()];
      *found = entry{};
      found->what = what;
    }
    found->state = state;
    found->since[static_cast<std::size_t>(state)] = clock::now();
  }

  /// The oldest first.
  template <class F>
  void for_each(F&& f) const {
    const std::size_t kept = std::min(count_, entries_.size());
    for (std::size_t i = count_ - kept; i < count_; ++i) f(entries_[i % entries_.size()]);
  }

 private:
  entry* find(std::uint64_t sequence) {
    const std::size_t kept = std::min(count_, entries_.size());
    for (std::size_t back = 1; back <= kept; ++back) {
      entry& each = entries_[(count_ - back) % entries_.size()];
      if (each.what.sequence == sequence) return &each;
    }
    return nullptr;
  }

  std::array<entry, 64> entries_{};
  std::size_t count_ = 0;
};

/// Of one rank of one group. Thread-safe.
class flight_recorder {
 public:
  /// `address`: where the rank has reached the others from. Writes to "<prefix>.rank<rank>.json"; where this
  /// process has a recorder with that file, to
  /// "<prefix>-2..."
  flight_recorder(const std::string& prefix, const char* transport, const std::string& address, int rank,
                  int size);
  ~flight_recorder();
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  void note(const fingerprint& print, recorded_state state) {
    const std::lock_guard lock(mutex_);
    collectives_.note(print, state);
  }
  void note(const message_description& message, recorded_state state) {
    const std::lock_guard lock(mutex_);
    messages_.note(message, state);
  }

  /// The first time only: what comes after a failure says less.
  [[gnu::cold]] void dump_failure(const std::string& why) {
    if (!has_failed_.exchange(true)) dump(why);
  }
  /// A file that cannot be written is none: this is no time for another error.
  [[gnu::cold]] void dump(const std::string& why) {
    const std::lock_guard one_at_a_time(dumping_);
    const std::string content = json(why), fresh = path() + ".new";
    std::FILE* const file = std::fopen(fresh.c_str(), "w");
    if (file == nullptr) return;
    const bool whole = std::fwrite(content.data(), 1, content.size(), file) == content.size();
    if (std::fclose(file) == 0 && whole) std::rename(fresh.c_str(), path().c_str());
  }

 private:
  using time_point = std::chrono::system_clock::time_point;

  static std::string seconds(time_point when) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(when.time_since_epoch()).count();
    const std::string fraction = std::to_string(1'000'000 + us % 1'000'000);
    return std::to_string(us / 1'000'000) + '.' + fraction.substr(1);
  }

  template <class Entry>
  static std::string state_fields(const Entry& entry) {
    std::string fields = text(", \"state\": \"", name_of(entry.state), "\"");
    for (std::size_t i = 0; i < entry.since.size(); ++i) {
      if (entry.since[i] == time_point{}) continue;
      append_text(fields, ", \"", name_of(static_cast<recorded_state>(i)), "\": ", seconds(entry.since[i]));
    }
    return fields + '}';
  }

  [[gnu::cold]] std::string json(const std::string& why) const {
    const std::lock_guard lock(mutex_);
    std::string out = text("{\"ddpp_flight_recorder\": 1,\n \"group\": ",
                           json_string(std::string_view(prefix_).substr(prefix_.rfind('/') + 1)),
                           ",\n \"transport\": \"", transport_, "\",\n \"address\": ", json_string(address_),
                           ",\n \"rank\": ", rank_, ",\n \"size\": ", size_, ",\n \"pid\": ", ::getpid(),
                           ",\n \"written\": ", seconds(std::chrono::system_clock::now()),
                           ",\n \"reason\": ", json_string(why), ",\n \"collectives\": [");
    const char* separator = "\n  ";
    collectives_.for_each([&](const auto& entry) {
      const fingerprint& print = entry.what;
      append_text(out, separator, "{\"sequence\": ", print.sequence, ", \"operation\": \"",
                  ddpp::name_of(print.op), "\", \"count\": ", print.count, ", \"dtype\": \"",
                  print.element_size == 0 ? std::string() : type_name(print.type, print.element_size),
                  "\", \"root\": ", print.root, ", \"description\": ", json_string(ddpp::describe(print)));
      out += state_fields(entry);
      separator = ",\n  ";
    });
    out += "],\n \"messages\": [";
    separator = "\n  ";
    messages_.for_each([&](const auto& entry) {
      const message_description& message = entry.what;
      append_text(out, separator, "{\"sequence\": ", message.sequence, ", \"operation\": \"",
                  message.operation, "\", \"peer\": ", message.peer, ", \"tag\": ", message.tag,
                  ", \"description\": ", json_string(message.text()));
      out += state_fields(entry);
      separator = ",\n  ";
    });
    return out + "]}\n";
  }

  friend class recorder_registry;

  std::string path() const { return text(prefix_, ".rank", rank_, ".json"); }

  std::string prefix_;
  const char* const transport_;
  const std::string address_;
  const int rank_, size_;
  std::atomic<bool> has_failed_{false};
  std::mutex dumping_;
  mutable std::mutex mutex_;  // guards what follows
  recent_operations<fingerprint> collectives_;
  recent_operations<message_description> messages_;
};

/// The recorders of this process, and the thread that dumps them all on SIGUSR2. The signal is taken while
/// there are recorders, unless the program has a handler for it already.
class recorder_registry {
 public:
  static recorder_registry& instance() {
    static std::atomic<recorder_registry*> current{new recorder_registry};  // never destroyed
    recorder_registry* now = current.load();
    while (now->guard_.in_child()) {  // its thread is the parent's
      auto fresh = std::make_unique<recorder_registry>();
      fresh->before_ = now;
      if (current.compare_exchange_strong(now, fresh.get())) return *fresh.release();
    }
    return *now;
  }

  recorder_registry() { ::sem_init(&asked_, 0, 0); }

  void add(flight_recorder* recorder) {
    const std::lock_guard changing(changing_);
    if (!thread_) {
      while (::sem_trywait(&asked_) == 0) {  // asked of those that were there before
      }
      thread_ = std::make_unique<joining_thread>([this] { serve(); });
      take_signal();
    }
    {
      const std::lock_guard lock(mutex_);
      const std::string wanted = recorder->prefix_;
      const auto is_taken = [&] {
        return std::any_of(recorders_.begin(), recorders_.end(),
                           [&](const flight_recorder* other) { return other->path() == recorder->path(); });
      };
      for (int number = 2; is_taken(); ++number) recorder->prefix_ = text(wanted, "-", number);
      recorders_.push_back(recorder);
    }
  }

  void remove(flight_recorder* recorder) {
    const std::lock_guard changing(changing_);
    {
      const std::lock_guard lock(mutex_);
      std::erase(recorders_, recorder);
      if (!recorders_.empty()) return;
    }
    give_signal_back();
    stopping_.store(true);
    ::sem_post(&asked_);
    thread_.reset();
    stopping_.store(false);
  }

 private:
  void serve() {
    for (;;) {
      while (::sem_wait(&asked_) != 0) {
      }
      if (stopping_.load()) return;
      const std::lock_guard lock(mutex_);
      for (flight_recorder* const each : recorders_) each->dump("SIGUSR2");
    }
  }

  void take_signal() {
    if (::sigaction(SIGUSR2, nullptr, &action_before_) != 0) return;
    const bool is_free = (action_before_.sa_flags & SA_SIGINFO) == 0 &&
                         (action_before_.sa_handler == SIG_DFL || action_before_.sa_handler == on_signal);
    if (!is_free) return;
    semaphore_of_handler.store(&asked_);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    has_signal_ = ::sigaction(SIGUSR2, &action, nullptr) == 0;
  }

  void give_signal_back() {
    if (!has_signal_) return;
    has_signal_ = false;
    struct sigaction action = {};
    ::sigaction(SIGUSR2, nullptr, &action);
    if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != on_signal) {  // the program's, by now
      semaphore_of_handler.store(nullptr);
      return;
    }
    action = {};
    action.sa_handler = SIG_IGN;  // one on its way must not end the process
    ::sigaction(SIGUSR2, &action, nullptr);
    semaphore_of_handler.store(nullptr);
    action.sa_handler = SIG_DFL;
    ::sigaction(SIGUSR2, &action, nullptr);
  }

  static void on_signal(int) {
    const int saved = errno;
    if (sem_t* const asked = semaphore_of_handler.load()) ::sem_post(asked);
    errno = saved;
  }

  static inline std::atomic<sem_t*> semaphore_of_handler{nullptr};

  fork_guard guard_;
  recorder_registry* before_ = nullptr;
  std::mutex changing_;  // guards the thread and the signal
  std::unique_ptr<joining_thread> thread_;
  struct sigaction action_before_ = {};
  bool has_signal_ = false;
  sem_t asked_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards the list, and those in it while they are dumped
  std::vector<flight_recorder*> recorders_;
};

[[gnu::cold]] inline flight_recorder::flight_recorder(const std::string& prefix, const char* transport,
                                                      const std::string& address, int rank, int size)
    : prefix_(prefix), transport_(transport), address_(address), rank_(rank), size_(size) {
  recorder_registry::instance().add(this);
}

inline flight_recorder::~flight_recorder() { recorder_registry::instance().remove(this); }

/// For a group that `init` or `launch` makes: bootstrap::flight_recorder.
[[gnu::cold]] inline std::string flight_recorder_of(const init_options& options) {
  const char* const set = variable("DDPP_FLIGHT_RECORDER");
  const std::string base = options.flight_recorder.empty() && set ? set : options.flight_recorder;
  if (base.empty()) return base;
  return text(base, ".", options.group_name.empty() ? std::string("world") : options.group_name);
}

}  // namespace ddpp::detail
