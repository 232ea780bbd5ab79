// SPDX-License-Identifier: BSL-1.0
// Which device each rank takes. Ranks tell rank 0 where they are, and all get the whole table, so that all
// refuse what one of them could not do, before NCCL would hang over it.
#pragma once

#include <ddpp/concepts.hpp>
#include <ddpp/detail/collective.hpp>
#include <ddpp/detail/exchange.hpp>
#include <ddpp/detail/host_identity.hpp>
#include <ddpp/detail/nccl_calls.hpp>
#include <ddpp/detail/text.hpp>
#include <ddpp/error.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <nccl.h>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddpp::detail {

/// A text that travels as it is.
template <std::size_t Size>
class short_text {
 public:
  void set(std::string_view text) noexcept {
    text_.fill(0);
    text.copy(text_.data(), Size - 1);
  }
  std::string str() const { return text_.data(); }
  bool empty() const noexcept { return text_.front() == 0; }
  friend bool operator==(const short_text&, const short_text&) = default;

 private:
  std::array<char, Size> text_{};
};

/// What a rank says of itself. `device` is its address on the bus, the same for all processes of a host.
struct nccl_rank {
  host_identity host = {};
  short_text<64> given_host = {};  ///< NCCL_HOSTID, by which NCCL tells hosts apart where it is set
  short_text<32> device = {};
  short_text<256> trouble = {};  ///< why it has no device

  bool is_on_host_of(const nccl_rank& other) const {
    return given_host == other.given_host && host.is_on_host_of(other.host);
  }
};
static_assert(std::is_trivially_copyable_v<nccl_rank>);

/// Gathers everyone's `mine` in the order of ranks, over the control plane.
template <class Control, class T>
std::vector<T> gather_over_control(Control& control, const T& mine, deadline until) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(control.size()));
  all[static_cast<std::size_t>(control.rank())] = mine;
  if (control.size() == 1) return all;
  if (control.rank() == 0) {
    for (int r = 1; r < control.size(); ++r) {
      const auto place = std::span(&all[static_cast<std::size_t>(r)], 1);
      control.irecv(std::as_writable_bytes(place), r, collective_tag).wait(until);
    }
    for (int r = 1; r < control.size(); ++r)
      control.isend(std::as_bytes(std::span(all)), r, collective_tag).wait(until);
  } else {
    control.isend(std::as_bytes(std::span(&mine, 1)), 0, collective_tag).wait(until);
    control.irecv(std::as_writable_bytes(std::span(all)), 0, collective_tag).wait(until);
  }
  return all;
}

/// The device with `wanted`'s number, or, if that is -1, with the number of lower ranks on this host, modulo
/// the devices that this process sees. Makes it the calling thread's current one. Throws `init_error` on all
/// ranks if one has no device or two have the same.
template <class Control>
int choose_device(Control& control, int wanted, deadline until) {
  nccl_rank mine;
  mine.host = host_identity::here({});
  if (const char* id = std::getenv("NCCL_HOSTID")) mine.given_host.set(id);
  const auto everyone = gather_over_control(control, mine, until);
  int device = wanted;
  if (device < 0) {
    device = 0;
    for (int r = 0; r < control.rank(); ++r)
      device += everyone[static_cast<std::size_t>(r)].host.is_on_host_of(mine.host);
  }
  try {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count == 0) throw resource_error("there is no CUDA device");
    if (wanted >= count)
      throw resource_error(text("device ", wanted, " was asked for, of ", count, " that there are"));
    if (wanted < 0) device %= count;
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    std::array<char, 32> address{};
    check_cuda(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
               "cudaDeviceGetPCIBusId");
    mine.device.set(address.data());
  } catch (const resource_error& error) {
    mine.trouble.set(error.what());
  }
  const auto devices = gather_over_control(control, mine, until);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    if (!devices[r].trouble.empty())
      throw init_error(text("nccl: rank ", r, " has no device: ", devices[r].trouble.str()));
    for (std::size_t other = 0; other < r; ++other) {
      if (devices[other].device == devices[r].device && devices[other].is_on_host_of(devices[r])) {
        throw init_error(text("nccl: ranks ", other, " and ", r, " have the same device, ",
                              devices[r].device.str(),
                              ": NCCL needs one for each rank. Start at most as many ranks per host as it "
                              "has devices, or give each one of its own by options.device"));
      }
    }
  }
  return device;
}

}  // namespace ddpp::detail
