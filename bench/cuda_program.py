"""CUDA source of a benchmark's own: compiled by NVRTC, loaded into torch's context and launched, by ctypes alone."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# NVRTC has no <stdint.h>; as src/jit gives it to the kernels.
_STDINT = "".join(
    f"typedef {kind} {name};\n"
    for name, kind in {
        "int8_t": "signed char",
        "int16_t": "short",
        "int32_t": "int",
        "int64_t": "long",
        "uint8_t": "unsigned char",
        "uint16_t": "unsigned short",
        "uint32_t": "unsigned int",
        "uint64_t": "unsigned long",
        "intptr_t": "long",
        "uintptr_t": "unsigned long",
    }.items()
)
_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def find_nvrtc() -> str:
    """TILEWISE_NVRTC, the one of pip, or whatever the loader finds. Raises RuntimeError where there is none."""
    named = os.environ.get("TILEWISE_NVRTC")
    found = [
        str(file)
        for entry in sys.path
        for folder in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
        for file in sorted((Path(entry) / folder).glob("libnvrtc.so.*"))
    ]
    for candidate in [named] if named else [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return candidate
    raise RuntimeError(
        f"NVRTC not found ({named or 'pip install nvidia-cuda-nvrtc brings it, TILEWISE_NVRTC names it'})"
    )


def compile_cuda(source: str, architecture: str, include: Path) -> bytes:
    """Machine code of C++20 source, which includes files below `include`. Raises RuntimeError with NVRTC's log."""
    nvrtc = ctypes.CDLL(find_nvrtc())
    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(_STDINT.encode()), (ctypes.c_char_p * 1)(b"stdint.h")
    options = [f"--gpu-architecture={architecture}", "--std=c++20", "-default-device", f"--include-path={include}"]
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"benchmark.cu", 1, headers, names) != 0:
        raise RuntimeError("nvrtcCreateProgram failed")
    try:
        result = nvrtc.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        )
        if result != 0:
            raise RuntimeError(f"NVRTC: {_text_of(nvrtc, program, 'ProgramLog').decode(errors='replace')}")
        return _text_of(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text_of(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.raw


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute whose value is an int."""

    _fields_ = (("id", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


class CudaModule:
    """Machine code loaded into the context that torch has made."""

    def __init__(self, code: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check("cuModuleLoadData", ctypes.byref(self._module), code)

    def _check(self, function: str, *arguments: Any) -> None:
        result = getattr(self._driver, function)(*arguments)
        if result != 0:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(words))
            raise RuntimeError(f"{function}: {(words.value or b'unknown error').decode()} ({result})")

    def launch(self, name: str, threads: int, shared_bytes: int, arguments: Sequence[Any]) -> None:
        """One block of a kernel on the default stream, of ctypes' values. Waits for its end."""
        self.prepare(name, 1, threads, shared_bytes, arguments)(0)
        self._check("cuCtxSynchronize")

    def prepare(
        self,
        name: str,
        blocks: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Any],
        programmatic: bool = False,
    ) -> Callable[[int], None]:
        """What launches a kernel with ctypes' values on the stream of that handle.

        programmatic: the kernel waits itself for the one before it in the stream."""
        function = ctypes.c_void_p()
        self._check("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        self._check("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )

        attribute = _LaunchAttribute(id=_PROGRAMMATIC, value=1)
        config = _LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes)
        config.attributes, config.count = ctypes.pointer(attribute), int(programmatic)

        def launch(stream: int) -> None:
            config.stream = stream
            self._check("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)

        return launch

    def number(self, name: str) -> int:
        """An int among the module's variables."""
        address, size, value = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        self._check("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self._module, name.encode())
        self._check("cuMemcpyDtoH_v2", ctypes.byref(value), address, ctypes.c_size_t(ctypes.sizeof(value)))
        return value.value


def matrix_map(address: int, element: str, shape: tuple[int, int], box: tuple[int, int], swizzles: bool) -> bytes:
    """The driver's 128 bytes for a contiguous matrix of "u8", "bf16" or "f32": rows and columns, of it and of a box."""
    return tensor_map(address, element, shape, (shape[1],), box, 128 if swizzles else 0)


def tensor_map(
    address: int,
    element: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle_bytes: int,
) -> bytes:
    """The same of any rank from 2 to 5, the innermost dimension last; strides, in elements, of all but that one.

    swizzle_bytes: within which 16 bytes are permuted, 32, 64 or 128; 0: none."""
    size, kind = {"u8": (1, 0), "bf16": (2, 9), "f32": (4, 7)}[element]
    memory = ctypes.create_string_buffer(128 + 64)
    place = -(-ctypes.addressof(memory) // 64) * 64
    rank = len(shape)
    promotion = 3  # of L2, to 256 bytes
    result = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        kind,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*reversed(shape)),
        (ctypes.c_uint64 * (rank - 1))(*(stride * size for stride in reversed(strides))),
        (ctypes.c_uint32 * rank)(*reversed(box)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        {0: 0, 32: 1, 64: 2, 128: 3}[swizzle_bytes],
        promotion,
        0,
    )
    if result != 0:
        raise RuntimeError(f"cuTensorMapEncodeTiled: error {result} for {shape} {element} in boxes of {box}")
    return ctypes.string_at(place, 128)
