// Whether kernels may move rows 16 bytes at a time.
#pragma once

#include <cstdint>

#include "device/common/tensors.h"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::portable {

/// Whether every row of a tensor starts on 16 bytes, and those of parts that lie `part_stride` elements apart too.
[[nodiscard]] inline bool rows_start_on_16_bytes(const device::Tensor4& t, DType dtype, std::int64_t part_stride = 0) {
  if (t.data == nullptr) return true;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto fine = [size](std::int64_t stride) { return stride * size % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && fine(t.batch_stride) && fine(t.seq_stride) &&
         fine(t.head_stride) && fine(part_stride);
}

}  // namespace tilewise::backends::portable
