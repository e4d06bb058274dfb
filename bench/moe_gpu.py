"""Hopper's expert layers (src/device/moe/sm90) beside torch's grouped_mm, bf16.

Each configuration is compiled by NVRTC, compared with fp32 arithmetic on random data, and timed in turns with the layer
made of torch.nn.functional.grouped_mm as transformers has it: captured graphs of calls whose routings are drawn anew,
so that weights come from memory. --compile-only DIR leaves machine code there, which --kernels DIR takes. Needs torch
and an NVIDIA GPU of sm_90, and NVRTC where there is no machine code yet.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_program import CudaModule, compile_cuda, matrix_map, tensor_map

if TYPE_CHECKING:
    import torch

REPOSITORY = Path(__file__).resolve().parent.parent
ARCHITECTURE = "sm_90a"
BYTES_PER_SECOND, FLOPS = 4.2e12, 780e12  # of the floor
BOX_ROWS = (64, 32, 16, 8)  # of loads of rows
WORST_ERROR = 6e-3  # of out in bf16, relative, in the norm: h and each part are rounded before

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


@dataclass(frozen=True)
class Layer:
    """Sizes of an expert layer."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int


LAYERS = {
    "qwen": Layer(128, 8, 2048, 768),
    "mixtral": Layer(8, 2, 4096, 14336),
    "deepseek": Layer(256, 8, 7168, 2048),
    "ragged": Layer(13, 4, 520, 264),
}


def source_of(header: str, name: str, fields: dict[str, int], cluster: int = 1) -> str:
    config = " ".join(f"c.{field} = {value};" for field, value in fields.items())
    return STUB.format(
        header=header, struct=f"Moe{name}Config", kernel=f"Sm90Moe{name}", config=config, cluster=cluster
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
    column_step: int = 32
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

    @property
    def name(self) -> str:
        held = f"h{self.held_ids}" if self.held_ids else f"e{self.held_experts}"
        return f"decode_n{self.block_n}_{held}_c{self.consumers}x{self.row_blocks}_d{self.depth}_s{self.stages}"

    @property
    def block_m(self) -> int:
        return 64 * self.consumers * self.row_blocks

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * 128

    @property
    def source(self) -> str:
        return source_of("decode", "Decode", {k: v for k, v in asdict(self).items() if k != "tokens"})


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
        ("unused", ctypes.c_int32),
    )


class DecodeParams(ctypes.Structure):
    """MoeDecodeParams."""

    _fields_ = (
        ("maps", ctypes.c_char * 256),
        ("shape", Shape),
        ("topk_ids", Pairs),
        ("topk_weights", Pairs),
        ("sorted", ctypes.c_uint64 * 3),
        ("biases", ctypes.c_uint64 * 10),
        ("x", Rows),
        ("h", Rows),
        ("parts", Rows),
        ("out", Rows),
        ("counters", ctypes.c_uint64),
        ("alpha_limit", ctypes.c_float * 2),
        ("rest", ctypes.c_char * 40),
    )


@dataclass
class Weights:
    """Random weights on the GPU."""

    layer: Layer
    gate_up: torch.Tensor  # [experts, 2 intermediate, hidden]
    down: torch.Tensor  # [experts, hidden, intermediate]

    @classmethod
    def draw(cls, layer: Layer) -> Weights:
        import torch

        def matrix(rows: int, cols: int) -> torch.Tensor:
            out = torch.empty(layer.experts, rows, cols, device="cuda", dtype=torch.bfloat16)
            for expert in out:
                expert.copy_(torch.randn(rows, cols, device="cuda") * cols**-0.5)
            return out

        return cls(layer, matrix(2 * layer.intermediate, layer.hidden), matrix(layer.hidden, layer.intermediate))


@dataclass
class Call:
    """A call's rows and routing, and what it leaves."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    scratch: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def draw(cls, layer: Layer, tokens: int, skewed: bool = False) -> Call:
        import torch

        x = torch.randn(tokens, layer.hidden, device="cuda").bfloat16()
        logits = torch.randn(tokens, layer.experts, device="cuda")
        if skewed:
            logits += torch.linspace(3, 0, layer.experts, device="cuda")
        weights, ids = torch.topk(torch.softmax(logits, -1), layer.top_k, sorted=True)
        return cls(x, ids.int(), weights / weights.sum(-1, keepdim=True), torch.empty_like(x))

    def reference(self, w: Weights) -> torch.Tensor:
        """In fp32, an expert after the other."""
        import torch

        out = torch.zeros(self.x.shape, device="cuda")
        for expert in self.ids.unique().tolist():
            if not 0 <= expert < w.layer.experts:
                continue
            token, slot = (self.ids == expert).nonzero(as_tuple=True)
            gate, up = (self.x[token].float() @ w.gate_up[expert].float().t()).chunk(2, -1)
            part = (torch.nn.functional.silu(gate) * up) @ w.down[expert].float().t()
            out.index_add_(0, token, part * self.weights[token, slot, None])
        return out


def in_turn(steps: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run


Config = SortConfig | GatherConfig | LayerConfig | DecodeConfig


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
        counts = torch.empty(params.chunks * most_experts(experts), device="cuda", dtype=torch.int32)
        call.scratch.append(counts)
        params.counts = counts.data_ptr()
        steps = steps[1:] if params.chunks == 1 else steps
        return [step.prepare(params.chunks, params, programmatic) for step in steps]


SORTS = tuple(SortConfig(counts, own) for own in (4, 8) for counts in (1, 0))


def most_experts(experts: int) -> int:
    """That the sort for so many has room for."""
    return min(c.most_experts for c in SORTS if c.most_experts >= experts)


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

    def layer(self, w: Weights, call: Call, programmatic: bool) -> Callable[[], None]:
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
        octets = (layer.experts, i // 8, 2, 8, h)
        maps = [
            tensor_map(
                w.gate_up.data_ptr(),
                "bf16",
                octets,
                (2 * i * h, 8 * h, i * h, h),
                (1, c.block_m // 16, 2, 8, 64),
                128,
            ),
            tensor_map(w.down.data_ptr(), "bf16", (layer.experts, h, i), (h * i, i), (1, c.block_m, 64), 128),
        ]
        p = DecodeParams()
        ctypes.memmove(ctypes.addressof(p), b"".join(maps), 256)
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

    def layer(self, w: Weights, call: Call, programmatic: bool) -> Callable[[], None]:
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
        octets = (layer.experts, i // 8, 2, 8, h)
        maps = [
            *(matrix_map(gathered.data_ptr(), "bf16", (pairs, h), (rows, 64), True) for rows in BOX_ROWS),
            *(matrix_map(values.data_ptr(), "bf16", (pairs, i), (rows, 64), True) for rows in BOX_ROWS),
            tensor_map(w.gate_up.data_ptr(), "bf16", octets, (2 * i * h, 8 * h, i * h, h), (1, 8, 2, 8, 64), 128),
            tensor_map(values.data_ptr(), "bf16", (pairs, i), (i,), (16, 32), 64),
            tensor_map(w.down.data_ptr(), "bf16", (layer.experts, h, i), (h * i, i), (1, 128, 64), 128),
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


def grouped_layer(w: Weights, call: Call) -> Callable[[], Any]:
    """As transformers' "grouped_mm" experts have it."""
    import torch

    up_t, down_t = w.gate_up.transpose(-2, -1), w.down.transpose(-2, -1)
    tokens, top_k = call.ids.shape

    def layer() -> None:
        flat = call.ids.reshape(-1)
        order = torch.argsort(flat)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        counts = torch.histc(flat.float(), bins=w.layer.experts, min=0, max=w.layer.experts - 1)
        offsets = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = call.x[order // top_k]
        gate, up = torch._grouped_mm(rows, up_t, offs=offsets).chunk(2, -1)
        parts = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down_t, offs=offsets)
        parts = parts * call.weights.reshape(-1)[order, None]
        call.out.copy_(parts[back].view(tokens, top_k, -1).sum(1))

    return layer


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


def error_of(kernel: Decode | ManyRows, w: Weights, call: Call) -> float:
    """Relative, in the norm; infinite where runs differ in a bit or something is not written."""
    import torch

    run, runs = kernel.layer(w, call, False), []
    for _ in range(3):
        call.out.fill_(float("nan"))
        run()
        runs.append(call.out.clone())
    torch.cuda.synchronize()
    if not all(torch.equal(run.view(torch.int16), runs[0].view(torch.int16)) for run in runs):
        return float("inf")
    reference = call.reference(w)
    error = float(((runs[0].float() - reference).norm() / reference.norm().clamp_min(1e-30)).item())
    return error if error == error else float("inf")


def floor_of(layer: Layer, calls: list[Call]) -> float:
    """Seconds of a call: of the weights that it touches, or of its operations."""
    expert = 3 * layer.intermediate * layer.hidden
    touched = statistics.mean(float(call.ids.unique().numel()) for call in calls)
    return float(max(touched * expert * 2 / BYTES_PER_SECOND, calls[0].ids.numel() * expert * 2 / FLOPS))


def graph_of(runs: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    import torch

    runs[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph


def seconds_of(ways: dict[str, list[Callable[[], Any]]], samples: int, pause: float) -> dict[str, list[float]]:
    """Of a call, in turns; each sample is a graph of all calls, after a pause."""
    import torch

    graphs = {name: graph_of(runs) for name, runs in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(samples + 1):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn > 0:
                seconds[name].append(begin.elapsed_time(end) / 1e3 / len(ways[name]))
    return seconds


def kernel_microseconds(call: Callable[[], Any]) -> list[float]:
    """Of each launch of a call, as CUPTI sees them, the last of three times."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    events = sorted(profile.events() or [], key=lambda event: event.time_range.start)
    times = [round(event.device_time_total, 1) for event in events if event.device_time_total > 0]
    return times[len(times) // 3 * 2 :]


def measure(
    name: str, tokens: int, w: Weights, kernels: list[Decode | ManyRows], options: argparse.Namespace
) -> dict[str, Any]:
    layer = w.layer
    fine = []
    for kernel in kernels:
        errors = [error_of(kernel, w, Call.draw(layer, tokens, skewed)) for skewed in (False, True)]
        print(f"{name} {tokens} {kernel.config.name}: errors {errors[0]:.2e} {errors[1]:.2e}", flush=True)
        if max(errors) < WORST_ERROR:
            fine.append(kernel)
    if options.check_only:
        return {}
    count = 24 if tokens <= 4 else 8 if tokens <= 512 else 2
    calls = [Call.draw(layer, tokens) for _ in range(count)]
    floor = floor_of(layer, calls)
    ways = {
        f"{k.config.name}{' pdl' if pdl else ''}": [k.layer(w, call, pdl) for call in calls]
        for k in fine
        for pdl in (False, True)
    }
    if options.kernels_apart:
        for kernel in fine:
            print(f"  {kernel.config.name}: {kernel_microseconds(kernel.layer(w, calls[0], False))}", flush=True)
    if options.peers:
        ways["grouped_mm"] = [grouped_layer(w, call) for call in calls]
    seconds = seconds_of(ways, options.samples, options.pause)
    print(f"{name} {tokens} tokens: floor {floor * 1e6:.1f} us, {count} calls")
    for way, of in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(of)
        print(
            f"  {way:36} {middle * 1e6:8.1f} us ({min(of) * 1e6:.1f} to {max(of) * 1e6:.1f})  {middle / floor:.2f} x",
            flush=True,
        )
    return {"floor": floor, "seconds": seconds}


CONFIGS = (
    DecodeConfig(8, 1, 12, 128),
    DecodeConfig(8, 1, 22, 64),
    DecodeConfig(8, 1, 6, 128, consumers=2),
    DecodeConfig(8, 1, 12, 64, consumers=2),
    DecodeConfig(16, 4, 11, 128, tokens=(16, 16)),
    DecodeConfig(16, 4, 6, 128, consumers=2, tokens=(16, 16)),
    DecodeConfig(16, 4, 12, 64, consumers=2, tokens=(16, 16)),
    DecodeConfig(64, 16, 9, 64, consumers=2, tokens=(64, 64)),
    DecodeConfig(64, 16, 5, 64, consumers=2, row_blocks=2, tokens=(64, 64)),
    DecodeConfig(64, 0, 9, 64, consumers=2, tokens=(64, 512)),
    DecodeConfig(64, 0, 5, 64, consumers=2, row_blocks=2, tokens=(64, 512)),
    LayerConfig(256, 4),
    LayerConfig(256, 4, column_step=16),
    LayerConfig(256, 4, held_experts=8, tokens=(4096, 1 << 20)),
    LayerConfig(192, 5, column_step=16, tokens=(128, 512)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="qwen,mixtral", help="default: qwen,mixtral")
    parser.add_argument("--tokens", default="1,16,64,512", help="default: 1,16,64,512")
    parser.add_argument("--filter", default="", help="only configurations whose name contains it")
    parser.add_argument("--samples", type=int, default=20, help="of each, default: 20")
    parser.add_argument("--pause", type=float, default=0.01, metavar="SECONDS", help="before a sample, default: 0.01")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave torch's layer out")
    parser.add_argument("--kernels-apart", action="store_true", help="time each launch of a call too")
    parser.add_argument("--kernels", type=Path, metavar="DIR", help="where machine code is kept")
    parser.add_argument("--compile-only", type=Path, metavar="DIR", help="compile into this folder and leave")
    parser.add_argument("--check-only", action="store_true", help="compare with fp32 and leave, as for sanitizers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args()
    configs = tuple(c for c in CONFIGS if options.filter in c.name)
    code = compiled((*SORTS, GatherConfig(), *configs), options.compile_only or options.kernels)
    if options.compile_only:
        return 0
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("moe_gpu.py: needs an NVIDIA GPU of sm_90, which torch does not see", file=sys.stderr)
        return 1
    torch.zeros(1, device="cuda")
    torch.manual_seed(options.samples)
    sort = Sort(code)
    gather = Kernel(GatherConfig(), code["gather"], GatherParams)
    kernels = [
        ManyRows(c, code[c.name], sort, gather) if isinstance(c, LayerConfig) else Decode(c, code[c.name], sort)
        for c in configs
    ]
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in options.layers.split(","):
        weights = Weights.draw(LAYERS[name])
        for tokens in (int(text) for text in options.tokens.split(",")):
            fit = [kernel for kernel in kernels if kernel.serves(LAYERS[name], tokens)]
            results[f"{name} {tokens}"] = measure(name, tokens, weights, fit, options)
        del weights
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
