// Block masks of a mask_mod into arrays that the caller has allocated.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "core/message.hpp"
#include "tilewise/block_mask.hpp"

namespace tilewise::python {
namespace {

/// `outputs`: contiguous int32 of the sizes that BlockMask::tensors() says.
void write_block_mask(const std::string& mask_mod, const std::vector<Array>& tables, std::int64_t batch_size,
                      std::int64_t num_heads, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t block_rows,
                      std::int64_t block_keys, const std::vector<Array>& outputs) {
  BlockMaskArguments arguments{mask_mod, {}, batch_size, num_heads, seqlen_q, seqlen_k, block_rows, block_keys};
  for (const Array& table : tables) arguments.tables.push_back(table.view());
  const nb::gil_scoped_release release;
  const BlockMask mask(arguments);
  const std::vector<TensorView> made = mask.tensors();
  for (std::size_t i = 0; i < made.size(); ++i) {
    const TensorView& to = outputs.at(i).view();
    if (to.dtype != DType::i32 || to.numel() != made[i].numel()) {
      core::invalid_argument("outputs: must be ", describe(made[i]), " (got ", describe(to), ")");
    }
    if (made[i].numel() > 0) {
      std::memcpy(to.data, made[i].data, static_cast<std::size_t>(made[i].numel()) * sizeof(std::int32_t));
    }
  }
}

}  // namespace

void bind_block_mask(nb::module_& module) {
  module.def("write_block_mask", &write_block_mask, nb::arg("mask_mod"), nb::arg("tables"), nb::arg("batch_size"),
             nb::arg("num_heads"), nb::arg("seqlen_q"), nb::arg("seqlen_k"), nb::arg("block_rows"),
             nb::arg("block_keys"), nb::arg("outputs"),
             "Writes which blocks mask_mod leaves in part, and which ones whole: how many, and which. Sizes of 0: one "
             "for all.");
}

}  // namespace tilewise::python
