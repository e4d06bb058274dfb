// Block masks as arguments: shapes, limits, and what they list; see block_mask.hpp.
#include "operations/block_mask.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "operations/host_copies.hpp"

namespace tilewise::operations {
namespace {

using core::invalid_argument, core::size_at;

constexpr std::int64_t kBlockMultiple = 16;
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 40;  // far beyond any memory

/// Whether a dimension of the first tensor has a size of its own.
bool is_own(const TensorView& counts, int axis, std::string_view name, std::int64_t whole) {
  const std::int64_t size = size_at(counts, axis);
  if (size != 1 && size != whole) {
    invalid_argument("block_counts: dimension ", axis, " must be 1 or ", name, " = ", whole, " (got ", size, ")");
  }
  return size != 1;
}

std::int32_t number_at(const TensorView& view, std::int64_t offset) {
  return static_cast<const std::int32_t*>(view.data)[offset];
}

/// Visits the lists of a row of blocks: visit(tensor of counts, offset of its count, offset of its first index).
template <typename Visit>
void for_each_list(const TensorView* block_mask, const BlockedScores& scores, std::int64_t b, std::int64_t h,
                   std::int64_t row, const Visit& visit) {
  for (std::size_t of = kBlockCounts; of < block_mask_tensors(scores.mask); of += 2) {
    const auto &counts = block_mask[of].strides, &indices = block_mask[of + 1].strides;
    visit(of, b * counts[0] + h * counts[1] + row * counts[2], b * indices[0] + h * indices[1] + row * indices[2]);
  }
}

/// Calls visit(b, h, row) for each row of blocks.
template <typename Visit>
void for_each_row(const BlockGrid& grid, const Visit& visit) {
  for (std::int64_t b = 0; b < grid.batch; ++b)
    for (std::int64_t h = 0; h < grid.heads; ++h)
      for (std::int64_t row = 0; row < grid.rows; ++row) visit(b, h, row);
}

}  // namespace

BlockGrid block_grid(const BlockedScores& s) {
  return {s.mask.batch ? s.batch_size : 1, s.mask.head ? s.num_heads_q : 1, core::ceil_div(s.queries, s.mask.rows),
          core::ceil_div(s.keys, s.mask.keys)};
}

TableShape block_mask_shape(const BlockedScores& scores, std::size_t tensor) {
  const auto [batch, heads, rows, columns] = block_grid(scores);
  return {DType::i32, tensor % 2 == 0 ? 3 : 4, {batch, heads, rows, columns}};
}

BlockMaskShape described_block_mask(std::span<const TensorView> tensors, std::int64_t rows, std::int64_t keys,
                                    const BlockedScores& known, Device device) {
  if (tensors.empty()) return {};
  if (tensors.size() != 2 && tensors.size() != kBlockMaskTensors) {
    invalid_argument("block_mask: must be block_counts and block_indices, and full_block_counts and ",
                     "full_block_indices or not (got ", tensors.size(), " tensors)");
  }
  BlockedScores s = known;
  s.mask = {rows, keys, false, false, tensors.size() == kBlockMaskTensors};
  validate_block_mask(s, 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& view = tensors[i];
    core::check_view(view, block_mask_name(i), device, "q");
    core::check_dtype(view, block_mask_name(i), DType::i32);
    const bool counts = i % 2 == 0;
    core::check_rank(view, block_mask_name(i), counts ? 3 : 4,
                     counts ? "[1 or batch_size, 1 or num_heads_q, rows of blocks]"
                            : "[1 or batch_size, 1 or num_heads_q, rows of blocks, columns of blocks]");
    if (i == kBlockCounts) {
      s.mask.batch = is_own(view, 0, "batch_size", s.batch_size);
      s.mask.head = is_own(view, 1, "num_heads_q", s.num_heads_q);
    }
    const BlockGrid grid = block_grid(s);
    const std::string rows_name = core::concat("ceil(", s.queries_name, " / block_rows)"),
                      columns_name = core::concat("ceil(", s.keys_name, " / block_keys)");
    core::Shape shape{
        {"batch of block_counts", grid.batch}, {"heads of block_counts", grid.heads}, {rows_name, grid.rows}};
    if (!counts) shape.dims[static_cast<std::size_t>(shape.rank++)] = {columns_name, grid.columns};
    core::check_shape(view, block_mask_name(i), shape);
  }
  return s.mask;
}

void validate_block_mask(const BlockedScores& s, std::size_t tables) {
  if (s.mask.rows == 0) return;
  const auto check = [](std::string_view name, std::int64_t size) {
    if (size <= 0 || size % kBlockMultiple != 0 || size > (std::int64_t{1} << 30)) {
      invalid_argument(name, ": must be a multiple of ", kBlockMultiple, " from ", kBlockMultiple, " to 2^30 (got ",
                       size, ")");
    }
  };
  check("block_rows", s.mask.rows);
  check("block_keys", s.mask.keys);
  if (tables >= kMostTables) {
    invalid_argument("tables: must be <= ", kMostTables - 1, " beside block_mask (got ", tables, ")");
  }
  const BlockGrid grid = block_grid(s);
  // Batch times heads and each side of a mask are below 2^31.
  if (grid.rows * grid.columns > kMostBlocks / std::max<std::int64_t>(grid.batch * grid.heads, 1)) {
    invalid_argument("block_mask: must have <= 2^40 blocks (got ", grid.batch, " * ", grid.heads, " * ", grid.rows,
                     " * ", grid.columns, ")");
  }
}

void check_block_lists(const TensorView* block_mask, const BlockedScores& scores) {
  const BlockGrid grid = block_grid(scores);
  for_each_row(grid, [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    const auto check = [&](std::size_t of, std::int64_t at_count, std::int64_t at_index) {
      const TensorView& indices = block_mask[of + 1];
      const std::int32_t count = number_at(block_mask[of], at_count);
      if (count < 0 || count > grid.columns) {
        invalid_argument(block_mask_name(of), "[", b, ", ", h, ", ", row, "]: must be 0 to ", grid.columns,
                         ", the columns of blocks (got ", count, ")");
      }
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int32_t index = number_at(indices, at_index + n * indices.strides[3]);
        if (index >= 0 && index < grid.columns) continue;
        invalid_argument(block_mask_name(of + 1), "[", b, ", ", h, ", ", row, ", ", n, "]: must be 0 to ",
                         grid.columns - 1, ", a column of blocks (got ", index, ")");
      }
    };
    for_each_list(block_mask, scores, b, h, row, check);
  });
}

void check_device_block_lists(std::span<const TensorView> block_mask, const BlockedScores& scores, void* stream) {
  if (block_mask.empty()) return;
  const Device device = block_mask[0].device;
  HostCopies copies(device.type, device.index, stream);
  std::vector<TensorView> views(block_mask.begin(), block_mask.end());
  for (TensorView& view : views) {
    const void* data = view.data;
    copies.fetch(data, view);
    view.data = const_cast<void*>(data);
  }
  check_block_lists(views.data(), scores);
}

void write_block_row(const TensorView* block_mask, const BlockedScores& scores, std::int64_t b, std::int64_t h,
                     std::int64_t row, std::uint8_t* states) {
  const std::int64_t columns = block_grid(scores).columns;
  std::memset(states, kBlockHidden, static_cast<std::size_t>(columns));
  const auto write = [&](std::size_t of, std::int64_t at_count, std::int64_t at_index) {
    const TensorView& indices = block_mask[of + 1];
    const std::int64_t count = std::min<std::int64_t>(number_at(block_mask[of], at_count), columns);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int32_t index = number_at(indices, at_index + n * indices.strides[3]);
      if (index >= 0 && index < columns) states[index] = of == kBlockCounts ? kBlockPartial : kBlockFull;
    }
  };
  for_each_list(block_mask, scores, b, h, row, write);
}

void write_block_states(const TensorView* block_mask, const BlockedScores& scores, std::uint8_t* states) {
  const BlockGrid grid = block_grid(scores);
  for_each_row(grid, [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    write_block_row(block_mask, scores, b, h, row, states + ((b * grid.heads + h) * grid.rows + row) * grid.columns);
  });
}

void add_block_table(const BlockedScores& scores, std::string& score_mod, std::string& mask_mod,
                     std::vector<TableShape>& tables) {
  const BlockMaskShape& mask = scores.mask;
  const BlockGrid grid = block_grid(scores);
  const std::string state = core::concat(table_name(tables.size()), '[', mask.batch ? "b" : "0", ',',
                                         mask.head ? "h" : "0", ",q_idx//", mask.rows, ",kv_idx//", mask.keys, ']');
  mask_mod = mask_mod.empty() ? core::concat(state, "!=0")
                              : core::concat('(', state, "==2)|((", state, "==1)&(", mask_mod, "))");
  tables.push_back({DType::u8, 4, {grid.batch, grid.heads, grid.rows, grid.columns}});
  (void)normalise_texts(score_mod, mask_mod, tables);
}

TensorView block_table(const BlockedScores& scores, std::uint8_t* states) {
  const BlockGrid grid = block_grid(scores);
  return {states, DType::u8, {grid.batch, grid.heads, grid.rows, grid.columns}};
}

}  // namespace tilewise::operations
