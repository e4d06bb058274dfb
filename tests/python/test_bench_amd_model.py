"""The model of an AMD compute unit: what it reads of machine code, its clock beside llvm-mca's, and changes planted in
a loop, which must move the figure the right way. No time is taken."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import BENCH

sys.path.insert(0, str(BENCH))
import amd_code  # which finds amd_isa
import amd_isa
import amd_model
import amd_path

GFX942 = amd_code.MACHINES["gfx942"]
PRODUCT = "v_mfma_f32_32x32x8_bf16 v[{0}:{1}], v[100:101], v[102:103], v[{0}:{1}]"
PRODUCTS = [PRODUCT.format(first, first + 15) for first in (0, 16, 32, 48)]
# Two sums of products of what LDS holds, and what a softmax takes of the vector unit.
LOOP = [
    "ds_read_b128 v[100:103], v70",
    "ds_read_b128 v[104:107], v70 offset:1024",
    "s_waitcnt lgkmcnt(1)",
    *PRODUCTS[:2],
    "s_waitcnt lgkmcnt(0)",
    *PRODUCTS[2:],
    *[f"v_exp_f32_e32 v{number}, v{number}" for number in range(80, 90)],
    "s_barrier",
]


def listing_of(lines):
    return amd_code.Listing.of_lines([line if line.endswith(":") else "\t" + line for line in lines], GFX942)


def turn_of(lines):
    return amd_code.Turn([i for i in listing_of(lines).instructions if i is not None], [])


def cycles(lines, blocks=1, waves=8, **options):
    return amd_model.simulate([turn_of(lines)], blocks, waves, **options).cycles


def test_instructions_are_read():
    (product,) = turn_of(PRODUCTS[:1]).path
    assert (product.unit, product.quads, product.flops) == ("matrix", 8, 2 * 32 * 32 * 8)
    assert product.writes == [("v", number) for number in range(16)] == product.sums
    assert product.reads == [("v", number) for number in (100, 101, 102, 103)]
    (load,) = turn_of(["buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen"]).path
    assert (load.unit, load.counter, load.writes[0], load.reads[0]) == ("memory", "vmcnt", ("v", 4), ("v", 1))
    (direct,) = turn_of(["buffer_load_dwordx4 v1, s[8:11], 0 offen lds"]).path
    assert direct.writes == [] and ("v", 1) in direct.reads
    (wait,) = turn_of(["s_waitcnt vmcnt(2) lgkmcnt(0)"]).path
    assert wait.waits == {"vmcnt": 2, "lgkmcnt": 0}
    (store,) = turn_of(["ds_write_b64 v135, v[66:67] offset:16384"]).path
    assert store.writes == [] and store.reads == [("v", 135), ("v", 66), ("v", 67)]


@pytest.mark.parametrize(
    ("target", "op", "passes"),
    [
        ("gfx942", "v_mfma_f32_32x32x8_bf16", 8),
        ("gfx942", "v_mfma_f32_16x16x16_bf16", 4),
        ("gfx942", "v_mfma_f32_16x16x32_fp8_fp8", 4),
        ("gfx950", "v_mfma_f32_32x32x16_bf16", 8),
        ("gfx950", "v_mfma_f32_16x16x32_bf16", 4),
        ("gfx950", "v_mfma_f32_32x32x8_bf16", 8),  # as on gfx942
        ("gfx90a", "v_mfma_f32_32x32x8_bf16_1k", 16),
    ],
)
def test_products_take_as_long_as_llvm_says(target, op, passes):
    assert amd_code.MACHINES[target].passes(op) == passes


@pytest.mark.skipif(not amd_isa.find_tool("llvm-mca"), reason="llvm-mca of LLVM 19 or newer is not installed")
@pytest.mark.parametrize(
    "lines",
    [
        PRODUCTS,
        [*PRODUCTS[:1], "v_add_f32_e32 v65, v66, v67", "v_add_f32_e32 v68, v69, v70"],
        [f"v_mfma_f32_16x16x16_bf16 v[{n}:{n + 3}], v[100:101], v[102:103], v[{n}:{n + 3}]" for n in (0, 4, 8)],
        [f"v_mul_f32_e32 v{number}, v{number + 1}, v{number + 2}" for number in range(0, 30, 3)],
    ],
)
def test_straight_pieces_take_what_llvm_mca_says(lines, tmp_path):
    """One wave alone, whose instructions follow each other a hundred times."""
    source = tmp_path / "piece.s"
    source.write_text("\n".join(lines) + "\n")
    words = [amd_isa.find_tool("llvm-mca"), "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-iterations=100"]
    text = subprocess.run([*words, str(source)], capture_output=True, text=True, check=True).stdout
    quads = int(re.search(r"Total Cycles:\s+(\d+)", text)[1]) / 100
    assert cycles(lines, waves=1) / 4 == pytest.approx(quads, rel=0.05)


def test_a_planted_barrier_costs():
    """Between products and exponentials, which two waves of a SIMD would do beside each other."""
    products, exponentials = PRODUCTS * 3, [f"v_exp_f32_e32 v{n}, v{n}" for n in range(70, 96)]
    plain = cycles([*products, *exponentials, "s_barrier"])
    assert cycles([*products, "s_barrier", *exponentials, "s_barrier"]) > plain


def test_a_planted_wait_costs():
    """One wave a SIMD: nothing else is there to do while it waits."""
    plain = cycles(LOOP, waves=4)
    earlier = [*LOOP[:2], "s_waitcnt lgkmcnt(0)", *LOOP[3:]]
    assert cycles(earlier, waves=4) > plain
    later = [*LOOP[:2], *PRODUCTS, *LOOP[8:-1], "s_waitcnt lgkmcnt(0)", LOOP[-1]]
    assert cycles(later, waves=4) < plain
    assert cycles([line for line in LOOP if "v_exp" not in line], waves=4) < plain


def test_waves_that_are_staggered_share_the_units_better():
    """Halves of a block that go through the same phases at once leave each unit idle in turn."""
    phases = [*PRODUCTS * 3, "s_barrier", *[f"v_exp_f32_e32 v{n}, v{n}" for n in range(70, 96)], "s_barrier"]
    assert cycles(phases, stagger=1) < 0.9 * cycles(phases)


def test_units_are_never_busier_than_they_can_be():
    result = amd_model.simulate([turn_of(LOOP)], 2, 4)
    assert all(0.0 < share <= 1.0 for share in result.busy.values())
    assert result.flops == 8 * 4 * 2 * 32 * 32 * 8
    products = 4 * 4 * 8 * 8 / amd_model.SIMDS
    assert result.cycles >= products


# A loop of s[0:1]'s first word turns, with a mask that only its last turn needs, and a rescale that nobody can foresee.
KERNEL = [
    "kernel:",
    "s_load_dword s4, s[0:1], 0x0",
    "s_mov_b32 s5, 0",
    "L0:",
    PRODUCTS[0],
    "s_add_i32 s5, s5, 1",
    "s_cmp_lt_i32 s5, s4",
    "s_cbranch_scc1 L1",
    "v_mul_f32_e32 v90, v91, v92",
    "L1:",
    "v_cmp_lt_f32_e32 vcc, v80, v81",
    "s_cbranch_vccz L2",
    "v_mul_f32_e32 v93, v94, v95",
    "L2:",
    "s_cmp_lt_i32 s5, s4",
    "s_cbranch_scc1 L0",
    "s_endpgm",
]


def executed(turns, number=4):
    listing = listing_of(KERNEL)
    path = amd_path.ExecutedPath(
        listing, struct.pack("<i", turns), 0, lambda at, target: amd_code.skips(listing, at, target)
    )
    return path.turn("kernel", listing.loop(0), number)


def test_branches_are_taken_as_the_parameters_say():
    middle = executed(100)
    assert [i.op for i in middle.path].count("v_mul_f32_e32") == 0
    assert middle.decisions == [
        "s_cbranch_scc1 L1: taken (computed)",
        "s_cbranch_vccz L2: taken (by rule)",
        "s_cbranch_scc1 L0: taken (computed)",
    ]


def test_a_loop_that_ends_too_soon_is_told():
    with pytest.raises(ValueError, match="ends after 3 turns of the loop, before turn 4 is done"):
        executed(3)


@pytest.mark.parametrize(
    ("lines", "register", "value"),
    [
        (["s_mov_b32 s4, 7", "s_sub_i32 s4, 3, s4", "s_ashr_i32 s4, s4, 1"], 4, -2),
        (["s_mov_b32 s4, -1", "s_add_u32 s5, s4, 2", "s_addc_u32 s6, 0, 0"], 6, 1),
        (["s_mov_b32 s4, 0x10000", "s_mul_hi_u32 s5, s4, s4"], 5, 1),
        (["s_cmp_gt_i32 -1, 0", "s_cselect_b32 s4, 5, 6"], 4, 6),
        (["v_lshrrev_b32_e32 v1, 6, v0", "v_readfirstlane_b32 s4, v1"], 4, 3),
        (["v_cmp_gt_u32_e64 s[4:5], 200, v0"], 4, 0xFF),
        # 1000 / 7, as compilers divide.
        (
            [
                "v_cvt_f32_u32_e32 v1, 7",
                "v_rcp_iflag_f32_e32 v1, v1",
                "v_mul_f32_e32 v1, 0x4f7ffffe, v1",
                "v_cvt_u32_f32_e32 v1, v1",
                "v_readfirstlane_b32 s4, v1",
                "s_mul_hi_u32 s5, 0x3e8, s4",
            ],
            5,
            142,
        ),
    ],
)
def test_integers_are_computed(lines, register, value):
    wave = amd_path.Wave(b"", 0, 3)
    for instruction in turn_of(lines).path:
        wave.execute(instruction)
    assert wave.s[register] == value & 0xFFFFFFFF


def test_what_memory_holds_is_unknown():
    wave = amd_path.Wave(b"\1\0\0\0", 0, 0)
    for instruction in turn_of(["s_load_dwordx2 s[4:5], s[0:1], 0x0", "s_load_dword s6, s[8:9], 0x0"]).path:
        wave.execute(instruction)
    assert (wave.s[4], wave.s[5], wave.s[6]) == (1, None, None)
    assert wave.jumps("s_cbranch_scc1") is None


def test_parameters_come_from_the_file_beside_the_code(tmp_path):
    fields = [
        {"name": "n", "type": "int32_t", "offset": 0, "size": 4},
        {"name": "scale", "type": "float", "offset": 4, "size": 4},
        {"name": "q", "type": "const void*", "offset": 8, "size": 8},
        {"name": "none", "type": "const void*", "offset": 16, "size": 8},
    ]
    kernel = {"file": "forward.hsaco", "symbol": "tilewise_forward", "parameters": {"size": 24, "fields": fields}}
    pointers = {"tensors": {"q": "q"}, "workspace": {}}
    step = {"file": "forward.hsaco", "values_of_contiguous_tensors": {"n": -3, "scale": 0.5}, "pointers": pointers}
    report = {"kernels": [kernel], "problems": [{"steps": [{"clear": "x"}, step]}]}
    (tmp_path / "launch.json").write_text(json.dumps(report))
    symbol, block = amd_code.parameters_of(tmp_path / "forward.hsaco")
    assert (symbol, struct.unpack("<ifQQ", block)) == ("tilewise_forward", (-3, 0.5, 1 << 40, 0))
    assert amd_code.parameters_of(tmp_path / "other.hsaco") is None
    assert amd_code.parameters_of(Path("/nowhere/forward.hsaco")) is None
