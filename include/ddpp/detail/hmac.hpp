// SPDX-License-Identifier: BSL-1.0
// HMAC-SHA256 (RFC 2104) by the system's libcrypto, loaded when first needed: nothing to link, nothing to
// install for builds.
#pragma once

#include <ddpp/error.hpp>

#include <array>
#include <cstddef>
#include <dlfcn.h>
#include <span>
#include <string_view>

namespace ddpp::detail {

using hmac_digest = std::array<std::byte, 32>;

/// The two functions that we take from libcrypto. It stays loaded.
class libcrypto {
 public:
  static const libcrypto& instance() {
    static const libcrypto only;
    return only;
  }

  hmac_digest hmac(std::string_view key, std::span<const std::byte> message) const {
    hmac_digest digest;
    unsigned length = 0;
    const unsigned char* done = hmac_(sha256_(), key.data(), static_cast<int>(key.size()),
                                      reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                      reinterpret_cast<unsigned char*>(digest.data()), &length);
    if (done == nullptr || length != digest.size()) {
      throw authentication_error("libcrypto refuses HMAC-SHA256");
    }
    return digest;
  }

 private:
  libcrypto() {
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"}) {
      void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      sha256_ = reinterpret_cast<const void* (*)()>(::dlsym(library, "EVP_sha256"));
      hmac_ = reinterpret_cast<decltype(hmac_)>(::dlsym(library, "HMAC"));
      if (sha256_ != nullptr && hmac_ != nullptr) return;
      ::dlclose(library);
    }
    throw authentication_error(
        "ranks authenticate each other with libcrypto, which is not installed (Debian: apt-get install "
        "libssl3). Without it, choose security::none by name: basic_tcp<security::none>");
  }

  const void* (*sha256_)() = nullptr;
  unsigned char* (*hmac_)(const void* algorithm, const void* key, int key_bytes, const unsigned char* message,
                          std::size_t message_bytes, unsigned char* digest, unsigned* digest_bytes) = nullptr;
};

/// Throws authentication_error when there is no libcrypto.
inline hmac_digest hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  return libcrypto::instance().hmac(key, message);
}

/// Takes the same time wherever the first difference is.
inline bool equal_in_constant_time(const hmac_digest& a, const hmac_digest& b) {
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace ddpp::detail
