// SPDX-License-Identifier: BSL-1.0
#include "cores.hpp"

#include <ddpp/detail/available_cores.hpp>
#include <ddpp/environment.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sched.h>
#include <string_view>

#include "plan.hpp"

namespace launcher {
namespace {

int usable_cores() {
  const double cores = ddpp::detail::available_cores();
  return std::isfinite(cores) ? std::max(1, static_cast<int>(cores)) : 1;
}

int installed_gpus() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    const std::string_view digits = std::string_view(name).substr(std::min<std::size_t>(name.size(), 6));
    count += name.starts_with("nvidia") && !digits.empty() &&
             digits.find_first_not_of("0123456789") == digits.npos;
  }
  return count;
}

/// CUDA ignores what follows the first entry that is none ("-1" hides all).
int visible_gpus() {
  const int installed = installed_gpus();
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!value) return installed;
  int count = 0;
  for (std::string_view rest(value); !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    if (item.empty() || item.starts_with('-')) break;
    ++count;
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
  }
  return std::min(count, installed);
}

}  // namespace

int parse_local_ranks(const std::string& text) {
  if (text == "cpu") return usable_cores();
  if (text == "gpu" || text == "auto") {
    const int gpus = visible_gpus();
    if (gpus == 0 && text == "gpu") throw bad_input("--nproc-per-node gpu: there is no NVIDIA device");
    return gpus > 0 ? gpus : usable_cores();
  }
  int value = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || stop != text.data() + text.size() || value < 1 || value > 65'536) {
    throw bad_input("--nproc-per-node: '" + text + "' is no number from 1 to 65536, nor auto, cpu or gpu");
  }
  return value;
}

std::vector<std::vector<int>> shares_of_cores(int parts) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
    }
  }
  std::vector<std::vector<int>> shares(static_cast<std::size_t>(parts));
  if (cores.empty()) return shares;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::size_t begin = i * cores.size() / shares.size();
    const std::size_t end = std::max((i + 1) * cores.size() / shares.size(), begin + 1);
    shares[i].assign(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                     cores.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return shares;
}

}  // namespace launcher
