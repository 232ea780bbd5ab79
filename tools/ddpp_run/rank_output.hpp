// SPDX-License-Identifier: BSL-1.0
// What the ranks of one attempt write: read by a thread of its own from a pipe per rank and stream, shown in
// whole lines, kept in files, and the last of stderr remembered.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "console.hpp"
#include "file_descriptor.hpp"

namespace launcher {

class rank_output {
 public:
  explicit rank_output(console& to);
  /// Drops what has not been read.
  ~rank_output();
  rank_output(const rank_output&) = delete;
  rank_output& operator=(const rank_output&) = delete;

  /// How one stream of a rank is treated.
  struct stream {
    int fd = 1;  ///< 1 stdout, 2 stderr
    bool shown = true;
    std::string prefix = {};  ///< of each line shown
    std::string file = {};    ///< where all goes unchanged; empty: nowhere
  };

  /// Before start(). Returns the rank's end of the pipe. Throws std::runtime_error.
  file_descriptor add(int local_rank, stream treated);
  void start();

  /// Waits until every pipe has been read to its end, at most so long. Whether it has.
  bool finish(std::chrono::milliseconds limit);

  /// The last lines of stderr, as far as they have been read; first waits for its end, at most so long.
  std::string last_lines(int local_rank, std::chrono::milliseconds limit);

 private:
  struct source {
    int local_rank;
    stream treated;
    file_descriptor from;
    file_descriptor log;
    std::string begun = {};  ///< a line whose end has not come
    std::string tail = {};
  };

  void run();
  bool read_some(source& one);
  void take(source& one, std::string_view text);
  void show(source& one, std::string_view text);
  void end(source& one);

  console& console_;
  file_descriptor stop_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<std::unique_ptr<source>> sources_;
  std::thread thread_;
};

}  // namespace launcher
