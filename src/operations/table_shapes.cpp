// Tables as a word; see table_shapes.hpp.
#include "operations/table_shapes.hpp"

#include <algorithm>
#include <charconv>

#include "core/message.hpp"
#include "core/names.hpp"

namespace tilewise {
namespace {

/// Takes "f32[16,128]" from the front of `rest`; false where it does not begin so.
bool take_table(std::string_view key, std::string_view& rest, TableShape& table) {
  const std::size_t open = rest.find('['), close = rest.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
  table.dtype = core::value_of<DType>(key, rest.substr(0, open));
  const char *at = rest.data() + open + 1, *end = rest.data() + close;
  while (at != end) {
    if (table.rank == operations::kMostTableDimensions) return false;
    const auto [stop, error] = std::from_chars(at, end, table.shape[static_cast<std::size_t>(table.rank)]);
    if (error != std::errc{} || (stop != end && *stop != ',') || stop + 1 == end) return false;
    ++table.rank;
    at = stop == end ? end : stop + 1;
  }
  rest.remove_prefix(close + 1);
  return true;
}

}  // namespace

void print_value(std::string& text, const std::vector<TableShape>& tables) {
  if (tables.empty()) core::append(text, "none");
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const TableShape& table = tables[i];
    core::append(text, core::concat(i == 0 ? "" : ",", core::name_of(table.dtype), '['));
    for (int d = 0; d < table.rank; ++d) {
      core::append(text, core::concat(d == 0 ? "" : ",", table.shape[static_cast<std::size_t>(d)]));
    }
    core::append(text, ']');
  }
}

void read_word(std::string_view key, std::string_view word, std::vector<TableShape>& tables) {
  tables.clear();
  if (word == "none") return;
  std::string_view rest = word;
  bool good = true;
  do {
    good = take_table(key, rest, tables.emplace_back());
    if (good && !rest.empty()) {
      good = rest.size() > 1 && rest.front() == ',';
      rest.remove_prefix(1);
    }
  } while (good && !rest.empty());
  if (!good) {
    core::invalid_argument(key, ": must be none or element types with 1 to 4 sizes, such as f32[16,128],i32[64] (got ",
                           core::quoted(word), ")");
  }
}

void add_to(core::Hasher& hasher, const std::vector<TableShape>& tables) {
  for (const TableShape& table : tables) {
    hasher.add(table.dtype);
    for (const std::int64_t size : table.shape) hasher.add(size);
  }
}

}  // namespace tilewise

namespace tilewise::operations {

void check_table_rank(const core::ArgumentName& name, int rank) {
  if (rank >= 1 && rank <= kMostTableDimensions) return;
  core::invalid_argument(name, ": must have 1 to ", kMostTableDimensions, " dimensions (got ", rank, ")");
}

TableShape table_shape_of(const TensorView& table, const core::ArgumentName& name) {
  check_table_rank(name, table.rank);
  TableShape shape{table.dtype, table.rank};
  std::copy_n(table.shape.begin(), table.rank, shape.shape.begin());
  return shape;
}

}  // namespace tilewise::operations
