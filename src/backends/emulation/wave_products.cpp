// Operands by wgmma's descriptors and register layouts, exact products, sums in fp32 in order of K; those of
// bytes keep fewer bits (narrow_sum.hpp).
#include "backends/emulation/wave_products.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "backends/emulation/host_tensor_map.hpp"
#include "backends/emulation/narrow_sum.hpp"
#include "backends/emulation/operand_layout.hpp"
#include "core/message.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"

namespace tilewise::backends::emulation {

using core::concat;

namespace {

/// What registers hold that are the matrix unit's: a signalling NaN, which no arithmetic leaves as it is.
constexpr std::uint32_t kPoison = 0x7FA5A5A5u;

/// A descriptor's fields, as the PTX manual places them.
struct TilePlace {
  std::int64_t start, leading_bytes, stride_bytes;
  std::uint64_t base_offset, swizzle;

  explicit TilePlace(std::uint64_t bits)
      : start(static_cast<std::int64_t>(bits & 0x3FFF) << 4),
        leading_bytes(static_cast<std::int64_t>(bits >> 16 & 0x3FFF) << 4),
        stride_bytes(static_cast<std::int64_t>(bits >> 32 & 0x3FFF) << 4),
        base_offset(bits >> 49 & 7),
        swizzle(bits >> 62) {}
};
constexpr std::uint64_t kSwizzle128 = 1;

float to_float(std::int32_t element, std::uint16_t bits) {
  if (element == device::kE4m3) return device::e4m3_to_float(static_cast<std::uint8_t>(bits));
  return element == device::kBf16 ? device::bf16_to_float(bits) : device::f16_to_float(bits);
}

std::size_t bytes_of(std::int32_t element) { return element == device::kE4m3 ? 1 : 2; }
/// How deep one product goes.
std::size_t depth_of(std::int32_t element) { return 32 / bytes_of(element); }

}  // namespace

void WaveProducts::begin_block() {
  queue_.clear();
  held_.clear();
  known_.reset();
  computed_ = 0;
  group_ = 0;
  fenced_ = false;
}

std::string WaveProducts::take_sums(const Lanes& lanes, std::shared_ptr<Sums>& sums) {
  for (const std::shared_ptr<Sums>& held : held_) {
    if (held->registers[0] == lanes[0]->d) sums = held;
  }
  const auto columns = static_cast<std::size_t>(lanes[0]->columns);
  if (sums) {
    if (sums->columns != columns) return "products of two widths share registers";
    return {};
  }
  if (!fenced_) return "begins a product on registers that no wgmma_fence() was for";
  sums = std::make_shared<Sums>();
  sums->columns = columns;
  sums->users = 0;
  sums->value.resize(kRows * columns);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    sums->registers[lane] = lanes[lane]->d;
    for (std::size_t i = 0; i < columns / 2; ++i) {
      const ProductPlace p = MmaM16N8K16::d(static_cast<int>(lane), static_cast<int>(i % 4));
      float& held = lanes[lane]->d[i];
      sums->value[static_cast<std::size_t>(p.m) * columns + i / 4 * 8 + static_cast<std::size_t>(p.n)] = held;
      held = std::bit_cast<float>(kPoison);
    }
  }
  held_.push_back(sums);
  return {};
}

std::string WaveProducts::begin(const Lanes& lanes) {
  const device::HostProduct& first = *lanes[0];
  for (const device::HostProduct* lane : lanes) {
    if (lane->columns != first.columns || lane->b_tile != first.b_tile || lane->a_tile != first.a_tile ||
        lane->accumulate != first.accumulate || lane->element != first.element) {
      return "lanes of a wave disagree on what wgmma multiplies";
    }
  }
  if (!known_ || known_->seen != knowledge_.of(wave_ * Actors::kWaveLanes).seen ||
      known_->visible != knowledge_.of(wave_ * Actors::kWaveLanes).visible) {
    known_ = std::make_shared<const Clock>(knowledge_.of(wave_ * Actors::kWaveLanes));
  }
  Product product{{}, {}, known_, group_};
  if (std::string fault = take_sums(lanes, product.sums); !fault.empty()) return fault;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) product.lanes[lane] = *lanes[lane];
  ++product.sums->users;
  queue_.push_back(std::move(product));
  return {};
}

void WaveProducts::commit() {
  ++group_;
  fenced_ = false;
}

std::string WaveProducts::wait(std::int32_t pending) {
  if (!queue_.empty() && group_ - queue_.front().group > static_cast<std::int32_t>(Actors::kProductGroups)) {
    return concat("has more than ", Actors::kProductGroups, " groups of products under way, which is not emulated");
  }
  while (!queue_.empty() && queue_.front().group < group_ - pending) {
    if (computed_ == 0) {
      if (std::string fault = compute_next(); !fault.empty()) return fault;
    }
    const Product product = std::move(queue_.front());
    queue_.pop_front();
    --computed_;
    const Time now = knowledge_.pass();
    for (std::size_t lane = 0; lane < Actors::kWaveLanes; ++lane) {
      const auto group = static_cast<std::size_t>(product.group);
      knowledge_.of(wave_ * Actors::kWaveLanes + lane).seen[knowledge_.actors().products(wave_, group)] = now;
    }
    if (--product.sums->users == 0) {
      if (std::string fault = give_back(*product.sums); !fault.empty()) return fault;
      std::erase(held_, product.sums);
    }
  }
  return {};
}

std::string WaveProducts::give_back(Sums& sums) {
  for (std::size_t lane = 0; lane < Actors::kWaveLanes; ++lane) {
    for (std::size_t i = 0; i < sums.columns / 2; ++i) {
      float& held = sums.registers[lane][i];
      if (std::bit_cast<std::uint32_t>(held) != kPoison) {
        return concat("register ", i, " of lane ", lane, " was written while it was the matrix unit's");
      }
      const ProductPlace p = MmaM16N8K16::d(static_cast<int>(lane), static_cast<int>(i % 4));
      held = sums.value[static_cast<std::size_t>(p.m) * sums.columns + i / 4 * 8 + static_cast<std::size_t>(p.n)];
    }
  }
  return {};
}

std::string WaveProducts::compute_next() {
  const std::size_t next = computed_++;
  return compute(queue_[next]);
}

std::string WaveProducts::load_piece(const Product& product, bool left, std::size_t row, std::size_t piece,
                                     float (&to)[kPieceBytes]) {
  const TilePlace place(left ? product.lanes[0].a_tile : product.lanes[0].b_tile);
  const bool mn_major = left ? product.lanes[0].a_mn_major : product.lanes[0].b_mn_major;
  if (place.swizzle != kSwizzle128 || place.base_offset != 0) {
    return "multiplies a tile of another swizzle than 128 bytes, which is not emulated";
  }
  // Rows of 128 bytes, 8 to a pattern. K-major, a row is one of M or N; MN-major, one step of K, whose
  // 64 columns are followed by those of the next chunk.
  const auto r = static_cast<std::int64_t>(row), p = static_cast<std::int64_t>(piece);
  std::int64_t at = place.start + r % 8 * 128 + r / 8 * place.stride_bytes;
  at += mn_major ? p / 8 * place.leading_bytes + p % 8 * 16 : p * 16;
  at = swizzled(gpu::Swizzle::bytes128, at);
  std::uint8_t bits[kPieceBytes];
  const device::HostProduct& lane = product.lanes[0];
  if (mn_major && bytes_of(lane.element) != 2) return "multiplies bytes across their rows, which wgmma cannot";
  // A row of the left tile that is nobody's makes a row of sums that is nobody's; a step of K meets all.
  const bool counts = lane.wanted && (memory_.is_written(at) || !left || mn_major);
  if (counts) {
    const std::size_t leader = knowledge_.actors().lane(wave_ * Actors::kWaveLanes);
    const std::size_t actor = knowledge_.actors().products(wave_, static_cast<std::size_t>(product.group));
    std::string fault =
        memory_.load({actor, leader, product.known.get(), true}, knowledge_.now(), bits, at, sizeof bits);
    if (!fault.empty()) return concat("a product ", fault);
  } else {
    std::ranges::fill(bits, std::uint8_t{0xFF});
  }
  const std::size_t bytes = bytes_of(lane.element);
  for (std::size_t i = 0; i < kPieceBytes / bytes; ++i) {
    std::uint16_t element = bits[i * bytes];
    if (bytes == 2) element = static_cast<std::uint16_t>(element | bits[2 * i + 1] << 8);
    to[i] = to_float(lane.element, element);
  }
  return {};
}

std::string WaveProducts::load_left(const Product& product, float (&a)[kRows][kMostDepth]) {
  const device::HostProduct& first = product.lanes[0];
  if (first.a_registers != nullptr) {
    for (std::size_t lane = 0; lane < Actors::kWaveLanes; ++lane) {
      for (int word = 0; word < MmaM16N8K16::kWordsA; ++word) {
        const std::uint32_t bits = product.lanes[lane].a_registers[word];
        const bool narrow = first.element == device::kE4m3;
        for (int part = 0; part < (narrow ? 4 : 2); ++part) {
          const OperandPlace p = narrow ? MmaM16N8K32::a(static_cast<int>(lane), word, part)
                                        : MmaM16N8K16::a(static_cast<int>(lane), word, part);
          const std::uint32_t element = narrow ? bits >> (8 * part) & 0xFFu : bits >> (16 * part);
          a[p.index][p.k] = to_float(first.element, static_cast<std::uint16_t>(element));
        }
      }
    }
    return {};
  }
  const std::size_t count = kPieceBytes / bytes_of(first.element), own = wave_ % 4;  // of 64 rows the wave's 16
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t piece = 0; piece < 2; ++piece) {
      float part[kPieceBytes];
      std::string fault = first.a_mn_major ? load_piece(product, true, row, 2 * own + piece, part)
                                           : load_piece(product, true, kRows * own + row, piece, part);
      if (!fault.empty()) return fault;
      for (std::size_t i = 0; i < count; ++i)
        (first.a_mn_major ? a[count * piece + i][row] : a[row][count * piece + i]) = part[i];
    }
  }
  return {};
}

std::string WaveProducts::load_right(const Product& product, float (&b)[kMostDepth][kMostColumns]) {
  const device::HostProduct& first = product.lanes[0];
  const auto columns = static_cast<std::size_t>(first.columns);
  const std::size_t depth = depth_of(first.element), count = kPieceBytes / bytes_of(first.element);
  const std::size_t rows = first.b_mn_major ? depth : columns, pieces = (first.b_mn_major ? columns : depth) / count;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      float part[kPieceBytes];
      if (std::string fault = load_piece(product, false, row, piece, part); !fault.empty()) {
        return fault;
      }
      for (std::size_t i = 0; i < count; ++i) {
        (first.b_mn_major ? b[row][count * piece + i] : b[count * piece + i][row]) = part[i];
      }
    }
  }
  return {};
}

std::string WaveProducts::compute(const Product& product) {
  float a[kRows][kMostDepth];
  static thread_local float b[kMostDepth][kMostColumns];
  if (std::string fault = load_left(product, a); !fault.empty()) return fault;
  if (std::string fault = load_right(product, b); !fault.empty()) return fault;
  const std::size_t columns = product.sums->columns;
  float* const d = product.sums->value.data();
  if (!product.lanes[0].accumulate) std::fill_n(d, kRows * columns, 0.0f);
  if (product.lanes[0].element == device::kE4m3) {
    for (std::size_t i = 0; i < kRows * columns; ++i) {
      float term[kMostDepth];
      for (std::size_t k = 0; k < kMostDepth; ++k) term[k] = a[i / columns][k] * b[k][i % columns];
      d[i] = narrow_sum(d[i], term);
    }
    return {};
  }
  for (std::size_t m = 0; m < kRows; ++m) {
    for (std::size_t k = 0; k < depth_of(product.lanes[0].element); ++k) {
      for (std::size_t n = 0; n < columns; ++n) d[m * columns + n] += a[m][k] * b[k][n];
    }
  }
  return {};
}

}  // namespace tilewise::backends::emulation
