"""Runs what `tilewise compile --out DIR` wrote, with nothing of Tilewise: ctypes, the GPU's driver, and launch.json.

    tilewise compile --target sm_90a --out kernels --problem attention_forward dtype=f16 seqlen_q=256 head_dim=64
    python examples/bare_driver/launch.py kernels

Takes a forward or a backward problem in f16 and layout bshd without options, and compares with NumPy in float64.
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
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
MAP_BYTES, MAP_ALIGNMENT = 128, 64
MAP_TYPES = {"bf16": 9, "f16": 6, "f32": 7}  # CUtensorMapDataType; others are bytes, 0
MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
PROMOTE_256 = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and its value from byte 8 on, of 64 bytes."""

    _fields_ = (("number", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


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

    def clear(self, address: int, size: int) -> None:
        name = "hipMemset" if self.hip else "cuMemsetD8_v2"
        self.call(name, ctypes.c_void_p(address), 0, ctypes.c_size_t(size))

    def launch(self, function: ctypes.c_void_p, launch: dict[str, Any], block: bytes) -> None:
        parameter = ctypes.create_string_buffer(block, len(block))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        sizes = [*launch["grid"], *launch["block"], launch["dynamic_shared_bytes"]]
        if launch["cluster"] == [1, 1, 1]:
            name = "hipModuleLaunchKernel" if self.hip else "cuLaunchKernel"
            self.call(name, function, *map(ctypes.c_uint, sizes), None, parameters, None)
        else:
            attribute = LaunchAttribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(*launch["cluster"]))
            config = LaunchConfig((ctypes.c_uint * 7)(*sizes), None, ctypes.pointer(attribute), 1)
            self.call("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)
        self.call("hipStreamSynchronize" if self.hip else "cuStreamSynchronize", None)

    def encode(self, tensor_map: dict[str, Any], address: int) -> bytes:
        """A tensor map's bytes, which stand in the parameter block."""
        dims, rank = tensor_map["dims"], len(tensor_map["dims"])
        room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        past = -ctypes.addressof(room) % MAP_ALIGNMENT
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(ctypes.addressof(room) + past),
            MAP_TYPES.get(tensor_map["dtype"], 0),
            ctypes.c_uint(rank),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * (rank - 1))(*tensor_map["stride_bytes"]),
            (ctypes.c_uint * rank)(*tensor_map["box"]),
            (ctypes.c_uint * rank)(*[1] * rank),  # every element
            0,  # not interleaved
            MAP_SWIZZLES[tensor_map["swizzle_bytes"]],
            PROMOTE_256,
            0,  # what is outside reads as zeros
        )
        return room.raw[past : past + MAP_BYTES]


def pack(parameters: dict[str, Any], values: dict[str, Any]) -> bytes:
    """The parameter block; what has no value is 0, and for pointers that means: not given."""
    block = bytearray(parameters["size"])
    for field in parameters["fields"]:
        if field["name"] in values:
            kind = "Q" if field["type"].endswith("*") else FORMATS[field["type"]]
            struct.pack_into("<" + kind, block, field["offset"], values[field["name"]])
    return bytes(block)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """Results and gradients of bshd arrays, in float64, softmax_lse as [batch_size, num_heads_q, seqlen_q]."""
    batch_size, _, num_heads_k, _ = k.shape
    group = q.shape[2] // num_heads_k
    q, k, v, dout = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, dout))
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ k.transpose(0, 1, 3, 2)
    softmax_lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    p = np.exp(scores - softmax_lse[..., None])
    out = p @ v
    dp = dout @ v.transpose(0, 1, 3, 2)
    ds = p * (dp - (out * dout).sum(-1, keepdims=True))
    results = {"out": out, "dq": scale * ds @ k}
    for name, gradient in {"dk": scale * ds.swapaxes(2, 3) @ q, "dv": p.swapaxes(2, 3) @ dout}.items():
        results[name] = gradient.reshape(batch_size, num_heads_k, group, *gradient.shape[2:]).sum(2)
    return {name: array.transpose(0, 2, 1, 3) for name, array in results.items()} | {"softmax_lse": softmax_lse}


def make_arrays(size: dict[str, int], scale: float, backward: bool) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The problem's tensors by name, those that it writes full of NaN, and what these should become."""
    rng = np.random.default_rng(0)
    shape_q = (size["batch_size"], size["seqlen_q"], size["num_heads_q"], size["head_dim"])
    shape_k = (size["batch_size"], size["seqlen_k"], size["num_heads_k"], size["head_dim"])
    shape_v, shape_out = (*shape_k[:3], size["head_dim_v"]), (*shape_q[:3], size["head_dim_v"])
    q, k, v, dout = (rng.standard_normal(s).astype(np.float16) for s in (shape_q, shape_k, shape_v, shape_out))
    expected = attention(q, k, v, dout, scale)
    arrays = {"q": q, "k": k, "v": v}
    if backward:
        out, softmax_lse = expected.pop("out").astype(np.float16), expected.pop("softmax_lse").astype(np.float32)
        arrays |= {"dout": dout, "out": out, "softmax_lse": softmax_lse}
    else:
        expected = {name: expected[name] for name in ("out", "softmax_lse")}
    for name, array in expected.items():
        arrays[name] = np.full(array.shape, np.nan, np.float32 if name == "softmax_lse" else np.float16)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}, expected


def run_steps(driver: Driver, folder: Path, report: dict[str, Any], addresses: dict[str, int]) -> int:
    """Everything that launch.json lists for its first problem, in order; the number of launches."""
    problem = report["problems"][0]
    kernels = {kernel["file"]: kernel for kernel in report["kernels"]}
    workspace = driver.allocate(max(problem["workspace"]["size"], 1))  # drivers align to 256 bytes
    for step in problem["steps"]:
        if "clear" in step:
            driver.clear(workspace + step["offset"], step["bytes"])
            continue
        values = dict(step["values_of_contiguous_tensors"])
        values |= {field: addresses[name] for field, name in step["pointers"]["tensors"].items()}
        values |= {field: workspace + offset for field, offset in step["pointers"]["workspace"].items()}
        block = bytearray(pack(kernels[step["file"]]["parameters"], values))
        for tensor_map in step["tensor_maps"]:
            if tensor_map["tensor"] is None:
                address = workspace + tensor_map["workspace"]
            else:
                address = addresses[tensor_map["tensor"]] + tensor_map["byte_offset"]
            offset = tensor_map["offset"]
            block[offset : offset + MAP_BYTES] = driver.encode(tensor_map, address)
        function = driver.load(folder / step["file"], step["symbol"], step["dynamic_shared_bytes"])
        driver.launch(function, step, bytes(block))
    return sum("file" in step for step in problem["steps"])


def run(folder: Path, library: str | None) -> None:
    report = json.loads((folder / "launch.json").read_text())
    problem = report["problems"][0]
    operation, *words = problem["problem"].split()
    sizes = {word.partition("=")[0] for word in words} - {"device", "dtype"}
    plain = {"batch_size", "seqlen_q", "seqlen_k", "num_heads_q", "num_heads_k", "head_dim", "head_dim_v"}
    known = operation in ("attention_forward", "attention_backward")
    if not known or "dtype=f16" not in words or not sizes <= plain:
        sys.exit(f"PROBLEM: must be attention in f16 without options (got {problem['problem']})")
    hip = report["target"].startswith("gfx")
    driver = Driver(library or ("libamdhip64.so" if hip else "libcuda.so.1"), hip)

    given = dict(word.split("=") for word in words)
    size = {name: int(given.get(name, 1)) for name in ("batch_size", "num_heads_q", "seqlen_q", "head_dim")}
    for name, default in {"seqlen_k": "seqlen_q", "num_heads_k": "num_heads_q", "head_dim_v": "head_dim"}.items():
        size[name] = int(given.get(name, size[default]))
    arrays, expected = make_arrays(size, size["head_dim"] ** -0.5, operation == "attention_backward")
    addresses = {name: driver.upload(array) for name, array in arrays.items()}
    launches = run_steps(driver, folder, report, addresses)
    largest = 0.0
    for name, array in expected.items():
        driver.download(addresses[name], arrays[name])
        error = np.abs(arrays[name] - array).max() / max(1.0, np.abs(array).max())
        largest = max(largest, float("inf") if np.isnan(error) else float(error))
    print(f"largest error of {launches} launches: {largest:.2e}")
    if not largest < 1e-2:
        sys.exit("that is too much")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what tilewise compile --out wrote")
    parser.add_argument("--driver", help="library to use in place of libcuda.so.1 or libamdhip64.so")
    arguments = parser.parse_args()
    run(arguments.folder, arguments.driver)


if __name__ == "__main__":
    main()
