"""Runs what `tilewise compile --out DIR` wrote, with nothing of Tilewise: ctypes, the GPU's driver, and launch.json.

    tilewise compile --target sm_90a --out kernels --problem attention_forward dtype=f16 seqlen_q=256 head_dim=64
    python examples/bare_driver/launch.py kernels

Takes a forward problem in f16 and layout bshd without options, and compares with NumPy in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = {"int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q", "float": "f"}
MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Driver:
    """The few functions of libcuda or libamdhip64 that a launch takes."""

    def __init__(self, path: str, hip: bool) -> None:
        try:
            self.library, self.hip = ctypes.CDLL(path), hip
        except OSError as error:
            sys.exit(f"no driver: {error}")
        self.call("hipInit" if hip else "cuInit", 0)
        if hip:
            self.call("hipSetDevice", 0)
        else:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), 0)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: error {status}")

    def load(self, path: Path, symbol: str, dynamic_shared_bytes: int) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        prefix = "hip" if self.hip else "cu"
        self.call(f"{prefix}ModuleLoadData", ctypes.byref(module), path.read_bytes())
        self.call(f"{prefix}ModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        if dynamic_shared_bytes and not self.hip:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, dynamic_shared_bytes)
        return function

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self.call("hipMalloc" if self.hip else "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value or 0

    def upload(self, array: np.ndarray) -> int:
        address = self.allocate(array.nbytes)
        target, source, size = ctypes.c_void_p(address), ctypes.c_void_p(array.ctypes.data), array.nbytes
        if self.hip:
            self.call("hipMemcpyHtoD", target, source, ctypes.c_size_t(size))
        else:
            self.call("cuMemcpyHtoD_v2", target, source, ctypes.c_size_t(size))
        return address

    def download(self, address: int, array: np.ndarray) -> None:
        target, source = ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(address)
        self.call("hipMemcpyDtoH" if self.hip else "cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(array.nbytes))

    def launch(self, function: ctypes.c_void_p, launch: dict[str, Any], block: bytes) -> None:
        parameter = ctypes.create_string_buffer(block, len(block))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        name = "hipModuleLaunchKernel" if self.hip else "cuLaunchKernel"
        sizes = [*launch["grid"], *launch["block"], launch["dynamic_shared_bytes"]]
        self.call(name, function, *map(ctypes.c_uint, sizes), None, parameters, None)
        self.call("hipStreamSynchronize" if self.hip else "cuStreamSynchronize", None)


def pack(parameters: dict[str, Any], values: dict[str, Any]) -> bytes:
    """The parameter block; what has no value is 0, and for pointers that means: not given."""
    block = bytearray(parameters["size"])
    for field in parameters["fields"]:
        if field["name"] in values:
            kind = "Q" if field["type"].endswith("*") else FORMATS[field["type"]]
            struct.pack_into("<" + kind, block, field["offset"], values[field["name"]])
    return bytes(block)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Of bshd arrays, in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = scale * q @ np.repeat(k, group, 1).transpose(0, 1, 3, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: np.ndarray = weights / weights.sum(-1, keepdims=True) @ np.repeat(v, group, 1)
    return out.transpose(0, 2, 1, 3)


def run(folder: Path, library: str | None) -> None:
    report = json.loads((folder / "launch.json").read_text())
    problem = report["problems"][0]
    values = dict(problem["values_of_contiguous_tensors"])
    words = set(problem["problem"].split())
    if not {"attention_forward", "dtype=f16"} <= words or values["call.window_right"] != -1:
        sys.exit(f"PROBLEM: must be attention_forward in f16 without options (got {problem['problem']})")
    hip = report["target"].startswith("gfx")
    driver = Driver(library or ("libamdhip64.so" if hip else "libcuda.so.1"), hip)

    size = {name.removeprefix("call."): value for name, value in values.items()}
    rng = np.random.default_rng(0)
    shape_q = (size["batch_size"], size["seqlen_q"], size["num_heads_q"], size["head_dim"])
    shape_k = (size["batch_size"], size["seqlen_k"], size["num_heads_k"], size["head_dim"])
    q, k, v = (
        rng.standard_normal(shape).astype(np.float16)
        for shape in (shape_q, shape_k, (*shape_k[:3], size["head_dim_v"]))
    )
    out = np.full((*shape_q[:3], size["head_dim_v"]), np.nan, np.float16)
    softmax_lse = np.zeros((size["batch_size"], size["num_heads_q"], size["seqlen_q"]), np.float32)
    for name, array in {"q": q, "k": k, "v": v, "out": out, "softmax_lse": softmax_lse}.items():
        values[f"call.{name}.data"] = driver.upload(array)
    workspace = problem["workspace"]
    if workspace["size"]:
        base = driver.allocate(workspace["size"])  # drivers align to 256 bytes
        values |= {name: base + offset for name, offset in workspace["offsets"].items()}
    for launch in problem["launches"]:
        function = driver.load(folder / launch["file"], launch["symbol"], launch["dynamic_shared_bytes"])
        driver.launch(function, launch, pack(report["parameters"], values | launch["values"]))
    driver.download(values["call.out.data"], out)
    error = np.abs(out - attention(q, k, v, values["call.softmax_scale"])).max()
    print(f"largest error of {len(problem['launches'])} launches: {error:.2e}")
    if not error < 1e-2:
        sys.exit("that is too much")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what tilewise compile --out wrote")
    parser.add_argument("--driver", help="library to use in place of libcuda.so.1 or libamdhip64.so")
    arguments = parser.parse_args()
    run(arguments.folder, arguments.driver)


if __name__ == "__main__":
    main()
