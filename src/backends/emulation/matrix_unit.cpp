// Matrix instructions: gathers the operands by their layout tables, multiplies, scatters the product.
#include "backends/emulation/matrix_unit.hpp"

#include "backends/emulation/operand_layout.hpp"
#include "core/message.hpp"
#include "device/common/float16.h"
#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/common/float8_e8m0.h"
#include "device/common/float8_fnuz.h"
#include "device/common/tensors.h"

namespace tilewise::backends::emulation {
namespace {

float element_to_float(std::int32_t element, std::uint32_t bits) {
  if (element == device::kE4m3) return device::fnuz_to_float(static_cast<std::uint8_t>(bits));
  const auto half = static_cast<std::uint16_t>(bits);
  return element == device::kBf16 ? device::bf16_to_float(half) : device::f16_to_float(half);
}

/// Fills to[index][k] for all lanes; `place` is the operand's table. False where lanes that hold the same
/// element disagree, `clash` is the later one then.
template <int kRows, int kK, int kWords, class Words, class PlaceOf>
bool gather(std::span<const MultiplyArguments* const> lanes, float (&to)[kRows][kK], const Words& words,
            const PlaceOf& place, std::size_t& clash) {
  const int parts = lanes[0]->element == device::kE4m3 ? 4 : 2, bits_each = 32 / parts;
  std::uint16_t held[kRows][kK];
  bool known[kRows][kK] = {};
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (int word = 0; word < kWords; ++word) {
      for (int part = 0; part < parts; ++part) {
        const OperandPlace p = place(static_cast<int>(lane), word, part);
        const auto bits = static_cast<std::uint16_t>(words(*lanes[lane])[word] >> (bits_each * part));
        if (known[p.index][p.k] && held[p.index][p.k] != bits) {
          clash = lane;
          return false;
        }
        known[p.index][p.k] = true;
        held[p.index][p.k] = bits;
        to[p.index][p.k] = element_to_float(lanes[lane]->element, bits);
      }
    }
  }
  return true;
}

template <class I>
std::string multiply_by(std::span<const MultiplyArguments* const> lanes) {
  float a[I::kM][I::kK], b[I::kN][I::kK], transposed[I::kK][I::kN], d[I::kM][I::kN];
  std::size_t clash = 0;
  const bool a_agrees =
      gather<I::kM, I::kK, I::kWordsA>(lanes, a, [](const MultiplyArguments& l) { return l.a; }, &I::a, clash);
  const bool b_agrees = !a_agrees || gather<I::kN, I::kK, I::kWordsB>(
                                         lanes, b, [](const MultiplyArguments& l) { return l.b; }, &I::b, clash);
  if (!a_agrees || !b_agrees) {
    return core::concat("operand ", a_agrees ? "B" : "A", " of a matrix instruction differs between lane ", clash,
                        " and the lane it must repeat");
  }
  for (int n = 0; n < I::kN; ++n)
    for (int k = 0; k < I::kK; ++k) transposed[k][n] = b[n][k];
  const auto for_each_accumulator = [&](const auto& visit) {
    for (int lane = 0; lane < I::kLanes; ++lane)
      for (int i = 0; i < I::kAccumulators; ++i) visit(lanes[static_cast<std::size_t>(lane)]->d[i], I::d(lane, i));
  };
  for_each_accumulator([&](const float& held, ProductPlace p) { d[p.m][p.n] = held; });
  for (int m = 0; m < I::kM; ++m)
    for (int k = 0; k < I::kK; ++k)
      for (int n = 0; n < I::kN; ++n) d[m][n] += a[m][k] * transposed[k][n];
  for_each_accumulator([&](float& held, ProductPlace p) { held = d[p.m][p.n]; });
  return {};
}

/// Every number times its lane's scale, as a whole: what the scales leave of a product need not fit a float before the
/// other side's are met.
template <bool kFours>
std::string multiply_scaled(std::span<const MultiplyArguments* const> lanes) {
  using I = MfmaScaled32x32x64<kFours>;
  double a[I::kM][I::kK], b[I::kN][I::kK], of_a[I::kM][I::kK / 32], of_b[I::kN][I::kK / 32];
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const int number = static_cast<int>(lane);
    const std::uint32_t *const left = lanes[lane]->a, *const right = lanes[lane]->b;
    const OperandPlace s = I::scale(number);
    of_a[s.index][s.k] = double{device::e8m0_to_float(static_cast<std::uint8_t>(left[I::kScaleWord]))};
    of_b[s.index][s.k] = double{device::e8m0_to_float(static_cast<std::uint8_t>(right[I::kScaleWord]))};
    for (int word = 0; word < I::kWordsA; ++word) {
      for (int part = 0; part < (kFours ? 8 : 4); ++part) {
        const OperandPlace p = I::a(number, word, part);
        const auto bits = static_cast<std::uint8_t>(left[word] >> (kFours ? 4 * part : 8 * part));
        a[p.index][p.k] = double{kFours ? device::e2m1_to_float(bits & 15) : device::e4m3_to_float(bits)};
      }
    }
    for (int word = 0; word < I::kWordsB; ++word) {
      for (int part = 0; part < 4; ++part) {
        const OperandPlace p = I::b(number, word, part);
        b[p.index][p.k] = double{device::e4m3_to_float(static_cast<std::uint8_t>(right[word] >> (8 * part)))};
      }
    }
  }
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (int i = 0; i < I::kAccumulators; ++i) {
      const ProductPlace p = I::d(static_cast<int>(lane), i);
      float& d = lanes[lane]->d[i];
      for (int k = 0; k < I::kK; ++k)
        d = static_cast<float>(double{d} + a[p.m][k] * of_a[p.m][k / 32] * b[p.n][k] * of_b[p.n][k / 32]);
    }
  }
  return {};
}

}  // namespace

std::string multiply(std::span<const MultiplyArguments* const> lanes) {
  for (const MultiplyArguments* lane : lanes) {
    if (lane->element != lanes[0]->element) return "lanes of a matrix instruction disagree on the element type";
  }
  switch (lanes[0]->matrix) {
    case device::HostMatrix::kMmaM16N8K16:
      return multiply_by<MmaM16N8K16>(lanes);
    case device::HostMatrix::kMfma32x32x16:
      return multiply_by<Mfma32x32x16>(lanes);
    case device::HostMatrix::kMfma32x32x16Fp8:
      return multiply_by<Mfma32x32x16Fp8>(lanes);
    case device::HostMatrix::kMfmaScaled32x32x64:
      return multiply_scaled<false>(lanes);
    case device::HostMatrix::kMfmaScaled32x32x64Fours:
      return multiply_scaled<true>(lanes);
    case device::HostMatrix::kWmma16x16x16:
      return multiply_by<Wmma16x16x16>(lanes);
    case device::HostMatrix::kWmma16x16x16Halves:
      return multiply_by<Wmma16x16x16Halves>(lanes);
    case device::HostMatrix::kWmma16x16x32:
      return multiply_by<Wmma16x16x32>(lanes);
  }
  return "no such matrix instruction";
}

void distribute_matrices(const std::uint16_t (&rows)[32][8], bool transposed, std::span<std::uint32_t* const> to) {
  for (std::size_t lane = 0; lane < to.size(); ++lane) {
    const std::size_t group = lane / 4, pair = 2 * (lane % 4);
    for (std::size_t m = 0; m < 4; ++m) {
      const std::uint32_t low = transposed ? rows[8 * m + pair][group] : rows[8 * m + group][pair];
      const std::uint32_t high = transposed ? rows[8 * m + pair + 1][group] : rows[8 * m + group][pair + 1];
      to[lane][m] = low | high << 16;
    }
  }
}

}  // namespace tilewise::backends::emulation
