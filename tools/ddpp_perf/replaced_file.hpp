// SPDX-License-Identifier: BSL-1.0
// A file that is written under another name first, so that what was there stays until the new one is whole.
#pragma once

#include <string>

namespace perf {

class replaced_file {
 public:
  explicit replaced_file(std::string name);
  /// Takes away what has not been kept.
  ~replaced_file();
  replaced_file(const replaced_file&) = delete;
  replaced_file& operator=(const replaced_file&) = delete;

  /// Where to write.
  const std::string& temporary_name() const { return temporary_; }
  /// Throws bad_input where nothing can be written; does not change anything.
  void check() const;
  /// What has been written takes the name. Throws bad_input if it cannot.
  void keep();
  /// Throws bad_input with errno's text.
  [[noreturn]] void refuse() const;

 private:
  std::string name_, temporary_;
};

}  // namespace perf
