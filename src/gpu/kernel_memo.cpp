// A hash table of single-linked lists that are only ever pushed to.
#include "gpu/kernel_memo.hpp"

#include <functional>
#include <string>
#include <utility>

namespace tilewise::gpu {
namespace {

std::size_t bucket_of(const KernelKey& key, std::size_t buckets) {
  auto hash = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key.body));
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  };
  mix(static_cast<std::int64_t>(key.family));
  for (std::size_t i = 0; i < key.body->config_ints; ++i) mix(key.config[i]);
  mix(static_cast<std::int64_t>(std::hash<std::string>{}(key.definitions)));
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

const KnownKernel* KernelMemo::find(const KernelKey& key) const {
  const auto& bucket = buckets_[bucket_of(key, kBuckets)];
  for (const Node* node = bucket.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    if (node->kernel.key == key) return &node->kernel;
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

}  // namespace tilewise::gpu
