// Into how many parts the forward kernel's blocks take the keys, and the backward pass the queries: pure functions of
// shapes and device.
#pragma once

#include <cstdint>

#include "backends/portable/traits.hpp"
#include "device/attention/config.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// More than one where `blocks` blocks alone would leave multiprocessors idle: as many as make the shortest of what
/// the forward kernel and the merge of its parts are thought to take. `at_once`: of a multiprocessor.
[[nodiscard]] std::int64_t forward_splits(const Problem& problem, const DeviceTraits& traits,
                                          const device::ForwardConfig& config, std::int64_t blocks,
                                          std::int64_t at_once);

/// Parts of the queries that see a block's keys, where `blocks` blocks leave multiprocessors idle and each fills one.
/// steps: tiles of queries of all heads of a group.
[[nodiscard]] std::int64_t query_splits(const Problem& problem, std::int64_t blocks, std::int64_t steps,
                                        int multiprocessors);

}  // namespace tilewise::backends::portable
