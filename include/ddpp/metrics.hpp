// SPDX-License-Identifier: BSL-1.0
// Evaluation over all ranks' samples: each rank accumulates its own, `compute(comm)` gives every rank the
// value over the union of them, the same bits everywhere. It is collective, blocks, and may be called as
// often as wanted; all ranks must use the same metric. A value over no samples at all is NaN.
#pragma once

#include <ddpp/metrics/confusion_matrix.hpp>
#include <ddpp/metrics/means.hpp>
#include <ddpp/metrics/ranking.hpp>
