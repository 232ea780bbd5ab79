// SPDX-License-Identifier: BSL-1.0
// How the tcp backend treats whoever connects: a policy chosen by name at compile time.
#pragma once

namespace ddpp::security {

/// Both ends of every connection prove that they know the job's secret before anything else is read. Without
/// a secret only this host is talked to. (Not encryption: what is sent can be read, and altered, on the way.)
struct authenticated {
  static constexpr bool open = false;
};

/// Nobody proves anything: whoever reaches the port is taken at their word. For networks that are closed
/// otherwise.
struct none {
  static constexpr bool open = true;
};

}  // namespace ddpp::security
