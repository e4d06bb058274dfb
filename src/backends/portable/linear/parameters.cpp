// What each pointer of a parameter block points to.
#include <string_view>

#include "backends/portable/linear/kernels.hpp"
#include "backends/portable/product/operand.hpp"

namespace tilewise::backends::portable {
namespace {

using device::LinearMatrix, device::ProductGroups, device::ProductOperand, device::ProductVector;
using gpu::Access, gpu::Region, gpu::RegionVisitor;

std::string_view name_of(std::int32_t role) {
  switch (role) {
    case device::kLinearX:
      return "x";
    case device::kLinearW:
    case device::kLinearWBack:
      return "w";
    case device::kLinearDout:
      return "dout";
    case device::kLinearDsum:
      return "dsum";
    case device::kLinearDx:
      return "dx";
    case device::kLinearDw:
      return "dw";
    default:
      return "out";
  }
}

/// Visits the pointers of one block.
template <typename Params>
class Table {
 public:
  Table(const Params& params, const RegionVisitor& visit) : p_(params), visit_(visit) {}

  void operand(const ProductOperand& t) const {
    const bool is_x = t.role == device::kLinearX;
    visit_operand(p_, t, {name_of(t.role), t.role == device::kLinearDsum}, {is_x ? "x_scale" : "w_scale"}, visit_);
  }

  void vector(const ProductVector& t, std::string_view name) const { visit_vector(p_, t, name, visit_); }

  void matrix(const LinearMatrix& t, Access access, std::int64_t experts, std::int64_t rows,
              std::int64_t columns) const {
    gpu::visit_pointer(p_, t.data,
                       {.name = name_of(t.role),
                        .workspace = t.role == device::kLinearDsum,
                        .access = access,
                        .element_bytes = bytes_of_number(t.type),
                        .outer = {{{experts, t.expert_stride}, {rows, t.row_stride}}},
                        .rank = 2,
                        .row = columns},
                       visit_);
  }

  void groups(const ProductGroups& t) const {
    gpu::visit_pointer(p_, t.data,
                       {.name = t.type == device::kGroupsCounts ? "counts" : "offsets",
                        .element_bytes = static_cast<std::size_t>(t.bytes),
                        .outer = {{{t.num_groups + (t.type == device::kGroupsOffsets ? 1 : 0), t.stride}}},
                        .rank = 1},
                       visit_);
  }

  void epilogue(const device::LinearEpilogueParams& e, Access partial) const {
    groups(e.groups);
    vector(e.row_scale, "x_scale");
    vector(e.column_scale, "w_scale");
    vector(e.expert_scale, "w_global_scale");
    vector(e.bias, "bias");
    matrix(e.dout, Access::read, 1, e.rows, e.columns);
    matrix(e.out, Access::write, 1, e.rows, e.columns);
    const std::int64_t splits = e.grid.splits > 1 ? e.grid.splits : 0;
    gpu::visit_pointer(p_, e.partial, gpu::float_workspace("partial", partial, splits * e.rows * e.columns), visit_);
  }

 private:
  const Params& p_;
  const RegionVisitor& visit_;
};

}  // namespace

void for_each_pointer(const device::LinearProductParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.operand(p.a);
  table.operand(p.b);
  table.epilogue(p.epilogue, Access::write);
}

void for_each_pointer(const device::LinearEpilogueParams& p, const RegionVisitor& visit) {
  Table(p, visit).epilogue(p, Access::read);
}

void for_each_pointer(const device::LinearDwParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.groups(p.groups);
  table.operand(p.a);
  table.operand(p.b);
  table.matrix(p.out, Access::write, p.groups.num_groups, p.rows, p.columns);
}

void for_each_pointer(const device::LinearDbiasParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.groups(p.groups);
  table.matrix(p.dout, Access::read, 1, p.tokens, p.columns);
  gpu::visit_pointer(p, p.out,
                     {.name = "dbias",
                      .access = Access::write,
                      .element_bytes = bytes_of_number(p.out_type),
                      .outer = {{{p.groups.num_groups, p.expert_stride}, {p.columns, p.stride}}},
                      .rank = 2},
                     visit);
}

}  // namespace tilewise::backends::portable
