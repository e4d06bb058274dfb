// The tables that score_mod and mask_mod look up, and a block mask, from an operation's options in C.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/c_api.hpp"
#include "core/message.hpp"
#include "operations/block_mask.hpp"
#include "operations/score_functions.hpp"

namespace tilewise::operations {

template <typename COptions, typename Options>
void take_tables(const COptions& c, Options& options) {
  if (c.table_count < 0 || (c.table_count > 0 && c.tables == nullptr)) {
    core::invalid_argument("tables: must be table_count of them (got ", c.table_count,
                           c.tables == nullptr ? " and NULL)" : ")");
  }
  for (std::int64_t i = 0; i < c.table_count; ++i)
    options.tables.push_back(core::c::view_of(c.tables[i], table_name(static_cast<std::size_t>(i))));
}

template <typename COptions, typename Options>
void take_block_mask(const COptions& c, Options& options) {
  const std::int64_t count = c.block_mask_count;
  if (count < 0 || count > static_cast<std::int64_t>(kBlockMaskTensors) || (count > 0 && c.block_mask == nullptr)) {
    core::invalid_argument("block_mask: must be block_mask_count of them, 0, 2 or 4 (got ", count,
                           c.block_mask == nullptr ? " and NULL)" : ")");
  }
  for (std::int64_t i = 0; i < count; ++i)
    options.block_mask.push_back(core::c::view_of(c.block_mask[i], block_mask_name(static_cast<std::size_t>(i))));
  options.block_rows = c.block_rows;
  options.block_keys = c.block_keys;
}

}  // namespace tilewise::operations
