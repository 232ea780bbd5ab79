// SPDX-License-Identifier: BSL-1.0
// The version, in the one place where it is written: the build files read it from here.
#pragma once

#define DDPP_VERSION_MAJOR 0
#define DDPP_VERSION_MINOR 1
#define DDPP_VERSION_PATCH 0

/// For comparisons in the preprocessor: 10203 is 1.2.3.
#define DDPP_VERSION (DDPP_VERSION_MAJOR * 10000 + DDPP_VERSION_MINOR * 100 + DDPP_VERSION_PATCH)

#define DDPP_DETAIL_TEXT_OF(x) #x
#define DDPP_DETAIL_DOTTED(a, b, c) \
  DDPP_DETAIL_TEXT_OF(a) "." DDPP_DETAIL_TEXT_OF(b) "." DDPP_DETAIL_TEXT_OF(c)

namespace ddpp {

/// "1.2.3".
inline constexpr const char* version =
    DDPP_DETAIL_DOTTED(DDPP_VERSION_MAJOR, DDPP_VERSION_MINOR, DDPP_VERSION_PATCH);

}  // namespace ddpp

#undef DDPP_DETAIL_DOTTED
#undef DDPP_DETAIL_TEXT_OF
