// Problems whose keys are selected: a block has heads of one query, over as many keys as it has indices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/attention/config.h"
#include "gpu/architectures.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What such a problem is to schedules and estimates: as many sequences of one query as it has queries, over top_k keys
/// each. Other problems as they are.
[[nodiscard]] Problem each_query_of(const Problem& problem);

/// Blocks of rows for each head of the forward kernel's grid and each batch entry, of any problem.
[[nodiscard]] std::int64_t row_tiles(const Problem& problem, const device::ForwardConfig& config);
/// Of the kernel's that makes dq.
[[nodiscard]] std::int64_t row_tiles(const Problem& problem, const device::BwdDqConfig& config);

/// What schedules say of those rows; empty where they are queries of one head.
[[nodiscard]] std::string_view rows_word(const device::ForwardConfig& config);

/// Why no kernel takes so many indices, or empty.
[[nodiscard]] std::string selection_refusal(std::int64_t top_k);
/// Why none takes what a problem of the backward pass asks of its selected keys, if it has any, or empty.
[[nodiscard]] std::string selected_gradients_refusal(const Problem& problem);

/// Makes room for what selecting takes, in a shape that others have.
void shape_selected(device::ForwardConfig& config, gpu::Family family);
/// And fits its rows, or what it streams, to the query heads of a key head.
void shape_selected(device::BwdDqConfig& config, gpu::Family family, std::int64_t group);
void shape_selected(device::BwdDkdvConfig& config, gpu::Family family, std::int64_t group);

}  // namespace tilewise::backends::portable
