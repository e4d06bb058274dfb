// TMA's PTX for boxes of one to five dimensions, a struct for each rank. contract.h says what each call does.
#pragma once

#include "device/sm90/tensor_map.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Addresses of shared memory are those of the shared window. The box begins at x0 and on, the innermost dimension
/// first.
template <int kRank>
struct Tma;

#define TILEWISE_TMA_LIST(...) __VA_ARGS__
#define TILEWISE_TMA_LOAD(rank) "cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes"
// In loads the coordinates are operands from %3 on and `extra` is the one behind them, in stores from %2 on.
#define TILEWISE_DEFINE_TMA(rank, load_at, extra, store_at, x, ...)                                                 \
  template <>                                                                                                       \
  struct Tma<rank> {                                                                                                \
    TILEWISE_INLINE static void load(uint32_t to, const TensorMap& map, uint32_t landed, TILEWISE_TMA_LIST x) {     \
      asm volatile(TILEWISE_TMA_LOAD(rank) " [%0], [%1, {" load_at "}], [%2];" ::"r"(to), "l"(&map), "r"(landed),   \
                   __VA_ARGS__                                                                                      \
                   : "memory");                                                                                     \
    }                                                                                                               \
    TILEWISE_INLINE static void load_to_blocks(uint16_t blocks, uint32_t to, const TensorMap& map, uint32_t landed, \
                                               TILEWISE_TMA_LIST x) {                                               \
      asm volatile(TILEWISE_TMA_LOAD(rank) ".multicast::cluster [%0], [%1, {" load_at "}], [%2], " extra            \
                                           ";" ::"r"(to),                                                           \
                   "l"(&map), "r"(landed), __VA_ARGS__, "h"(blocks)                                                 \
                   : "memory");                                                                                     \
    }                                                                                                               \
    TILEWISE_INLINE static void load_by_policy(uint64_t policy, uint32_t to, const TensorMap& map, uint32_t landed, \
                                               TILEWISE_TMA_LIST x) {                                               \
      asm volatile(TILEWISE_TMA_LOAD(rank) ".L2::cache_hint [%0], [%1, {" load_at "}], [%2], " extra ";" ::"r"(to), \
                   "l"(&map), "r"(landed), __VA_ARGS__, "l"(policy)                                                 \
                   : "memory");                                                                                     \
    }                                                                                                               \
    TILEWISE_INLINE static void store(const TensorMap& map, uint32_t from, TILEWISE_TMA_LIST x) {                   \
      asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.bulk_group [%0, {" store_at                  \
                   "}], [%1];" ::"l"(&map),                                                                         \
                   "r"(from), __VA_ARGS__                                                                           \
                   : "memory");                                                                                     \
    }                                                                                                               \
  };

TILEWISE_DEFINE_TMA(1, "%3", "%4", "%2", (int32_t x0), "r"(x0))
TILEWISE_DEFINE_TMA(2, "%3, %4", "%5", "%2, %3", (int32_t x0, int32_t x1), "r"(x0), "r"(x1))
TILEWISE_DEFINE_TMA(3, "%3, %4, %5", "%6", "%2, %3, %4", (int32_t x0, int32_t x1, int32_t x2), "r"(x0), "r"(x1),
                    "r"(x2))
TILEWISE_DEFINE_TMA(4, "%3, %4, %5, %6", "%7", "%2, %3, %4, %5", (int32_t x0, int32_t x1, int32_t x2, int32_t x3),
                    "r"(x0), "r"(x1), "r"(x2), "r"(x3))
TILEWISE_DEFINE_TMA(5, "%3, %4, %5, %6, %7", "%8", "%2, %3, %4, %5, %6",
                    (int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4), "r"(x0), "r"(x1), "r"(x2), "r"(x3),
                    "r"(x4))
#undef TILEWISE_DEFINE_TMA
#undef TILEWISE_TMA_LOAD
#undef TILEWISE_TMA_LIST

}  // namespace tilewise::device
