// Selected keys of one query, brought together block by block: what forward kernels read where a call has key_indices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/rows.hpp"
#include "device/common/selected.h"

namespace tilewise::backends::cpu {

/// The time of keys that are brought together, beside keys that lie side by side.
inline constexpr double kSelectedCost = 2.0;

/// The selected keys that a query sees, in the order of its indices. Of the calling thread, until its next query.
struct SeenKeys {
  const std::int32_t* places;  // zeros behind the last one, as far as a kernel's vectors reach
  std::int32_t count;
};
[[nodiscard]] SeenKeys seen_keys(const device::IndexTensor& indices, const device::KeyRange& keys, std::int64_t batch,
                                 std::int64_t row, std::int64_t head_k);

/// Shows a forward tile of one query its keys alone: `rows` are the tile's, and `gatherer` brings their numbers to
/// k and v, which hold KernelSet::forward_keys rows of `k_stride` and `v_stride` elements.
void show_seen_keys(const SeenKeys& seen, RowInfo* rows, ForwardTile& tile);

/// Heads of a group that are a task of one query: fewer than a tile takes where workers would be idle. No row's result
/// depends on it.
[[nodiscard]] std::int64_t members_a_task(std::int64_t group, std::int64_t most, std::int64_t other_tasks, int workers);

/// From rows that are a stride apart, of one head.
class StridedGatherer final : public KeyGatherer {
 public:
  /// Of a tile that still has its k and v: they become the memory that the gatherer fills, the thread's own.
  StridedGatherer(ForwardTile& tile, const SeenKeys& seen, std::int64_t block_keys, std::size_t element);

 private:
  static void fill_block(const KeyGatherer& gatherer, std::int64_t first, std::int64_t count);

  const std::int32_t* places_;
  const std::byte *k_, *v_;
  std::int64_t k_step_, v_step_;  // between keys, in bytes
  std::size_t k_bytes_, v_bytes_;
  std::byte *k_to_, *v_to_;
};

}  // namespace tilewise::backends::cpu
