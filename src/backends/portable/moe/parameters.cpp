// What each pointer of a parameter block points to.
#include <algorithm>
#include <string_view>

#include "backends/portable/moe/kernels.hpp"
#include "backends/portable/product/operand.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::portable {
namespace {

using device::MoeShape, device::PairTensor, device::ProductOperand, device::RoutedRows;
using gpu::Access, gpu::Region, gpu::RegionVisitor, gpu::visit_pointer;

bool in_workspace(std::int32_t role) { return role >= device::kExpertH; }

std::string_view name_of(std::int32_t role) {
  switch (role) {
    case device::kExpertX:
      return "x";
    case device::kExpertGateUp:
    case device::kExpertGateUpBack:
      return "gate_up";
    case device::kExpertDown:
    case device::kExpertDownBack:
      return "down";
    case device::kExpertDout:
      return "dout";
    case device::kExpertDgateUp:
      return "dgate_up";
    case device::kExpertDdown:
      return "ddown";
    case device::kExpertDgateUpBias:
      return "dgate_up_bias";
    case device::kExpertDdownBias:
      return "ddown_bias";
    case device::kExpertDx:
      return "dx";
    case device::kExpertH:
      return "h";
    case device::kExpertHElements:
      return "h_elements";
    case device::kExpertParts:
      return "parts";
    case device::kExpertDh:
      return "dh";
    case device::kExpertDproducts:
      return "dproducts";
    case device::kExpertDxParts:
      return "dx_parts";
    default:
      return "out";
  }
}

NamedRegion scales_of(const ProductOperand& operand) {
  switch (operand.role) {
    case device::kExpertX:
      return {"x_scale"};
    case device::kExpertGateUp:
    case device::kExpertGateUpBack:
      return {"gate_up_scale"};
    case device::kExpertDown:
    case device::kExpertDownBack:
      return {"down_scale"};
    case device::kExpertHElements:
      return {"h_scales", true};
    default:
      return {"no_scale"};
  }
}

/// Visits the pointers of one block.
template <typename Params>
class Table {
 public:
  Table(const Params& params, const RegionVisitor& visit) : p_(params), s_(params.shape), visit_(visit) {}

  void routed(Access access) const {
    part(p_.routed.offsets, "expert_offsets", access, std::int64_t{s_.num_experts} + 1);
    part(p_.routed.tokens, "row_tokens", access, s_.pairs());
    part(p_.routed.weights, "row_weights", access, s_.pairs());
    part(p_.routed.rows, "pair_rows", access, s_.pairs());
  }

  /// A part of the workspace.
  template <typename Element>
  void part(Element* const& member, std::string_view name, Access access, std::int64_t elements) const {
    static_assert(sizeof(std::int32_t) == sizeof(float));
    Region region{.name = name, .workspace = true, .access = access, .element_bytes = sizeof(float)};
    region.row = elements;
    visit_pointer(p_, member, region, visit_);
  }
  /// The same of numbers of NumberType.
  template <typename Pointer>
  void numbers(Pointer* const& member, std::int32_t role, std::int32_t type, Access access,
               std::int64_t elements) const {
    Region region{.name = name_of(role), .workspace = true, .access = access, .element_bytes = bytes_of_number(type)};
    region.row = elements;
    visit_pointer(p_, member, region, visit_);
  }

  void pairs(const PairTensor& t, std::string_view name, std::size_t element_bytes) const {
    matrix(t.data, name, Access::read, element_bytes, {s_.tokens, t.token_stride}, {s_.top_k, t.slot_stride});
  }
  template <typename Pointer>
  void matrix(Pointer* const& member, std::string_view name, Access access, std::size_t element_bytes,
              const gpu::Dimension& rows, const gpu::Dimension& columns) const {
    visit_pointer(
        p_, member,
        {.name = name, .access = access, .element_bytes = element_bytes, .outer = {{rows, columns}}, .rank = 2},
        visit_);
  }

  void operand(const ProductOperand& t) const {
    visit_operand(p_, t, {name_of(t.role), in_workspace(t.role)}, scales_of(t), visit_);
  }
  /// One whose scales are the rows' weights.
  void weighed_operand(const ProductOperand& t) const {
    visit_operand(p_, t, {name_of(t.role), in_workspace(t.role)}, {"row_weights", true}, visit_);
  }

  /// `h_scales`: scales of rows are intermediate values'.
  void sums(bool down, bool h_scales) const {
    if (h_scales) {
      part(p_.sums.row_scale.data, "h_scales", Access::read, p_.sums.row_scale.size);
    } else {
      visit_vector(p_, p_.sums.row_scale, "x_scale", visit_);
    }
    visit_vector(p_, p_.sums.column_scale, down ? "down_scale" : "gate_up_scale", visit_);
    visit_vector(p_, p_.sums.expert_scale, down ? "down_global_scale" : "gate_up_global_scale", visit_);
    visit_vector(p_, p_.sums.bias, down ? "down_bias" : "gate_up_bias", visit_);
  }

 private:
  const Params& p_;
  const MoeShape& s_;
  const RegionVisitor& visit_;
};

/// Bytes of a number of BiasType.
std::size_t bytes_of_bias(std::int32_t type) { return type == device::kBiasF32 ? 4 : 2; }

}  // namespace

void for_each_pointer(const device::ExpertSortParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.pairs(p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type));
  table.pairs(p.topk_weights, "topk_weights", bytes_of_bias(p.topk_weights.type));
  table.routed(Access::write);
  table.part(p.counts, "chunk_counts", Access::write, p.chunks > 1 ? std::int64_t{p.chunks} * p.shape.num_experts : 0);
}

void for_each_pointer(const device::ExpertUpParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  const std::int64_t rows = p.shape.pairs(), values = rows * p.shape.intermediate;
  table.routed(Access::read);
  table.operand(p.a);
  table.operand(p.b);
  table.sums(false, false);
  table.numbers(p.h, device::kExpertH, p.h_type, Access::write, values);
  table.numbers(p.dh, device::kExpertDh, device::kNumberF32, Access::write, p.gradient != 0 ? values : 0);
  table.numbers(p.dproducts, device::kExpertDproducts, p.h_type, Access::write,
                p.gradient != 0 ? rows * p.gate_up_rows : 0);
}

void for_each_pointer(const device::ExpertRowsParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  const bool down = p.b.role == device::kExpertDown || p.b.role == device::kExpertDownBack;
  table.routed(Access::read);
  table.operand(p.a);
  table.operand(p.b);
  table.sums(down, p.a.role == device::kExpertHElements && p.sums.row_scale.given != 0);
  table.numbers(p.out, p.out_role, p.out_type, Access::write, p.shape.pairs() * p.columns);
}

void for_each_pointer(const device::ExpertDwParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.routed(Access::read);
  table.weighed_operand(p.a);
  table.weighed_operand(p.b);
  visit_pointer(p, p.out,
                {.name = name_of(p.out_role),
                 .access = Access::write,
                 .element_bytes = bytes_of_number(p.out_type),
                 .outer = {{{p.shape.num_experts, p.expert_stride}, {p.rows, p.row_stride}}},
                 .rank = 2,
                 .row = p.columns},
                visit);
}

void for_each_pointer(const device::ExpertDbiasParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.routed(Access::read);
  if (in_workspace(p.from_role)) {
    table.numbers(p.from, p.from_role, p.from_type, Access::read, p.shape.pairs() * p.columns);
  } else {
    table.matrix(p.from, name_of(p.from_role), Access::read, bytes_of_number(p.from_type),
                 {p.shape.tokens, p.from_stride}, {p.columns, 1});
  }
  table.matrix(p.out, name_of(p.out_role), Access::write, bytes_of_number(p.out_type),
               {p.shape.num_experts, p.expert_stride}, {p.columns, p.stride});
}

void for_each_pointer(const device::ExpertDweightsParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.routed(Access::read);
  table.part(p.terms, "dh", Access::read, std::int64_t{p.shape.pairs()} * p.shape.intermediate);
  table.matrix(p.dout, "dout", Access::read, bytes_of_bias(p.dout_type),
               {p.bias.given != 0 ? p.shape.tokens : 0, p.dout_stride}, {p.shape.hidden, 1});
  visit_vector(p, p.bias, "down_bias", visit);
  table.matrix(p.out, "dtopk_weights", Access::write, bytes_of_bias(p.out_type), {p.shape.tokens, p.token_stride},
               {p.shape.top_k, p.slot_stride});
}

void for_each_pointer(const device::ExpertNormParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.routed(Access::read);
  table.part(p.parts, "parts", Access::read, std::int64_t{p.shape.pairs()} * p.shape.hidden);
  table.part(p.factors, "row_factors", Access::write, 2 * std::int64_t{p.shape.pairs()});
}

void for_each_pointer(const device::ExpertCombineParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.pairs(p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type));
  table.routed(Access::read);
  table.numbers(p.parts, p.part_role, p.part_type, Access::read, std::int64_t{p.shape.pairs()} * p.shape.hidden);
  table.part(p.factors, "row_factors", Access::read, p.norm.given != 0 ? 2 * std::int64_t{p.shape.pairs()} : 0);
  visit_vector(p, p.norm, "norm_weight", visit);
  visit_pointer(p, p.out,
                {.name = name_of(p.out_role),
                 .access = Access::write,
                 .element_bytes = bytes_of_number(p.out_type),
                 .outer = {{{p.shape.tokens, p.out_stride}}},
                 .rank = 1,
                 .row = p.shape.hidden},
                visit);
}

void for_each_pointer_of_h(const device::QuantizeParams& p, const RegionVisitor& visit) {
  const device::QuantizeShape& s = p.shape;
  const auto part = [&](auto* const& member, std::string_view name, Access access, std::size_t bytes,
                        std::int64_t elements) {
    Region region{.name = name, .workspace = true, .access = access, .element_bytes = bytes};
    region.row = elements;
    visit_pointer(p, member, region, visit);
  };
  const std::int64_t blocks = core::ceil_div(s.columns, std::max<std::int64_t>(s.block_columns, 1));
  part(p.numbers.data, "h", Access::read, sizeof(float), s.rows * s.columns);
  part(p.elements.data, "h_elements", Access::write, 1, s.rows * s.columns);
  part(p.scales.data, "h_scales", Access::write, s.scale_type == device::kScaleF32 ? sizeof(float) : 1,
       s.rows * blocks);
  part(p.whole.data, "h_whole", Access::read, sizeof(float), 0);
}

}  // namespace tilewise::backends::portable
