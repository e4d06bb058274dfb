// Small KV cache calls that own their memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "core/select.hpp"
#include "expect_error.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::test {

/// Rows that run on the host. Emulations compile a kernel for nearly every problem: tests/emulation has a few of each.
inline std::vector<std::string> kv_cache_rows() {
  constexpr const KvCacheProblem* kTag = nullptr;
  std::vector<std::string> names;
  for (const core::Implementation* row : core::implementation_table())
    if (&row->operation() == &operation_of(kTag) && row->device() == DeviceType::cpu &&
        !row->name().starts_with("emulation."))
      names.emplace_back(row->name());
  return names;
}

/// A call on 2 sequences, 4 heads on 2, head_dim 8: 3 pages of 4 places a sequence at most, 8 pages; one new key each.
class SmallStep {
 public:
  explicit SmallStep(DType dtype = DType::f32, DType cache_dtype = DType::none, Device device = {}) : device_(device) {
    const DType cache = cache_dtype == DType::none ? dtype : cache_dtype;
    arguments.q = tensor({2, 1, 4, 8}, dtype);
    arguments.k_cache = tensor({8, 4, 2, 8}, cache);
    arguments.v_cache = tensor({8, 4, 2, 8}, cache);
    arguments.k = tensor({2, 1, 2, 8}, dtype);
    arguments.v = tensor({2, 1, 2, 8}, dtype);
    arguments.out = tensor({2, 1, 4, 8}, dtype);
    arguments.softmax_lse = tensor({2, 4, 1}, DType::f32);
    // Caches are 0: whatever is appended shows.
    for (const TensorView* view : {&arguments.q, &arguments.k, &arguments.v})
      std::memset(view->data, 0x3E, static_cast<std::size_t>(view->numel()) * size_of(dtype));
    arguments.options.cache_seqlens = lengths({5, 0});
    arguments.options.block_table = lengths({3, 6, -1, 1, -7, 99});
    arguments.options.block_table.rank = 2;
    arguments.options.block_table.shape = {2, 3};
    arguments.options.block_table.strides = {3, 1};
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape, device_);
    memory_.emplace_back(static_cast<std::size_t>(view.numel()) + 2);  // aligned to 16 by the allocator
    view.data = memory_.back().data();
    return view;
  }
  TensorView lengths(const std::vector<std::int32_t>& values) {
    const TensorView view = tensor({static_cast<std::int64_t>(values.size())}, DType::i32);
    std::memcpy(view.data, values.data(), values.size() * sizeof(std::int32_t));
    return view;
  }
  /// One slot for each sequence's new token.
  TensorView slots(const std::vector<std::int64_t>& values, DType dtype = DType::i64) {
    const TensorView view = tensor({static_cast<std::int64_t>(values.size()), 1}, dtype);
    for (std::size_t n = 0; n < values.size(); ++n) {
      if (dtype == DType::i64) static_cast<std::int64_t*>(view.data)[n] = values[n];
      if (dtype == DType::i32) static_cast<std::int32_t*>(view.data)[n] = static_cast<std::int32_t>(values[n]);
    }
    return view;
  }
  /// append_kv on the same tensors.
  [[nodiscard]] AppendKvArguments append() const {
    return {arguments.k_cache, arguments.v_cache, arguments.k, arguments.v, arguments.options};
  }
  void run(const SelectOptions& select = {}) const { kv_cache_attention(arguments, select); }
  /// All that the call's tensors hold.
  [[nodiscard]] const std::deque<std::vector<std::uint64_t>>& memory() const { return memory_; }

  KvCacheArguments arguments;

 private:
  Device device_;
  std::deque<std::vector<std::uint64_t>> memory_;
};

}  // namespace tilewise::test
