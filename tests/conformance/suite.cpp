// SPDX-License-Identifier: BSL-1.0
// The whole suite in one unit, since what a transport needs to come to life takes longer to compile than any
// part.
#include "absence.hpp"
#include "algorithms.hpp"
#include "collectives.hpp"
#include "every_collective.hpp"
#include "groups.hpp"
#include "mismatch.hpp"
#include "misuse.hpp"
#include "numbers.hpp"
#include "overlap.hpp"
#include "point_to_point.hpp"
#include "recovery.hpp"
#include "scale.hpp"
#include "symmetric.hpp"
