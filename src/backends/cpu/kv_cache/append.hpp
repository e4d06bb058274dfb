// Appending to a cache on the CPU: rotate, quantise and store each new token's rows, tokens in parallel.
#pragma once

#include "operations/kv_cache/params.hpp"

namespace tilewise::backends::cpu {

void append_keys(const operations::kv_cache::KvCacheParams& params);

/// `count` pairs of a row of f32, rotated to a position: sums of products in fp64, rounded once to fp32.
void rotate_row(const operations::kv_cache::RotaryTables& tables, std::int64_t position, float* row);

/// `size` elements of f32, bf16 or f16 as f32 and back, rounded to nearest even.
void load_row(DType dtype, const void* from, std::int64_t size, float* to);
void store_row(DType dtype, const float* from, std::int64_t size, void* to);

}  // namespace tilewise::backends::cpu
