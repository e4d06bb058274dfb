"""Hopper's kernels of expert layers (src/device/moe/sm90) as a benchmark compiles and launches them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_program import CudaModule, compile_cuda, matrix_map, tensor_map
from moe_inputs import AnyWeights, Call, Layer, QuantisedMatrices, QuantisedWeights

if TYPE_CHECKING:
    import torch

REPOSITORY = Path(__file__).resolve().parent.parent
ARCHITECTURE = "sm_90a"
FORMATS = ("bf16", "mxfp4", "nvfp4", "fp8")  # MoeWeights
BOX_ROWS = (64, 32, 16, 8)  # of loads of rows

STUB = """#include "device/sm90/machine.h"
#include "device/sm90/ops.h"
#include "device/moe/sm90/{header}.h"
namespace tilewise::device {{
using Ops = Sm90Ops<HopperMachine>;
inline constexpr {struct} kConfig = [] {{
  {struct} c;
  {config}
  return c;
}}();
using Kernel = {kernel}<Ops, kConfig>;
}}  // namespace tilewise::device
extern "C" __device__ const int shared_bytes = sizeof(tilewise::device::Kernel::Shared);
extern "C" __device__ const int param_bytes = sizeof(tilewise::device::Kernel::Params);
extern "C" __global__ void __cluster_dims__({cluster}) __launch_bounds__(tilewise::device::kConfig.threads(), 1)
    layer(const __grid_constant__ tilewise::device::Kernel::Params params) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  tilewise::device::Kernel::run(params, *reinterpret_cast<tilewise::device::Kernel::Shared*>(memory));
}}
"""


def source_of(header: str, name: str, fields: dict[str, int], cluster: int = 1, kernel: str = "") -> str:
    config = " ".join(f"c.{field} = {value};" for field, value in fields.items())
    return STUB.format(
        header=header, struct=f"Moe{name}Config", kernel=f"Sm90Moe{kernel or name}", config=config, cluster=cluster
    )


@dataclass(frozen=True)
class SortConfig:
    """MoeSortConfig of device/moe/sm90/config.h."""

    counts: int
    own_experts: int = 4
    warps: int = 32

    CHUNK = 512

    @property
    def name(self) -> str:
        return f"sort_{'count' if self.counts else 'place'}_{self.own_experts}"

    @property
    def most_experts(self) -> int:
        return self.warps * self.own_experts

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def source(self) -> str:
        return source_of("sort", "Sort", asdict(self))


@dataclass(frozen=True)
class GatherConfig:
    """MoeGatherConfig."""

    warps: int = 8

    name = "gather"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def source(self) -> str:
        return source_of("gather", "Gather", {"warps": self.warps})


@dataclass(frozen=True)
class LayerConfig:
    """MoeLayerConfig; tokens: fewest and most that it is tried with."""

    block_n: int
    stages: int
    cluster: int = 2
    column_step: int = 16
    held_experts: int = 4
    tokens: tuple[int, int] = (512, 1 << 20)

    threads = 384

    @property
    def name(self) -> str:
        return f"layer_n{self.block_n}_e{self.held_experts}_cl{self.cluster}_s{self.stages}_k{self.column_step}"

    @property
    def source(self) -> str:
        fields = {k: v for k, v in asdict(self).items() if k != "tokens"}
        return source_of("layer", "Layer", fields, self.cluster)


@dataclass(frozen=True)
class DecodeConfig:
    """MoeDecodeConfig of device/moe/sm90/config.h; tokens: fewest and most that it is tried with."""

    block_n: int
    held_ids: int
    stages: int
    depth: int
    consumers: int = 1
    row_blocks: int = 1
    held_experts: int = 4
    tokens: tuple[int, int] = (1, 1)
    weights: int = 0  # MoeWeights
    scale_windows: int = 4

    @property
    def name(self) -> str:
        held = f"h{self.held_ids}" if self.held_ids else f"e{self.held_experts}"
        name = f"decode_n{self.block_n}_{held}_c{self.consumers}x{self.row_blocks}_d{self.depth}_s{self.stages}"
        return f"{FORMATS[self.weights]}_{name}_w{self.scale_windows}" if self.weights else name

    @property
    def block_m(self) -> int:
        return 64 * self.consumers * self.row_blocks

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * 128

    @property
    def source(self) -> str:
        return source_of("decode", "Decode", {k: v for k, v in asdict(self).items() if k != "tokens"})


@dataclass(frozen=True)
class ScaledConfig:
    """Two kernels of MoeScaledConfig and one of MoeCombineConfig: rows and weights in fp8."""

    held_experts: int = 4
    stages: int = 4
    cluster: int = 2
    tokens: tuple[int, int] = (1, 1 << 20)

    threads = 384

    @property
    def name(self) -> str:
        return f"scaled_e{self.held_experts}_cl{self.cluster}_s{self.stages}"

    def products(self) -> tuple[ScaledProductConfig, ScaledProductConfig]:
        """Of gates and ups, and the other."""
        first, second = (ScaledProductConfig(down, self.held_experts, self.stages, self.cluster) for down in (0, 1))
        return first, second


@dataclass(frozen=True)
class ScaledProductConfig:
    """MoeScaledConfig."""

    down: int
    held_experts: int
    stages: int
    cluster: int

    threads = 384

    @property
    def name(self) -> str:
        return f"scaled_{'down' if self.down else 'up'}_e{self.held_experts}_cl{self.cluster}_s{self.stages}"

    @property
    def source(self) -> str:
        return source_of("scaled_product", "Scaled", asdict(self), self.cluster, "ScaledProduct")


@dataclass(frozen=True)
class CombineConfig:
    """MoeCombineConfig."""

    warps: int = 8

    name = "combine"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def source(self) -> str:
        return source_of("combine_launch", "Combine", {"warps": self.warps})


class Pairs(ctypes.Structure):
    """PairTensor of params.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("token_stride", ctypes.c_int64),
        ("slot_stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class Rows(ctypes.Structure):
    """RowTensor."""

    _fields_ = (("data", ctypes.c_uint64), ("row_stride", ctypes.c_int64))


class Shape(ctypes.Structure):
    """MoeShape."""

    _fields_ = (("sizes", ctypes.c_int32 * 6), ("first_expert", ctypes.c_int64))


class Scales(ctypes.Structure):
    """ExpertScales."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("global_", ctypes.c_uint64),
        ("strides", ctypes.c_int64 * 4),
        ("gate_rows", ctypes.c_int32),
        ("value_rows", ctypes.c_int32),
        ("row_blocks", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("scale_bytes", ctypes.c_int32),
        ("in_runs", ctypes.c_int32),
    )

    @classmethod
    def of(cls, matrices: QuantisedMatrices) -> Scales:
        """Of concatenated gates and ups, or of matrices without a gate."""
        scales = matrices.scales
        size, shape = scales.element_size(), scales.shape
        strides = (ctypes.c_int64 * 4)(*(stride * size for stride in scales.stride()), 1)
        whole = int(scales.numel() * size % 16 == 0)
        factors = matrices.factors.data_ptr() if matrices.factors is not None else 0
        rows = matrices.elements.shape[1] // 2
        return cls(scales.data_ptr(), factors, strides, rows, 1, shape[1], shape[2], size, whole)


class LayerParams(ctypes.Structure):
    """MoeLayerParams."""

    _fields_ = (
        ("maps", ctypes.c_char * 1536),
        ("shape", Shape),
        ("row_weights", ctypes.c_uint64),
        ("sorted", ctypes.c_uint64 * 3),
        ("biases", ctypes.c_uint64 * 10),
        ("h", Rows),
        ("parts", Rows),
        ("out", Rows),
        ("counters", ctypes.c_uint64),
        ("alpha_limit", ctypes.c_float * 2),
        ("rest", ctypes.c_char * 48),
    )


class GatherParams(ctypes.Structure):
    """MoeGatherParams."""

    _fields_ = (
        ("shape", Shape),
        ("topk_weights", Pairs),
        ("sorted", ctypes.c_uint64 * 3),
        ("x", Rows),
        ("rows", Rows),
        ("row_weights", ctypes.c_uint64),
    )


class SortParams(ctypes.Structure):
    """MoeSortParams."""

    _fields_ = (
        ("shape", Shape),
        ("topk_ids", Pairs),
        ("sorted", ctypes.c_uint64 * 3),
        ("counts", ctypes.c_uint64),
        ("chunks", ctypes.c_int32),
        ("most_experts", ctypes.c_int32),
    )


class RowScales(ctypes.Structure):
    """RowScales."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("strides", ctypes.c_int64 * 2),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    )

    @classmethod
    def of(cls, scales: torch.Tensor) -> RowScales:
        return cls(scales.data_ptr(), (ctypes.c_int64 * 2)(*scales.stride()), *scales.shape)


class ScaledParams(ctypes.Structure):
    """MoeScaledParams."""

    _fields_ = (
        ("maps", ctypes.c_char * 256),
        ("shape", Shape),
        ("sorted", ctypes.c_uint64 * 3),
        ("row_weights", ctypes.c_uint64),
        ("row_scales", RowScales),
        ("value_scales", RowScales),
        ("weight_scales", Scales),
        ("bias", ctypes.c_uint64 * 5),
        ("out", Rows),
        ("alpha_limit", ctypes.c_float * 2),
        ("rest", ctypes.c_char * 56),
    )


class CombineParams(ctypes.Structure):
    """MoeCombineParams."""

    _fields_ = (("shape", Shape), ("sorted", ctypes.c_uint64 * 3), ("parts", Rows), ("out", Rows))


class DecodeParams(ctypes.Structure):
    """MoeDecodeParams."""

    _fields_ = (
        ("maps", ctypes.c_char * 256),
        ("shape", Shape),
        ("topk_ids", Pairs),
        ("topk_weights", Pairs),
        ("sorted", ctypes.c_uint64 * 3),
        ("biases", ctypes.c_uint64 * 10),
        ("scales", Scales * 2),
        ("x", Rows),
        ("h", Rows),
        ("parts", Rows),
        ("out", Rows),
        ("counters", ctypes.c_uint64),
        ("alpha_limit", ctypes.c_float * 2),
        ("rest", ctypes.c_char * 24),
    )


def in_turn(steps: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run


Config = SortConfig | GatherConfig | LayerConfig | DecodeConfig | ScaledProductConfig | CombineConfig


class Kernel:
    """A configuration's machine code."""

    def __init__(self, config: Config, code: bytes, params: type[ctypes.Structure]) -> None:
        self.config = config
        self._module = CudaModule(code)
        self._shared_bytes = self._module.number("shared_bytes")
        if (found := self._module.number("param_bytes")) != ctypes.sizeof(params):
            raise RuntimeError(f"{config.name}: parameters are {found} bytes, {ctypes.sizeof(params)} here")

    def prepare(self, blocks: int, params: ctypes.Structure, programmatic: bool) -> Callable[[], None]:
        import torch

        launch = self._module.prepare("layer", blocks, self.config.threads, self._shared_bytes, [params], programmatic)
        return lambda: launch(torch.cuda.current_stream().cuda_stream)


class Sort:
    """Both launches."""

    def __init__(self, code: dict[str, bytes]) -> None:
        self._steps = {
            most: [Kernel(c, code[c.name], SortParams) for c in SORTS if c.most_experts == most]
            for most in sorted({c.most_experts for c in SORTS})
        }

    def prepare(self, call: Call, experts: int, params: SortParams, programmatic: bool) -> list[Callable[[], None]]:
        import torch

        params.chunks = -(-call.ids.numel() // SortConfig.CHUNK)
        steps = next(steps for most, steps in self._steps.items() if experts <= most)
        params.most_experts = most_experts(experts)
        counts = torch.empty(params.chunks * params.most_experts, device="cuda", dtype=torch.int32)
        call.scratch.append(counts)
        params.counts = counts.data_ptr()
        steps = steps[1:] if params.chunks == 1 else steps
        return [step.prepare(params.chunks, params, programmatic) for step in steps]


SORTS = tuple(SortConfig(counts, own) for own in (4, 8) for counts in (1, 0))


def most_experts(experts: int) -> int:
    """That the sort for so many has room for."""
    return min(c.most_experts for c in SORTS if c.most_experts >= experts)


def weight_maps(w: AnyWeights, rows: int) -> list[bytes]:
    """Of weights as they are, or of the bytes of packed ones, in boxes of so many rows."""
    layer = w.layer
    if isinstance(w, QuantisedWeights):
        up, down, kind, packed, box = w.gate_up.elements, w.down.elements, "u8", w.format.elements_of_byte, 128
    else:
        up, down, kind, packed, box = w.gate_up, w.down, "bf16", 1, 64
    i, h = layer.intermediate, layer.hidden
    up_columns, down_columns = h // packed, i // packed
    octets = (layer.experts, i // 8, 2, 8, up_columns)
    strides = (2 * i * up_columns, 8 * up_columns, i * up_columns, up_columns)
    down_shape = (layer.experts, h, down_columns)
    return [
        tensor_map(up.data_ptr(), kind, octets, strides, (1, rows // 16, 2, 8, box), 128),
        tensor_map(down.data_ptr(), kind, down_shape, (h * down_columns, down_columns), (1, rows, box), 128),
    ]


class Decode(Kernel):
    """The whole layer, and the sort before it where it takes one."""

    config: DecodeConfig

    def __init__(self, config: DecodeConfig, code: bytes, sort: Sort) -> None:
        super().__init__(config, code, DecodeParams)
        self._sort = sort

    def serves(self, layer: Layer, tokens: int) -> bool:
        c = self.config
        held = tokens <= c.block_n and tokens * layer.top_k <= 32 * c.held_ids
        return c.tokens[0] <= tokens <= c.tokens[1] and (held if c.held_ids else layer.experts <= 32 * c.held_experts)

    def layer(self, w: AnyWeights, call: Call, programmatic: bool) -> Callable[[], None]:
        import torch

        c, layer, (tokens, top_k) = self.config, w.layer, call.ids.shape
        pairs, i, h = tokens * top_k, layer.intermediate, layer.hidden
        values, parts = (
            torch.full((pairs, cols), float("nan"), device="cuda", dtype=torch.bfloat16) for cols in (i, h)
        )
        counters, offsets, order, rows = (
            torch.randint(-(2**31), 2**31 - 1, (count,), device="cuda", dtype=torch.int32)
            for count in (4 + pairs, layer.experts + 1, pairs, pairs)
        )
        call.scratch += [values, parts, counters, offsets, order, rows]
        p = DecodeParams()
        ctypes.memmove(ctypes.addressof(p), b"".join(weight_maps(w, c.block_m)), 256)
        if isinstance(w, QuantisedWeights):
            p.scales[:] = [Scales.of(matrices) for matrices in (w.gate_up, w.down)]
        p.shape.sizes[:] = [tokens, top_k, h, i, layer.experts, 0]
        p.topk_ids = Pairs(call.ids.data_ptr(), call.ids.stride(0), call.ids.stride(1), 4, 0)
        p.topk_weights = Pairs(call.weights.data_ptr(), call.weights.stride(0), call.weights.stride(1), 1, 0)
        p.sorted[:] = [x.data_ptr() for x in (offsets, order, rows)]
        p.x, p.h, p.parts, p.out = (Rows(x.data_ptr(), x.stride(0)) for x in (call.x, values, parts, call.out))
        p.counters = counters.data_ptr()
        run = self.prepare(torch.cuda.get_device_properties(0).multi_processor_count, p, programmatic)
        if c.held_ids:
            return run
        own = SortParams(shape=p.shape, topk_ids=p.topk_ids, sorted=p.sorted)
        return in_turn([*self._sort.prepare(call, layer.experts, own, programmatic), run])


class ManyRows(Kernel):
    """The whole layer of many rows behind its sort and its gather."""

    config: LayerConfig

    def __init__(self, config: LayerConfig, code: bytes, sort: Sort, gather: Kernel) -> None:
        super().__init__(config, code, LayerParams)
        self._sort, self._gather = sort, gather

    def serves(self, layer: Layer, tokens: int) -> bool:
        c = self.config
        fits = 16 * c.held_experts < layer.experts <= 32 * c.held_experts or c.held_experts == 4
        return c.tokens[0] <= tokens <= c.tokens[1] and fits and layer.experts <= 32 * c.held_experts

    def layer(self, w: AnyWeights, call: Call, programmatic: bool) -> Callable[[], None]:
        import torch

        c, layer, (tokens, top_k) = self.config, w.layer, call.ids.shape
        pairs, i, h = tokens * top_k, layer.intermediate, layer.hidden
        values, parts, gathered = (
            torch.full((pairs, cols), float("nan"), device="cuda", dtype=torch.bfloat16) for cols in (i, h, h)
        )
        counters, offsets, order, rows = (
            torch.randint(-(2**31), 2**31 - 1, (count,), device="cuda", dtype=torch.int32)
            for count in (4 + pairs, layer.experts + 1, pairs, pairs)
        )
        call.scratch += [values, parts, gathered, counters, offsets, order, rows]
        gate_up_map, down_map = weight_maps(w, 128)
        maps = [
            *(matrix_map(gathered.data_ptr(), "bf16", (pairs, h), (rows, 64), True) for rows in BOX_ROWS),
            *(matrix_map(values.data_ptr(), "bf16", (pairs, i), (rows, 64), True) for rows in BOX_ROWS),
            gate_up_map,
            tensor_map(values.data_ptr(), "bf16", (pairs, i), (i,), (16, 32), 64),
            down_map,
            matrix_map(parts.data_ptr(), "bf16", (pairs, h), (16, 64), True),
        ]
        p = LayerParams()
        ctypes.memmove(ctypes.addressof(p), b"".join(maps), 1536)
        p.shape.sizes[:] = [tokens, top_k, h, i, layer.experts, 0]
        ids = Pairs(call.ids.data_ptr(), call.ids.stride(0), call.ids.stride(1), 4, 0)
        p.sorted[:] = [x.data_ptr() for x in (offsets, order, rows)]
        p.h, p.parts, p.out = (Rows(x.data_ptr(), x.stride(0)) for x in (values, parts, call.out))
        p.counters = counters.data_ptr()
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        weights = Pairs(call.weights.data_ptr(), call.weights.stride(0), call.weights.stride(1), 1, 0)
        row_weights = torch.full((pairs,), float("nan"), device="cuda")
        call.scratch.append(row_weights)
        p.row_weights = row_weights.data_ptr()
        own = SortParams(shape=p.shape, topk_ids=ids, sorted=p.sorted)
        steps = [
            *self._sort.prepare(call, layer.experts, own, programmatic),
            self._gather.prepare(
                multiprocessors * 4,
                GatherParams(
                    p.shape,
                    weights,
                    p.sorted,
                    Rows(call.x.data_ptr(), call.x.stride(0)),
                    Rows(gathered.data_ptr(), h),
                    row_weights.data_ptr(),
                ),
                programmatic,
            ),
            self.prepare(multiprocessors // c.cluster * c.cluster, p, programmatic),
        ]
        return in_turn(steps)


class ScaledRows:
    """The whole layer of rows and weights in fp8, with scales of 1 x 128 and of 128 x 128."""

    def __init__(self, config: ScaledConfig, code: dict[str, bytes], sort: Sort, gather: Kernel) -> None:
        self.config = config
        self._sort, self._gather = sort, gather
        self._products = [Kernel(product, code[product.name], ScaledParams) for product in config.products()]
        self._combine = Kernel(CombineConfig(), code["combine"], CombineParams)

    def serves(self, layer: Layer, tokens: int) -> bool:
        c = self.config
        fits = 16 * c.held_experts < layer.experts <= 32 * c.held_experts or c.held_experts == 4
        return c.tokens[0] <= tokens <= c.tokens[1] and fits and layer.experts <= 32 * c.held_experts

    def layer(self, w: QuantisedWeights, call: Call, programmatic: bool) -> Callable[[], None]:
        import torch

        layer, (tokens, top_k) = w.layer, call.ids.shape
        pairs, i, h = tokens * top_k, layer.intermediate, layer.hidden
        x, x_scales = call.quantised_rows()
        parts = torch.full((pairs, h), float("nan"), device="cuda", dtype=torch.bfloat16)
        gathered, values = (torch.full((pairs, cols), 0x7F, device="cuda", dtype=torch.uint8) for cols in (h, i))
        value_scales = torch.full((pairs, -(-i // 128)), float("nan"), device="cuda")
        row_weights = torch.full((pairs,), float("nan"), device="cuda")
        offsets, order, rows = (
            torch.randint(-(2**31), 2**31 - 1, (count,), device="cuda", dtype=torch.int32)
            for count in (layer.experts + 1, pairs, pairs)
        )
        call.scratch += [x, x_scales, parts, gathered, values, value_scales, row_weights, offsets, order, rows]
        shape = Shape((ctypes.c_int32 * 6)(tokens, top_k, h, i, layer.experts, 0))
        half = Shape((ctypes.c_int32 * 6)(tokens, top_k, h // 2, i, layer.experts, 0))  # of 16 bits
        places = (ctypes.c_uint64 * 3)(*(tensor.data_ptr() for tensor in (offsets, order, rows)))
        ids = Pairs(call.ids.data_ptr(), call.ids.stride(0), call.ids.stride(1), 4, 0)
        weights = Pairs(call.weights.data_ptr(), call.weights.stride(0), call.weights.stride(1), 1, 0)
        maps, box = weight_maps(w, 128), 64 // self.config.cluster
        products = []
        for of, weight_map, source, scales, to in (
            (w.gate_up, maps[0], gathered, x_scales, Rows(values.data_ptr(), i // 2)),
            (w.down, maps[1], values, value_scales, Rows(parts.data_ptr(), h)),
        ):
            p = ScaledParams(shape=shape, sorted=places, row_weights=row_weights.data_ptr(), out=to)
            row_map = matrix_map(source.data_ptr(), "u8", (pairs, source.shape[1]), (box, 128), True)
            ctypes.memmove(ctypes.addressof(p), row_map + weight_map, 256)
            p.row_scales, p.value_scales = RowScales.of(scales), RowScales.of(value_scales)
            p.weight_scales = Scales.of(of)
            products.append(p)
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        blocks = multiprocessors // self.config.cluster * self.config.cluster
        gather = GatherParams(
            half,
            weights,
            places,
            Rows(x.data_ptr(), h // 2),
            Rows(gathered.data_ptr(), h // 2),
            row_weights.data_ptr(),
        )
        combine = CombineParams(shape, places, Rows(parts.data_ptr(), h), Rows(call.out.data_ptr(), call.out.stride(0)))
        own = SortParams(shape=shape, topk_ids=ids, sorted=places)
        return in_turn(
            [
                *self._sort.prepare(call, layer.experts, own, programmatic),
                self._gather.prepare(multiprocessors * 4, gather, programmatic),
                *(kernel.prepare(blocks, p, programmatic) for kernel, p in zip(self._products, products, strict=True)),
                self._combine.prepare(multiprocessors * 4, combine, programmatic),
            ]
        )


def compiled(configs: tuple[Config, ...], folder: Path | None) -> dict[str, bytes]:
    """Machine code of each, from the folder or by NVRTC, and then left there."""

    def code_of(config: Config) -> bytes:
        file = folder / f"{config.name}.cubin" if folder else None
        if file and file.is_file():
            return file.read_bytes()
        code = compile_cuda(config.source, ARCHITECTURE, REPOSITORY / "src")
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(code)
        return code

    with ThreadPoolExecutor() as threads:
        return dict(zip((config.name for config in configs), threads.map(code_of, configs), strict=True))
