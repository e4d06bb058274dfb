// Gradients of captured tensors while they are added up; see table_sums.hpp.
#include "operations/attention/table_sums.hpp"

#include <algorithm>
#include <numeric>

#include "operations/elements.hpp"

namespace tilewise::operations::attention {
namespace {

std::int64_t elements_of(const TableShape& table) {
  return std::accumulate(table.shape.begin(), table.shape.begin() + table.rank, std::int64_t{1}, std::multiplies<>());
}

}  // namespace

std::int64_t elements_of_wanted_tables(const AttentionProblem& p) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < p.tables.size(); ++i)
    if (wants_table_gradient(p, i)) elements += elements_of(p.tables[i]);
  return elements;
}

TableSums::TableSums(const AttentionProblem& p) : sums_(static_cast<std::size_t>(elements_of_wanted_tables(p))) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    begins_[i] = begin;
    if (wants_table_gradient(p, i)) begin += static_cast<std::size_t>(elements_of(p.tables[i]));
  }
}

void TableSums::add(const TableSums& other) {
  std::ranges::transform(sums_, other.sums_, sums_.begin(), std::plus<>());
}

void TableSums::store(const AttentionProblem& p, const TensorView* dtables) const {
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    if (!wants_table_gradient(p, i)) continue;
    const TensorView& to = dtables[i];
    std::array<std::int64_t, kMostTableDimensions> place{};
    for (std::int64_t n = 0; n < elements_of(p.tables[i]); ++n) {
      std::int64_t at = 0;
      for (std::size_t d = 0; d < static_cast<std::size_t>(to.rank); ++d) at += place[d] * to.strides[d];
      store_element(to.dtype, to.data, at, sums_[begins_[i] + static_cast<std::size_t>(n)]);
      for (auto d = static_cast<std::size_t>(to.rank); d-- > 0 && ++place[d] == to.shape[d];) place[d] = 0;
    }
  }
}

LookUpPlaces::LookUpPlaces(const expression::LookUpDerivative& look_up, std::span<const TensorView> tables)
    : look_up_(look_up), table_(tables[look_up.table]) {
  indices_.reserve(look_up.indices.size());
  for (const expression::Expression& index : look_up.indices) indices_.emplace_back(index, tables);
}

void LookUpPlaces::find(std::int64_t b, std::int64_t h, std::int64_t q_idx, std::int64_t first_key, std::int64_t count,
                        std::int64_t* elements) {
  using Input = expression::Input<double>;
  const auto same = [](const std::int64_t& value) { return Input{.integers = &value, .uniform = true}; };
  std::array<std::int64_t, kLanes> keys, index;
  std::iota(keys.begin(), keys.end(), first_key);
  // No index speaks of the score, which comes first.
  const std::array inputs{Input{}, same(b), same(h), same(q_idx), Input{.integers = keys.data()}};
  std::fill_n(elements, count, 0);
  for (std::size_t d = 0; d < indices_.size(); ++d) {
    const std::int64_t size = table_.shape[d];
    indices_[d](inputs, count, index.data());
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const std::int64_t at = index[static_cast<std::size_t>(lane)];
      elements[lane] = elements[lane] < 0 || at < 0 || at >= size ? -1 : elements[lane] * size + at;
    }
  }
}

template <typename Real>
void LookUpPlaces::add(std::int64_t b, std::int64_t h, std::int64_t q_idx, std::int64_t first_key,
                       std::span<const Real> parts, TableSums& sums) {
  double* const table = sums.of(look_up_.table);
  const auto count = static_cast<std::int64_t>(parts.size());
  for (std::int64_t first = 0; first < count; first += kLanes) {
    const std::int64_t lanes = std::min(kLanes, count - first);
    std::array<std::int64_t, kLanes> elements;
    find(b, h, q_idx, first_key + first, lanes, elements.data());
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane)
      if (elements[lane] >= 0) table[elements[lane]] += double{parts[static_cast<std::size_t>(first) + lane]};
  }
}

template void LookUpPlaces::add(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::span<const float>,
                                TableSums&);
template void LookUpPlaces::add(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::span<const double>,
                                TableSums&);

}  // namespace tilewise::operations::attention
