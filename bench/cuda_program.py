"""CUDA source of a benchmark's own: compiled by NVRTC, loaded into torch's context and launched, by ctypes alone."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
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
        function = ctypes.c_void_p()
        self._check("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        self._check("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        self._check("cuLaunchKernel", function, 1, 1, 1, threads, 1, 1, shared_bytes, None, pointers, None)
        self._check("cuCtxSynchronize")
