// The layout tables of matrix instructions against the vendors' published ones, written down here in the
// direction those give them, and each instruction's arithmetic on the registers of a wave.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "backends/emulation/matrix_unit.hpp"
#include "backends/emulation/operand_layout.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"
#include "verify/random.hpp"

namespace tilewise::test {
namespace {

using namespace backends::emulation;

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": element i of a lane's registers,
// two to a word.
TEST(Layout, MmaM16N8K16IsThatOfThePtxManual) {
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const OperandPlace a = MmaM16N8K16::a(lane, i / 2, i % 2);
      EXPECT_EQ(a.index, (i < 2) || (i >= 4 && i < 6) ? group : group + 8);
      EXPECT_EQ(a.k, i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
    }
    for (int i = 0; i < 4; ++i) {
      const OperandPlace b = MmaM16N8K16::b(lane, i / 2, i % 2);
      EXPECT_EQ(b.k, i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
      EXPECT_EQ(b.index, group);
      const ProductPlace d = MmaM16N8K16::d(lane, i);
      EXPECT_EQ(d.m, i < 2 ? group : group + 8);
      EXPECT_EQ(d.n, in_group * 2 + (i & 1));
    }
  }
}

// PTX ISA, "Matrix Fragments for mma.m16n8k32", which are those of wgmma's m64nNk32 with A in registers: four bytes to
// a word.
TEST(Layout, MmaM16N8K32IsThatOfThePtxManual) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) {
      const OperandPlace a = MmaM16N8K32::a(lane, i / 4, i % 4);
      EXPECT_EQ(a.index, (i < 4) || (i >= 8 && i < 12) ? lane >> 2 : (lane >> 2) + 8);
      EXPECT_EQ(a.k, i < 8 ? lane % 4 * 4 + (i & 3) : lane % 4 * 4 + (i & 3) + 16);
    }
  }
}

// AMD's matrix instruction calculator, v_mfma_f32_32x32x8f16 and v_mfma_f32_32x32x8bf16_1k: where A[i][k], B[k][j] and
// D[i][j] live. The second instruction of a pair continues at k = 8 and word 2.
TEST(Layout, Mfma32x32x8IsThatOfAmdsCalculator) {
  for (int k = 0; k < 16; ++k) {
    const int instruction = k / 8, within = k % 8;
    const int word = 2 * instruction + within / 2 % 2, half = within % 2;
    for (int i = 0; i < 32; ++i) {
      const int lane = 32 * (within / 4) + i;
      EXPECT_EQ(Mfma32x32x16::a(lane, word, half).index, i);
      EXPECT_EQ(Mfma32x32x16::a(lane, word, half).k, k);
      EXPECT_EQ(Mfma32x32x16::b(lane, word, half).index, i);
      EXPECT_EQ(Mfma32x32x16::b(lane, word, half).k, k);
    }
  }
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 32; ++j) {
      const int gpr = 4 * (i / 8) + i % 4, lane = 32 * (i / 4 % 2) + j;
      EXPECT_EQ(Mfma32x32x16::d(lane, gpr).m, i);
      EXPECT_EQ(Mfma32x32x16::d(lane, gpr).n, j);
    }
  }
}

// The same of v_mfma_f32_32x32x16_fp8_fp8: four bytes to a word.
TEST(Layout, Mfma32x32x16Fp8IsThatOfAmdsCalculator) {
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 32; ++i) {
      const int lane = 32 * (k / 8) + i, word = k % 8 / 4, byte = k % 4;
      EXPECT_EQ(Mfma32x32x16Fp8::a(lane, word, byte).index, i);
      EXPECT_EQ(Mfma32x32x16Fp8::a(lane, word, byte).k, k);
      EXPECT_EQ(Mfma32x32x16Fp8::b(lane, word, byte).index, i);
      EXPECT_EQ(Mfma32x32x16Fp8::b(lane, word, byte).k, k);
    }
  }
}

// Triton's layouts of v_mfma_scale_f32_32x32x64_f8f6f4's operands and scales (LinearLayoutConversions.cpp): of row
// l % 32, 32 fp4 that follow each other and begin at 32 (l / 32), or two stretches of 16 fp8 that begin at 16 (l / 32)
// and 32 further; the scale of row l % 32 is that of the 32 k from 32 (l / 32) on, whatever the elements are.
TEST(Layout, MfmaScaled32x32x64IsThatOfTriton) {
  using Fours = MfmaScaled32x32x64<true>;
  using Bytes = MfmaScaled32x32x64<false>;
  for (int row = 0; row < 32; ++row) {
    for (int k = 0; k < 64; ++k) {
      EXPECT_EQ(Fours::a(32 * (k / 32) + row, k % 32 / 8, k % 8).index, row);
      EXPECT_EQ(Fours::a(32 * (k / 32) + row, k % 32 / 8, k % 8).k, k);
      const int lane = 32 * (k / 16 % 2) + row, word = 4 * (k / 32) + k % 16 / 4;
      for (const OperandPlace p :
           {Fours::b(lane, word, k % 4), Bytes::a(lane, word, k % 4), Bytes::b(lane, word, k % 4)}) {
        EXPECT_EQ(p.index, row);
        EXPECT_EQ(p.k, k);
      }
      EXPECT_EQ(Bytes::scale(32 * (k / 32) + row).index, row);
      EXPECT_EQ(Bytes::scale(32 * (k / 32) + row).k, k / 32);
    }
  }
}

// The RDNA3 instruction set manual and AMD's WMMA guide for waves of 32: lane l holds row (column) l % 16 of A (B), k
// rising through its registers, both halves of the wave the same; D[2v + l / 16][l % 16] is element v.
TEST(Layout, Wmma16x16x16IsThatOfAmdsManual) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < 16; ++k) {
      EXPECT_EQ(Wmma16x16x16::a(lane, k / 2, k % 2).index, lane % 16);
      EXPECT_EQ(Wmma16x16x16::a(lane, k / 2, k % 2).k, k);
      EXPECT_EQ(Wmma16x16x16::b(lane, k / 2, k % 2).index, lane % 16);
      EXPECT_EQ(Wmma16x16x16::b(lane, k / 2, k % 2).k, k);
    }
    for (int v = 0; v < 8; ++v) {
      EXPECT_EQ(Wmma16x16x16::d(lane, v).m, v * 2 + lane / 16);
      EXPECT_EQ(Wmma16x16x16::d(lane, v).n, lane % 16);
    }
  }
}

// The RDNA4 instruction set manual, WMMA in waves of 32: of A's row (B's column) l % 16 lane l holds k = 8 (l / 16) and
// the seven that follow; D[8 (l / 16) + v][l % 16] is element v.
TEST(Layout, Wmma16x16x16OfHalvesIsThatOfAmdsManual) {
  for (int half = 0; half < 2; ++half) {
    for (int row = 0; row < 16; ++row) {
      const int lane = 16 * half + row;
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(Wmma16x16x16Halves::a(lane, i / 2, i % 2).index, row);
        EXPECT_EQ(Wmma16x16x16Halves::a(lane, i / 2, i % 2).k, 8 * half + i);
        EXPECT_EQ(Wmma16x16x16Halves::b(lane, i / 2, i % 2).index, row);
        EXPECT_EQ(Wmma16x16x16Halves::b(lane, i / 2, i % 2).k, 8 * half + i);
        EXPECT_EQ(Wmma16x16x16Halves::d(lane, i).m, 8 * half + i);
        EXPECT_EQ(Wmma16x16x16Halves::d(lane, i).n, row);
      }
    }
  }
}

// AMD's FlyDSL has gfx1250's v_wmma_f32_16x16x32 (WmmaLayout.h): 16 elements a lane in two blocks of 8, whose k are
// 16 apart, the upper lanes' 8 beyond the lower ones'; D is RDNA4's.
TEST(Layout, Wmma16x16x32IsThatOfFlyDsl) {
  for (int k = 0; k < 32; ++k) {
    const int block = k / 16, upper = k / 8 % 2, element = 8 * block + k % 8;
    for (int row = 0; row < 16; ++row) {
      const int lane = 16 * upper + row;
      EXPECT_EQ(Wmma16x16x32::a(lane, element / 2, element % 2).index, row);
      EXPECT_EQ(Wmma16x16x32::a(lane, element / 2, element % 2).k, k);
      EXPECT_EQ(Wmma16x16x32::b(lane, element / 2, element % 2).index, row);
      EXPECT_EQ(Wmma16x16x32::b(lane, element / 2, element % 2).k, k);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      EXPECT_EQ(Wmma16x16x32::d(16 * (m / 8) + n, m % 8).m, m);
      EXPECT_EQ(Wmma16x16x32::d(16 * (m / 8) + n, m % 8).n, n);
    }
  }
}

/// Every slot of a row is one row, whatever the lane, and lanes that share rows differ in kRowMask alone.
template <class FragmentLayout>
void check_slots() {
  for (int lane = 0; lane < FragmentLayout::kLanes; ++lane) {
    for (int i = 0; i < FragmentLayout::kRegisters; ++i) {
      for (int j = 0; j < FragmentLayout::kRegisters; ++j) {
        const bool same_row = FragmentLayout::place(lane, i).row == FragmentLayout::place(lane, j).row;
        EXPECT_EQ(same_row, FragmentLayout::slot(i) == FragmentLayout::slot(j));
      }
      for (int other = 0; other < FragmentLayout::kLanes; ++other) {
        const bool same_row = FragmentLayout::place(lane, i).row == FragmentLayout::place(other, i).row;
        EXPECT_EQ(same_row, ((lane ^ other) & ~FragmentLayout::kRowMask) == 0) << "lanes " << lane << " and " << other;
      }
    }
  }
}

TEST(Layout, SlotsAndRowMasksFollowFromTheTables) {
  check_slots<device::Sm80FragmentLayout>();
  check_slots<device::CdnaFragmentLayout>();
  check_slots<device::RdnaFragmentLayout>();
  check_slots<device::Rdna4FragmentLayout>();
}

/// A wave's registers for given A (M x K) and B (K x N), found by searching the tables.
template <class I>
void check_product(device::HostMatrix matrix, std::int32_t element) {
  verify::Random random(7);
  float a[I::kM][I::kK], b[I::kK][I::kN];
  const auto draw = [&] { return static_cast<float>(random.integer(-8, 8)); };  // exact in all types
  for (auto& row : a)
    for (float& x : row) x = draw();
  for (auto& row : b)
    for (float& x : row) x = draw();
  const int parts = element == device::kE4m3 ? 4 : 2;
  const auto bits = [&](float x) -> std::uint32_t {
    if (element == device::kE4m3) return device::float_to_e4m3(2.0f * x);  // as e4m3fnuz, whose bytes are half of it
    return element == device::kBf16 ? device::float_to_bf16(x) : device::float_to_f16(x);
  };
  std::uint32_t words_a[I::kLanes][I::kWordsA] = {}, words_b[I::kLanes][I::kWordsB] = {};
  float d[I::kLanes][I::kAccumulators];
  std::array<MultiplyArguments, I::kLanes> arguments;
  std::vector<const MultiplyArguments*> lanes;
  for (int lane = 0; lane < I::kLanes; ++lane) {
    for (int part = 0; part < parts; ++part) {
      for (int word = 0; word < I::kWordsA; ++word) {
        const OperandPlace p = I::a(lane, word, part);
        words_a[lane][word] |= bits(a[p.index][p.k]) << (32 / parts * part);
      }
      for (int word = 0; word < I::kWordsB; ++word) {
        const OperandPlace p = I::b(lane, word, part);
        words_b[lane][word] |= bits(b[p.k][p.index]) << (32 / parts * part);
      }
    }
    for (int i = 0; i < I::kAccumulators; ++i) d[lane][i] = static_cast<float>(lane + i);
    arguments[static_cast<std::size_t>(lane)] = {matrix, element, d[lane], words_a[lane], words_b[lane]};
    lanes.push_back(&arguments[static_cast<std::size_t>(lane)]);
  }
  ASSERT_EQ(multiply(lanes), "");
  for (int lane = 0; lane < I::kLanes; ++lane) {
    for (int i = 0; i < I::kAccumulators; ++i) {
      const ProductPlace p = I::d(lane, i);
      float expected = static_cast<float>(lane + i);
      for (int k = 0; k < I::kK; ++k) expected += a[p.m][k] * b[k][p.n];
      EXPECT_EQ(d[lane][i], expected) << "lane " << lane << ", register " << i;
    }
  }
}

TEST(MatrixUnit, MultipliesFp8) { check_product<Mfma32x32x16Fp8>(device::HostMatrix::kMfma32x32x16Fp8, device::kE4m3); }

TEST(MatrixUnit, MultipliesEveryInstructionInBothTypes) {
  for (const std::int32_t element : {device::kBf16, device::kF16}) {
    check_product<MmaM16N8K16>(device::HostMatrix::kMmaM16N8K16, element);
    check_product<Mfma32x32x16>(device::HostMatrix::kMfma32x32x16, element);
    check_product<Wmma16x16x16>(device::HostMatrix::kWmma16x16x16, element);
    check_product<Wmma16x16x16Halves>(device::HostMatrix::kWmma16x16x16Halves, element);
    check_product<Wmma16x16x32>(device::HostMatrix::kWmma16x16x32, element);
  }
}

// PTX ISA, ldmatrix: lane l gets row l / 4, elements 2 (l % 4) and the next; with .trans, of the transposed matrix.
TEST(MatrixUnit, DistributesMatricesAsLdmatrix) {
  std::uint16_t rows[32][8];
  for (int r = 0; r < 32; ++r)
    for (int c = 0; c < 8; ++c) rows[r][c] = static_cast<std::uint16_t>(100 * r + c);
  std::uint32_t registers[32][4];
  std::array<std::uint32_t*, 32> to;
  for (std::size_t lane = 0; lane < 32; ++lane) to[lane] = registers[lane];
  for (const bool transposed : {false, true}) {
    distribute_matrices(rows, transposed, to);
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        for (int half = 0; half < 2; ++half) {
          const int outer = lane / 4, inner = 2 * (lane % 4) + half;
          const int row = transposed ? inner : outer, col = transposed ? outer : inner;
          EXPECT_EQ(registers[lane][m] >> (16 * half) & 0xFFFFu, static_cast<unsigned>(100 * (8 * m + row) + col));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::test
