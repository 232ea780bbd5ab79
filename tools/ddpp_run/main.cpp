// SPDX-License-Identifier: BSL-1.0
// ddpp-run: starts a program as ranks, as torchrun does.
// Exit status: that of the first rank that failed; 128 + n for signal n; 2 for a bad command line; 127 and
// 126 for a program that is not there or cannot be run.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "command_line.hpp"
#include "keeper.hpp"
#include "launcher.hpp"
#include "program.hpp"
#include "signals.hpp"

namespace launcher {
namespace {

using namespace std::chrono_literals;

/// For logs and error files; goes with this object unless the user wants to keep what is in it.
class job_folder {
 public:
  explicit job_folder(const plan& todo)
      : is_kept_(!todo.log_dir.empty() || todo.redirects.any() || todo.tees.any()) {
    std::string name = "ddpp-run-";
    std::filesystem::path parent = std::filesystem::temp_directory_path();
    if (!todo.log_dir.empty()) {
      parent = std::filesystem::absolute(todo.log_dir);
      std::filesystem::create_directories(parent);
      name.clear();
      for (const char c : todo.job) name += c == '/' ? '_' : c;
      name += '_';
    }
    path_ = parent / (name + "XXXXXX");
    if (!::mkdtemp(path_.data()))
      throw bad_input("cannot make a folder in " + parent.string() + ": " + std::strerror(errno));
  }
  job_folder(const job_folder&) = delete;
  job_folder& operator=(const job_folder&) = delete;
  ~job_folder() { remove(); }

  void remove() const {
    std::error_code ignored;
    if (!is_kept_) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  bool is_kept_;
  std::string path_;
};

/// Or a pipe to a rank would get the number of one that is closed.
void open_standard_streams() {
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

int run(int argc, char** argv) {
  open_standard_streams();
  const plan todo = parse_command_line(argc, argv);
  const job_folder folder(todo);
  const waited_signals signals(todo.signals);
  return keep(signals, 2 * todo.grace + 20s, [&](const auto& kept) {
    const int status = launch(todo, signals.before(), folder.path(), kept);
    if (!kept()) folder.remove();
    return status;
  });
}

int fail(int status, const char* what) {
  std::fprintf(stderr, "ddpp-run: %s\n", what);
  return status;
}

}  // namespace
}  // namespace launcher

int main(int argc, char** argv) {
  try {
    return launcher::run(argc, argv);
  } catch (const launcher::bad_input& e) {
    return launcher::fail(2, e.what());
  } catch (const launcher::no_program& e) {
    return launcher::fail(e.status, e.what());
  } catch (const std::exception& e) {
    return launcher::fail(1, e.what());
  }
}
