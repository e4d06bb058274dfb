// What each pointer of a parameter block points to: name, access and extent.
#include "backends/portable/merge/kernels.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "device/merge/config.h"
#include "operations/elements.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::portable {
namespace {

using device::LseTensor, device::MergeShape, device::PartRange, device::SinkTensor, device::Tensor4;
using gpu::Access, gpu::Dimension, gpu::Region, gpu::RegionVisitor;

/// "outs[17]": of part n of the call, and of stacked parts the role alone. Lives as long as the program.
std::string_view name_of(std::string_view role, const PartRange& range, std::size_t n) {
  if (range.stacked != 0) return role;
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard<std::mutex> guard(mutex);
  return *names.insert(core::concat(role, "[", range.first_part + static_cast<std::int64_t>(n), "]")).first;
}

std::size_t bytes_of(std::int64_t part_type) { return part_type == device::kPartF32 ? 4 : 2; }

/// Visits the pointers of one block.
template <typename Params>
class Table {
 public:
  Table(const Params& params, const RegionVisitor& visit) : p_(params), s_(params.shape), visit_(visit) {}

  template <typename Pointer>
  void add(Pointer* const& member, const Region& region) const {
    gpu::visit_pointer(p_, member, region, visit_);
  }
  /// Parts of a stacked tensor are one region.
  void rows(const Tensor4& t, std::string_view name, Access access, std::size_t element, std::int64_t parts = 1,
            std::int64_t part_stride = 0) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = element,
                 .outer = {{{s_.batch_size, t.batch_stride},
                            {s_.seqlen_q, t.seq_stride},
                            {s_.num_heads_q, t.head_stride},
                            {parts, part_stride}}},
                 .rank = 4,
                 .row = s_.head_dim_v});
  }
  void lse(const LseTensor& t, std::string_view name, Access access, std::int64_t parts = 1,
           std::int64_t part_stride = 0) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = sizeof(float),
                 .outer = {{{s_.batch_size, t.batch_stride},
                            {s_.seqlen_q, t.seq_stride},
                            {s_.num_heads_q, t.head_stride},
                            {parts, part_stride}}},
                 .rank = 4});
  }
  void sink(const SinkTensor& t, std::string_view name, Access access) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = std::max<std::size_t>(size_of(operations::dtype_of(t.type)), 1),
                 .outer = {{{s_.num_heads_q, t.stride}}},
                 .rank = 1});
  }
  void of_rows(float* const& member, std::string_view name, std::int64_t columns = 1) const {
    add(member, gpu::float_workspace(name, Access::write, row_count() * columns));
  }
  void of_rows(const float* const& member, std::string_view name, std::int64_t columns = 1) const {
    add(member, gpu::float_workspace(name, Access::read, row_count() * columns));
  }
  [[nodiscard]] std::int64_t row_count() const { return s_.batch_size * s_.seqlen_q * s_.num_heads_q; }

  /// Entries of the table, and the slices that the one of stacked parts stands for.
  static std::size_t entries(const PartRange& range) {
    return range.stacked != 0 ? 1 : static_cast<std::size_t>(range.num_parts);
  }
  static std::int64_t slices(const PartRange& range) { return range.stacked != 0 ? range.num_parts : 1; }

 private:
  const Params& p_;
  const MergeShape& s_;
  const RegionVisitor& visit_;
};

/// What a launch reads of the one before it, and what it leaves.
constexpr std::array<std::string_view, 2> kLse{"lse_accum", "lse_accum_odd"}, kDelta{"delta", "delta_odd"};
std::string_view before(const std::array<std::string_view, 2>& names, const PartRange& range) {
  return names[static_cast<std::size_t>(1 - range.turn)];
}
std::string_view after(const std::array<std::string_view, 2>& names, const PartRange& range) {
  return names[static_cast<std::size_t>(range.turn)];
}

template <typename Params>
void add_parts(const Table<Params>& table, const Params& p) {
  for (std::size_t n = 0; n < table.entries(p.range); ++n) {
    table.rows(p.parts[n].out, name_of("outs", p.range, n), Access::read, bytes_of(p.parts[n].type),
               table.slices(p.range), p.range.rows_stride);
    table.lse(p.parts[n].lse, name_of("lses", p.range, n), Access::read, table.slices(p.range), p.range.lse_stride);
  }
}

}  // namespace

void for_each_pointer(const device::MergeForwardParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  add_parts(table, p);
  table.rows(p.out, "out", Access::write, bytes_of(p.out_type));
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.of_rows(p.out_accum, "out_accum", p.range.resumes != 0 || p.range.pauses != 0 ? p.shape.head_dim_v : 0);
  table.of_rows(p.lse_before, before(kLse, p.range), p.range.resumes * device::kMergeLseNumbers);
  table.of_rows(p.lse_accum, after(kLse, p.range), p.range.pauses * device::kMergeLseNumbers);
}

void for_each_pointer(const device::MergeBwdPreprocessParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  add_parts(table, p);
  table.rows(p.dout, "dout", Access::read, bytes_of(p.out_type));
  table.sink(p.sink, "sink", Access::read);
  table.of_rows(p.lse_before, before(kLse, p.range), p.range.resumes * device::kMergeLseNumbers);
  table.of_rows(p.delta_before, before(kDelta, p.range), p.range.resumes);
  table.of_rows(p.lse_accum, after(kLse, p.range), device::kMergeLseNumbers);
  table.of_rows(p.delta, after(kDelta, p.range));
  table.of_rows(p.dots, "dots", p.parts_of_call);
}

void for_each_pointer(const device::MergeBwdParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  for (std::size_t n = 0; n < table.entries(p.range); ++n) {
    const device::MergeBwdPart& part = p.parts[n];
    table.lse(part.lse, name_of("lses", p.range, n), Access::read, table.slices(p.range), p.range.lse_stride);
    table.lse(part.dlse, name_of("dlses", p.range, n), Access::write, table.slices(p.range), p.range.dlse_stride);
    table.rows(part.dout, name_of("douts", p.range, n), Access::write, bytes_of(part.type), table.slices(p.range),
               p.range.drows_stride);
  }
  table.rows(p.dout, "dout", Access::read, bytes_of(p.out_type));
  table.lse(p.dlse, "dlse", Access::read);
  table.of_rows(p.lse_accum, after(kLse, p.range), device::kMergeLseNumbers);
  table.of_rows(p.delta, after(kDelta, p.range));
  table.of_rows(p.dots, "dots", p.parts_of_call);
}

void for_each_pointer(const device::MergeBwdDsinkParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.lse(p.dlse, "dlse", Access::read);
  table.sink(p.sink, "sink", Access::read);
  table.sink(p.dsink, "dsink", Access::write);
  table.of_rows(p.lse_accum, kLse[static_cast<std::size_t>(p.turn)], device::kMergeLseNumbers);
  table.of_rows(p.delta, kDelta[static_cast<std::size_t>(p.turn)]);
}

}  // namespace tilewise::backends::portable
