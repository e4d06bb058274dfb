// A hash table of single-linked lists that are only ever pushed to.
#include "backends/portable/kernel_memo.hpp"

#include <utility>

namespace tilewise::backends::portable {
namespace {

/// Fields that tell most kernels apart; equality is decided by the whole key.
std::size_t bucket_of(const KernelKey& key, std::size_t buckets) {
  const device::KernelConfig& c = key.config;
  std::uint64_t hash = static_cast<std::uint64_t>(key.kind);
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  };
  for (const std::int32_t value :
       {c.element, c.head_dim, c.head_dim_v, c.waves, c.rows_per_wave, c.tile_cols, c.stages, c.bias_type}) {
    mix(value);
  }
  for (const bool value : {c.rows_in_registers, c.vector_rows, c.exact_dims, c.plain_scale, c.ranged, c.softcap,
                           c.alibi, c.sink, c.dropout, c.packed_heads, c.split}) {
    mix(value);
  }
  return static_cast<std::size_t>(hash >> 32) % buckets;
}

}  // namespace

struct KernelMemo::Node {
  KnownKernel kernel;
  const Node* next;
};

KernelMemo::~KernelMemo() {
  for (const auto& bucket : buckets_) {
    for (const Node* node = bucket.load(std::memory_order_acquire); node != nullptr;) {
      delete std::exchange(node, node->next);
    }
  }
}

const KnownKernel* KernelMemo::find(const KernelKey& key, std::uint32_t shared_bytes) const {
  const auto& bucket = buckets_[bucket_of(key, kBuckets)];
  for (const Node* node = bucket.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    if (node->kernel.key == key && node->kernel.shared_bytes >= shared_bytes) return &node->kernel;
  }
  return nullptr;
}

const KnownKernel& KernelMemo::insert(KnownKernel kernel) {
  auto& bucket = buckets_[bucket_of(kernel.key, kBuckets)];
  auto* node = new Node{std::move(kernel), bucket.load(std::memory_order_acquire)};
  while (!bucket.compare_exchange_weak(node->next, node, std::memory_order_acq_rel)) {
  }
  return node->kernel;
}

}  // namespace tilewise::backends::portable
