// Sums over bands of a rectangle, in closed form; see work.hpp.
#include "operations/attention/work.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "operations/attention/rules.hpp"

namespace tilewise::operations::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Row i of the rectangle sees columns [i + first, i + last].
struct Band {
  double rows, cols, first, last;
};

double as_double(std::int64_t n) { return static_cast<double>(n); }

Band band_of(const AttentionProblem& p) {
  const Extent extent = typical_extent(p);
  const double diagonal = p.alignment == Alignment::bottom_right ? extent.seqlen_k - extent.seqlen_q : 0.0;
  const std::int64_t left = p.window_left, right = folded_window_right(p);
  return {extent.seqlen_q, extent.seqlen_k, left < 0 ? -kInfinity : diagonal - as_double(left),
          right < 0 ? kInfinity : diagonal + as_double(right)};
}

/// The sum of clamp(i + shift, 0, most) over the whole numbers i in [0, count).
double sum_of_clamped(double count, double shift, double most) {
  const double begin = std::clamp(std::ceil(-shift), 0.0, count);      // zero before
  const double end = std::clamp(std::ceil(most - shift), 0.0, count);  // `most` from here on
  const double rising = end > begin ? (end - begin) * (0.5 * (begin + end - 1.0) + shift) : 0.0;
  return rising + (count - end) * most;
}

/// Columns from the first to the last that a block of rows sees, on average.
double columns_seen(const Band& band, double block) {
  if (band.rows <= 0.0) return 0.0;
  const double size = std::clamp(block, 1.0, band.rows), count = std::ceil(band.rows / size);
  const double before = sum_of_clamped(count, band.first / size, band.cols / size);
  const double until = sum_of_clamped(count, band.last / size + 1.0, band.cols / size);
  return std::max(until - before, 0.0) * size / count;
}

/// Of the blocks, the one that sees most: bounded by the band's width and by what its ends leave.
double most_columns_seen(const Band& band, double block) {
  if (band.rows <= 0.0) return 0.0;
  const double until = std::clamp(band.rows + band.last, 0.0, band.cols);  // by the last row
  const double from = std::clamp(band.first, 0.0, band.cols);              // by the first one
  const double width = band.last - band.first + std::clamp(block, 1.0, band.rows);
  return std::max(0.0, std::min({until, band.cols - from, width}));
}

Band transposed(const Band& band) { return {band.cols, band.rows, -band.last, -band.first}; }

}  // namespace

Extent typical_extent(const AttentionProblem& p) {
  if (p.layout != Layout::thd) {
    return {as_double(p.seqlen_q), as_double(p.seqlen_k), as_double(p.batch_size) * as_double(p.seqlen_q),
            as_double(p.batch_size) * as_double(p.seqlen_k)};
  }
  // The mean length, each sequence counted as often as it has rows: the mean itself where all are equally long, two
  // thirds of the longest where lengths are spread evenly up to it.
  const auto typical = [&p](std::int64_t total, std::int64_t longest) {
    const double mean = as_double(total) / as_double(std::max<std::int64_t>(p.batch_size, 1));
    return mean + std::max(as_double(longest) - mean, 0.0) / 3.0;
  };
  return {typical(p.total_q, p.seqlen_q), typical(p.total_k, p.seqlen_k), as_double(p.total_q), as_double(p.total_k)};
}

double share_of_tiles(const AttentionProblem& p, double queries) {
  const double most = as_double(p.batch_size) * std::ceil(as_double(p.seqlen_q) / queries);
  if (p.layout != Layout::thd || most <= 0.0) return 1.0;
  return std::min(1.0, (as_double(p.total_q) / queries + as_double(p.batch_size)) / most);
}

double keys_seen(const AttentionProblem& problem, double block) { return columns_seen(band_of(problem), block); }

double queries_seen(const AttentionProblem& problem, double block) {
  return columns_seen(transposed(band_of(problem)), block);
}

double most_keys_seen(const AttentionProblem& problem, double block) {
  return most_columns_seen(band_of(problem), block);
}

double most_queries_seen(const AttentionProblem& problem, double block) {
  return most_columns_seen(transposed(band_of(problem)), block);
}

double scalar_us(const AttentionProblem& p, const ScalarCosts& costs) {
  const Extent extent = typical_extent(p);
  const double heads = as_double(p.num_heads_q), dims = as_double(p.head_dim + p.head_dim_v);
  const double rows = extent.total_q * heads + extent.total_k * as_double(p.num_heads_k);
  const double scores = extent.total_q * heads * keys_seen(p);
  const double passes = p.operation == Operation::attention_forward ? 1.0 : 2.5;
  return costs.call + rows * (costs.row + dims * costs.row_element) +
         passes * scores * (costs.score + 2.0 * dims * costs.flop);
}

}  // namespace tilewise::operations::attention
