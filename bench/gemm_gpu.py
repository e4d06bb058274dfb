"""Hopper's products (src/device/gemm/sm90) beside cuBLAS: bf16, and fp8 with scales of 1 x 128 by 128 x 128.

Each configuration is compiled by NVRTC, compared with float64 on random data at two shapes, one of them with ragged
edges, and timed in turns with torch's product: captured graphs of some 4 ms of calls, each sample after a pause, since
a card at its power limit is slower back to back; and once more kernel by kernel, as CUPTI sees them. --compile-only DIR
leaves machine code there, which --kernels DIR takes. Needs torch and an NVIDIA GPU of sm_90, and NVRTC where there is
no machine code yet.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_program import CudaModule, compile_cuda, matrix_map, tensor_map

if TYPE_CHECKING:
    import torch

REPOSITORY = Path(__file__).resolve().parent.parent
ARCHITECTURE = "sm_90a"
SAMPLE_SECONDS = 4e-3  # of a graph, about
SCALED = 128  # elements of a scale
LARGEST = 448.0  # of e4m3
WORST_ERROR = 3e-3  # of out in bf16, relative, in the norm
RAGGED = {"bf16": (1000, 1032, 2104), "fp8": (1000, 1160, 2176)}
SHAPES = {"bf16": (8192, 8192, 8192), "fp8": (4096, 4096, 7168)}

STUB = """#include "device/sm90/machine.h"
#include "device/sm90/ops.h"
#include "device/gemm/sm90/{header}.h"
namespace tilewise::device {{
using Ops = Sm90Ops<HopperMachine>;
inline constexpr GemmConfig kConfig = [] {{
  GemmConfig c;
  {config}
  return c;
}}();
using Kernel = {kernel}<Ops, kConfig>;
}}  // namespace tilewise::device
extern "C" __device__ const int shared_bytes = sizeof(tilewise::device::Kernel::Shared);
extern "C" __device__ const int param_bytes = sizeof(tilewise::device::Kernel::Params);
extern "C" __global__ void __cluster_dims__({cluster}) __launch_bounds__({threads}, 1)
    gemm(const __grid_constant__ tilewise::device::Kernel::Params params) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  tilewise::device::Kernel::run(params, *reinterpret_cast<tilewise::device::Kernel::Shared*>(memory));
}}
"""


@dataclass(frozen=True)
class Config:
    """As device/gemm/sm90/config.h has it; panels: of rows of clusters' tiles, tried one after another."""

    dtype: str
    block_m: int
    block_n: int
    stages: int
    store_buffers: int
    cluster: int = 2
    shares_x: int = 0
    parts: int = 1
    panels: tuple[int, ...] = (8,)

    THREADS = 384

    @property
    def block_k(self) -> int:
        return 128 if self.dtype == "fp8" else 64

    @property
    def name(self) -> str:
        shared = "x" if self.shares_x else "w"
        cluster = f"_c{self.cluster}{shared}" if self.cluster > 1 else ""
        return f"{self.dtype}_{self.block_m}x{self.block_n}_s{self.stages}_b{self.store_buffers}{cluster}_p{self.parts}"

    @property
    def source(self) -> str:
        fields = {"type": "kE4m3" if self.dtype == "fp8" else "kBf16", **asdict(self)}
        config = " ".join(
            f"c.{field} = {value};" for field, value in fields.items() if field not in {"dtype", "panels"}
        )
        scaled = self.dtype == "fp8"
        return STUB.format(
            header="scaled_product" if scaled else "product",
            kernel="Sm90ScaledGemm" if scaled else "Sm90Gemm",
            config=config,
            cluster=self.cluster,
            threads=self.THREADS,
        )


CONFIGS = (
    Config("bf16", 128, 256, 4, 2),
    Config("bf16", 256, 128, 4, 2, shares_x=1),
    Config("fp8", 256, 128, 3, 4, shares_x=1),
    Config("fp8", 256, 128, 4, 1, shares_x=1),
    Config("fp8", 128, 128, 6, 1, shares_x=1, parts=2),
)


class Params(ctypes.Structure):
    """GemmParams of params.h."""

    _fields_ = (
        ("maps", ctypes.c_char * 384),
        ("grid", ctypes.c_int32 * 4),
        ("groups_and_out", ctypes.c_int64 * 3),
        ("bias", ctypes.c_int64 * 4),
        ("steps", ctypes.c_int32),
        ("num_experts", ctypes.c_int32),
        ("m", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("unused", ctypes.c_int64 * 5),
    )


class ScaledParams(ctypes.Structure):
    """ScaledGemmParams of params.h."""

    _fields_ = (
        ("gemm", Params),
        ("x_scale_map", ctypes.c_char * 128),
        ("w_scale", ctypes.c_uint64),
        ("w_scale_expert_stride", ctypes.c_int64),
        ("w_scale_stride", ctypes.c_int64),
        ("unused", ctypes.c_int64 * 5),
    )


@dataclass
class Inputs:
    """Random operands on the GPU: x [m, k] and w [n, k], and their scales in fp8; out [m, n], poisoned."""

    dtype: str
    shape: tuple[int, int, int]
    x: torch.Tensor
    w: torch.Tensor
    x_scale: torch.Tensor | None  # [k / 128, m]
    w_scale: torch.Tensor | None  # [n / 128, k / 128 rounded up to a multiple of 4]
    out: torch.Tensor

    @classmethod
    def draw(cls, dtype: str, shape: tuple[int, int, int]) -> Inputs:
        import torch

        m, n, k = shape
        x, w = (torch.randn(rows, k, device="cuda") for rows in (m, n))
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        if dtype == "bf16":
            return cls(dtype, shape, x.bfloat16(), w.bfloat16(), None, None, out)
        steps, blocks = k // SCALED, -(-n // SCALED)
        x_scale = (x.view(m, steps, SCALED).abs().amax(2) / LARGEST).t().contiguous()
        w_scale = torch.ones(blocks, -(-steps // 4) * 4, device="cuda")
        padded = torch.nn.functional.pad(w, (0, 0, 0, blocks * SCALED - n))
        w_scale[:, :steps] = padded.view(blocks, SCALED, steps, SCALED).abs().amax((1, 3)) / LARGEST
        x /= x_scale.t().repeat_interleave(SCALED, 1)
        w /= w_scale.repeat_interleave(SCALED, 0).repeat_interleave(SCALED, 1)[:n, :k]
        return cls(dtype, shape, x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), x_scale, w_scale, out)

    def reference(self) -> torch.Tensor:
        """In float64."""
        x, w = self.x.double(), self.w.double()
        if self.x_scale is not None and self.w_scale is not None:
            _, n, k = self.shape
            x *= self.x_scale.double().t().repeat_interleave(SCALED, 1)
            blocks = self.w_scale.double().repeat_interleave(SCALED, 0).repeat_interleave(SCALED, 1)
            w *= blocks[:n, :k]
        product: torch.Tensor = x @ w.t()
        return product


class Product:
    """A configuration's machine code."""

    def __init__(self, config: Config, code: bytes) -> None:
        self.config = config
        self._module = CudaModule(code)
        self._shared_bytes = self._module.number("shared_bytes")
        expected = ctypes.sizeof(ScaledParams if config.dtype == "fp8" else Params)
        if (found := self._module.number("param_bytes")) != expected:
            raise RuntimeError(f"{config.name}: parameters are {found} bytes, {expected} here")

    def prepare(self, inputs: Inputs, panel: int, overlaps: bool = False) -> Callable[[], None]:
        """A call on torch's current stream; overlaps: its blocks come while those of the call before go."""
        import torch

        c, (m, n, k) = self.config, inputs.shape
        element = "u8" if c.dtype == "fp8" else "bf16"
        x_box, w_box = (c.block_m // c.cluster, c.block_n) if c.shares_x else (c.block_m, c.block_n // c.cluster)
        maps = [
            matrix_map(inputs.x.data_ptr(), element, (m, k), (x_box, c.block_k), True),
            tensor_map(inputs.w.data_ptr(), element, (1, n, k), (n * k, k), (1, w_box, c.block_k), 128),
            matrix_map(inputs.out.data_ptr(), "bf16", (m, n), (16, 64), True),
        ]
        rows = -(-m // (c.block_m * (1 if c.shares_x else c.cluster)))
        cols = -(-n // (c.block_n * (c.cluster if c.shares_x else 1)))
        params = Params()
        ctypes.memmove(ctypes.addressof(params), b"".join(maps), 384)
        params.grid[:] = [rows, cols, panel, 0]
        params.steps = -(-k // c.block_k)
        params.m, params.n = m, n
        argument: ctypes.Structure = params
        if inputs.x_scale is not None and inputs.w_scale is not None:
            scaled = ScaledParams(gemm=params)
            scale_map = matrix_map(inputs.x_scale.data_ptr(), "f32", (k // SCALED, m), (1, c.block_m), False)
            ctypes.memmove(ctypes.addressof(scaled) + ScaledParams.x_scale_map.offset, scale_map, 128)
            scaled.w_scale, scaled.w_scale_stride = inputs.w_scale.data_ptr(), inputs.w_scale.shape[1]
            argument = scaled
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        blocks = min(rows * cols, multiprocessors // c.cluster) * c.cluster
        launch = self._module.prepare("gemm", blocks, c.THREADS, self._shared_bytes, [argument], overlaps)
        return lambda: launch(torch.cuda.current_stream().cuda_stream)


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


def error_of(product: Product, inputs: Inputs, reference: torch.Tensor, panel: int) -> float:
    """Relative, in the norm; infinite where runs differ in a bit or something is not written."""
    import torch

    call, runs = product.prepare(inputs, panel), []
    for _ in range(3):
        inputs.out.fill_(float("nan"))
        call()
        runs.append(inputs.out.clone())
    torch.cuda.synchronize()
    if not all(torch.equal(run.view(torch.int16), runs[0].view(torch.int16)) for run in runs):
        return float("inf")
    error = ((runs[0].double() - reference).norm() / reference.norm()).item()
    return error if error == error else float("inf")


def peers(inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
    """torch's own products of the same operands."""
    import torch

    if inputs.x_scale is None or inputs.w_scale is None:
        return {"cuBLAS": lambda: torch.mm(inputs.x, inputs.w.t(), out=inputs.out)}
    (m, n, k), w = inputs.shape, inputs.w.t()
    rows, cols = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    x_scale, w_scale = inputs.x_scale.t(), inputs.w_scale[:, : k // SCALED].t()

    def rowwise() -> Any:
        return torch._scaled_mm(inputs.x, w, rows, cols, out_dtype=torch.bfloat16, use_fast_accum=True)

    def blockwise() -> Any:
        return torch._scaled_mm(inputs.x, w, x_scale, w_scale, out_dtype=torch.bfloat16)

    calls = {"cuBLASLt by rows, fast sums": rowwise, "cuBLASLt 1 x 128 by 128 x 128": blockwise}
    return {name: call for name, call in calls.items() if runs(name, call)}


def runs(name: str, call: Callable[[], Any]) -> bool:
    """Whether torch has it here."""
    import torch

    try:
        call()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        print(f"{name}: {str(error).splitlines()[0][:200]}")
        return False
    return True


def graph_of(call: Callable[[], Any], count: int) -> torch.cuda.CUDAGraph:
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph


def kernel_seconds(call: Callable[[], Any], samples: int, pause: float) -> list[float]:
    """What CUPTI says of each of some calls, each of which is a kernel, after a pause."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(samples):
            time.sleep(pause)
            call()
            torch.cuda.synchronize()
    events = profile.events() or []
    return [event.device_time_total / 1e6 for event in events if event.device_time_total > 10]


def seconds_of(
    calls: Mapping[str, Callable[[], Any]], count: int, samples: int, pause: float
) -> dict[str, list[float]]:
    """Of a call, in turns; each sample is of so many and comes after a pause."""
    import torch

    graphs = {name: graph_of(call, count) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
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
                seconds[name].append(begin.elapsed_time(end) / 1e3 / count)
    return seconds


def measure(dtype: str, products: list[Product], options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times; what failed its check is not timed."""
    calls: dict[str, Callable[[], Any]] = {}
    ragged = Inputs.draw(dtype, RAGGED[dtype])
    ragged_reference = ragged.reference()
    inputs = Inputs.draw(dtype, options.shape or SHAPES[dtype])
    reference, errors = inputs.reference(), {}
    for product in products:
        panel = product.config.panels[0]
        found = error_of(product, ragged, ragged_reference, panel), error_of(product, inputs, reference, panel)
        errors[product.config.name] = found
        fine = max(found) < WORST_ERROR
        print(
            f"{product.config.name}: error {found[0]:.2e} ragged, {found[1]:.2e}{'' if fine else ' WRONG'}", flush=True
        )
        for panel in product.config.panels if fine else ():
            for overlaps in (False, True):
                name = f"{product.config.name} panel {panel}{' programmatic' if overlaps else ''}"
                calls[name] = product.prepare(inputs, panel, overlaps)
    if options.check_only:
        return {"shape": inputs.shape, "errors": errors}
    calls |= peers(inputs)
    m, n, k = inputs.shape
    tera = 2e-12 * m * n * k
    count = max(1, round(SAMPLE_SECONDS * 1000 / tera))
    times = {
        "rested": seconds_of(calls, count, options.samples, options.pause),
        "back to back": seconds_of(calls, count, options.samples, 0.0),
        "kernels": {name: kernel_seconds(call, options.samples, options.pause) for name, call in calls.items()},
    }
    result: dict[str, Any] = {"shape": inputs.shape, "errors": errors, "seconds": times}
    print(f"\n{dtype} {m} x {n} x {k}, TFLOP/s: median (worst to best) rested; back to back; of kernels alone, rested")
    for name in sorted(calls, key=lambda name: statistics.median(times["rested"][name])):
        rates = {title: sorted(tera / x for x in of[name]) or [float("nan")] for title, of in times.items()}
        middle = {title: statistics.median(of) for title, of in rates.items()}
        spread = f"({rates['rested'][0]:.0f} to {rates['rested'][-1]:.0f})"
        print(f"{name:46} {middle['rested']:7.0f} {spread} {middle['back to back']:7.0f} {middle['kernels']:7.0f}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="bf16,fp8", help="default: bf16,fp8")
    parser.add_argument("--filter", default="", help="only configurations whose name contains it")
    parser.add_argument("--shape", type=lambda text: tuple(int(x) for x in text.split(",")), metavar="M,N,K")
    parser.add_argument("--samples", type=int, default=20, help="of each, default: 20")
    parser.add_argument("--pause", type=float, default=0.03, metavar="SECONDS", help="before a sample, default: 0.03")
    parser.add_argument("--kernels", type=Path, metavar="DIR", help="where machine code is kept")
    parser.add_argument("--compile-only", type=Path, metavar="DIR", help="compile into this folder and leave")
    parser.add_argument("--check-only", action="store_true", help="compare with float64 and leave, as for sanitizers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    configs = tuple(c for c in CONFIGS if c.dtype in dtypes and options.filter in c.name)
    code = compiled(configs, options.compile_only or options.kernels)
    if options.compile_only:
        return 0
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("gemm_gpu.py: needs an NVIDIA GPU of sm_90, which torch does not see", file=sys.stderr)
        return 1
    torch.zeros(1, device="cuda")
    torch.manual_seed(options.samples)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for dtype in dtypes:
        products = [Product(config, code[config.name]) for config in configs if config.dtype == dtype]
        results[dtype] = measure(dtype, products, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
