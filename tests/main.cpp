// SPDX-License-Identifier: BSL-1.0
// The main function of every test program: a time limit for each test case, skips with a reason, and a last
// line 'N passed, N failed, N skipped' that scripts add up.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // crashes are the sanitizer's to report
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#endif
#endif
#define DOCTEST_CONFIG_IMPLEMENT
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include "skip.hpp"

namespace {

constexpr double default_limit = 120;  // seconds; `* doctest::timeout(s)` changes it for one test case

struct counters {
  int passed = 0, failed = 0, skipped = 0;
};
counters count;
bool skipping = false;
const char* running = "";
const char* program = "";

char last_words[1024];
std::size_t last_words_length = 0;

// What follows runs in a signal handler: system calls only.

// Children first, so that none outlives its test.
void kill_children() {
  const int file = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char list[4096];
  const ssize_t length = ::read(file, list, sizeof list);
  ::close(file);
  pid_t child = 0;
  for (ssize_t i = 0; i < length; ++i) {
    if (list[i] >= '0' && list[i] <= '9') {
      child = child * 10 + (list[i] - '0');
    } else if (child != 0) {
      ::kill(child, SIGKILL);
      child = 0;
    }
  }
}

void out_of_time(int) {
  (void)!::write(STDOUT_FILENO, last_words, last_words_length);
  kill_children();
  ::_exit(124);
}

// A timer of its own kind: tests may use alarm and setitimer. Children do not inherit it.
class watchdog {
 public:
  watchdog() {
    struct sigaction action = {};
    action.sa_handler = out_of_time;
    sigfillset(&action.sa_mask);
    ::sigaction(SIGRTMAX, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGRTMAX;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) std::perror("timer_create"), std::abort();
  }
  ~watchdog() { ::timer_delete(timer_); }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;

  void set(double seconds) {
    itimerspec when = {};
    when.it_value.tv_sec = static_cast<time_t>(seconds);
    when.it_value.tv_nsec = seconds > 0 && seconds < 1 ? 500'000'000 : 0;
    ::timer_settime(timer_, 0, &when, nullptr);
  }

 private:
  timer_t timer_ = {};
};

struct bookkeeper : doctest::IReporter {
  explicit bookkeeper(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData& test) override {
    running = test.m_name;
    skipping = false;
    const double limit = test.m_timeout > 0 ? test.m_timeout : default_limit;
    const int length = std::snprintf(last_words, sizeof last_words,
                                     "\n%s:%u: failed: \"%s\" has not ended within %g s\n"
                                     "%d passed, %d failed, %d skipped\n",
                                     test.m_file.c_str(), test.m_line, test.m_name, limit, count.passed,
                                     count.failed + 1, count.skipped);
    const auto most = static_cast<int>(sizeof last_words) - 1;
    last_words_length = static_cast<std::size_t>(length < most ? length : most);
    guard_.set(limit);
  }
  void test_case_end(const doctest::CurrentTestCaseStats& result) override {
    guard_.set(0);
    int& which = !result.testCaseSuccess ? count.failed : skipping ? count.skipped : count.passed;
    ++which;
  }
  void test_run_end(const doctest::TestRunStats&) override {
    if (::getpid() != main_process_) return;
    std::printf("%d passed, %d failed, %d skipped\n", count.passed, count.failed, count.skipped);
    std::fflush(stdout);
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  watchdog guard_;
  pid_t main_process_ = ::getpid();
};
REGISTER_LISTENER("bookkeeper", 1, bookkeeper);

}  // namespace

void ddpp::testing::skip(const char* reason) {
  skipping = true;
  std::printf("skip %s/%s: %s\n", program, running, reason);
}

int main(int argc, char** argv) {
  program = argv[0];
  for (const char* c = argv[0]; *c != '\0'; ++c) {
    if (*c == '/') program = c + 1;
  }
  doctest::Context context;
  const char* full = std::getenv("DDPP_TEST_FULL");  // the test suite "full" holds what takes minutes
  if (full == nullptr || *full == '\0') context.addFilter("test-suite-exclude", "full");
  context.applyCommandLine(argc, argv);
  return context.run();
}
