// Selected keys of one query; see selected_keys.hpp.
#include "backends/cpu/selected_keys.hpp"

#include <algorithm>
#include <cstring>

#include "core/ceil_div.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kPlacesBeyond = 64;   // a kernel's vectors end within them
constexpr std::int64_t kFewestMembers = 16;  // gathering keys for fewer costs more than it saves

}  // namespace

SeenKeys seen_keys(const device::IndexTensor& indices, const device::KeyRange& keys, std::int64_t batch,
                   std::int64_t row, std::int64_t head_k) {
  auto* places = static_cast<std::int32_t*>(thread_memory(
      ThreadMemory::places, static_cast<std::size_t>(indices.count + kPlacesBeyond) * sizeof(std::int32_t)));
  std::int32_t count = 0;
  device::for_each_seen_key(indices, keys, batch, row, head_k,
                            [&](std::int64_t key) { places[count++] = static_cast<std::int32_t>(key); });
  std::fill_n(places + count, kPlacesBeyond, 0);
  return {places, count};
}

void show_seen_keys(const SeenKeys& seen, RowInfo* rows, ForwardTile& tile) {
  for (std::int32_t r = 0; r < tile.num_rows; ++r) {
    rows[r].key_begin = 0;
    rows[r].key_end = seen.count;
  }
  tile.seqlen_k = tile.key_end = seen.count;
  tile.key_begin = 0;
  tile.score.places = seen.places;
}

std::int64_t members_a_task(std::int64_t group, std::int64_t most, std::int64_t other_tasks, int workers) {
  std::int64_t members = std::min(group, most);
  while (members >= 2 * kFewestMembers && other_tasks * core::ceil_div(group, members) < 2 * std::int64_t{workers})
    members = core::ceil_div(members, 2);
  return members;
}

StridedGatherer::StridedGatherer(ForwardTile& tile, const SeenKeys& seen, std::int64_t block_keys, std::size_t element)
    : KeyGatherer{&fill_block},
      places_(seen.places),
      k_(static_cast<const std::byte*>(tile.k)),
      v_(static_cast<const std::byte*>(tile.v)),
      k_step_(tile.k_stride * static_cast<std::int64_t>(element)),
      v_step_(tile.v_stride * static_cast<std::int64_t>(element)),
      k_bytes_(static_cast<std::size_t>(tile.head_dim) * element),
      v_bytes_(static_cast<std::size_t>(tile.head_dim_v) * element),
      k_to_(static_cast<std::byte*>(
          thread_memory(ThreadMemory::gathered, static_cast<std::size_t>(block_keys) * (k_bytes_ + v_bytes_)))),
      v_to_(k_to_ + static_cast<std::size_t>(block_keys) * k_bytes_) {
  tile.k = k_to_;
  tile.v = v_to_;
  tile.k_stride = tile.head_dim;
  tile.v_stride = tile.head_dim_v;
  tile.gatherer = this;
}

void StridedGatherer::fill_block(const KeyGatherer& gatherer, std::int64_t first, std::int64_t count) {
  const auto& g = static_cast<const StridedGatherer&>(gatherer);
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t place = g.places_[first + n];
    const auto row = static_cast<std::size_t>(n);
    std::memcpy(g.k_to_ + row * g.k_bytes_, g.k_ + place * g.k_step_, g.k_bytes_);
    std::memcpy(g.v_to_ + row * g.v_bytes_, g.v_ + place * g.v_step_, g.v_bytes_);
  }
}

}  // namespace tilewise::backends::cpu
