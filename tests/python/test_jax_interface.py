# What python/src/xla_ffi.hpp declares of XLA's interface is what JAX's headers say: sizes, places, numbers.
"""The interface of foreign functions, ours against JAX's own headers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

HEADER = Path(__file__).parents[2] / "python" / "src" / "xla_ffi.hpp"
STRUCTS = {
    "Version": ("Api_Version", {"extensions": "extension_start", "minor_version": "minor_version"}),
    "Metadata": ("Metadata", {"version": "api_version", "traits": "traits", "state_type": "state_type_id"}),
    "MetadataExtension": ("Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "ErrorCreateArguments": ("Error_Create_Args", {"message": "message", "code": "errc"}),
    "StreamArguments": ("Stream_Get_Args", {"context": "ctx", "stream": "stream"}),
    "OrdinalArguments": ("DeviceOrdinal_Get_Args", {"context": "ctx", "ordinal": "device_ordinal"}),
    "Buffer": ("Buffer", {"type": "dtype", "data": "data", "rank": "rank", "sizes": "dims"}),
    "Text": ("ByteSpan", {"data": "ptr", "size": "len"}),
    "Scalar": ("Scalar", {"type": "dtype", "value": "value"}),
    "Buffers": ("Args", {"size": "size", "kinds": "types", "buffers": "args"}),
    "Attributes": ("Attrs", {"size": "size", "kinds": "types", "names": "names", "values": "attrs"}),
    "Api": (
        "Api",
        {
            "version": "api_version",
            "create_error": "XLA_FFI_Error_Create",
            "get_stream": "XLA_FFI_Stream_Get",
            "get_device_ordinal": "XLA_FFI_DeviceOrdinal_Get",
        },
    ),
    "CallFrame": (
        "CallFrame",
        {"api": "api", "context": "ctx", "arguments": "args", "results": "rets", "attributes": "attrs"},
    ),
}
NUMBERS = {
    "kMetadataExtension": "Extension_Metadata",
    "kScalarAttribute": "AttrType_SCALAR",
    "kTextAttribute": "AttrType_STRING",
    "ErrorCode::cancelled": "Error_Code_CANCELLED",
    "ErrorCode::invalid_argument": "Error_Code_INVALID_ARGUMENT",
    "ErrorCode::unimplemented": "Error_Code_UNIMPLEMENTED",
    "ErrorCode::internal": "Error_Code_INTERNAL",
    "ElementType::boolean": "DataType_PRED",
    "ElementType::i32": "DataType_S32",
    "ElementType::i64": "DataType_S64",
    "ElementType::u8": "DataType_U8",
    "ElementType::u32": "DataType_U32",
    "ElementType::f16": "DataType_F16",
    "ElementType::f32": "DataType_F32",
    "ElementType::f64": "DataType_F64",
    "ElementType::bf16": "DataType_BF16",
    "ElementType::f8e4m3fn": "DataType_F8E4M3FN",
    "ElementType::f8e8m0fnu": "DataType_F8E8M0FNU",
}
SAME_SIZE = (
    "MetadataExtension",
    "ErrorCreateArguments",
    "StreamArguments",
    "OrdinalArguments",
    "Buffer",
    "Buffers",
    "Attributes",
)


def test_layouts_are_those_of_the_headers(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    assert set(re.findall(r"enum class \w+|k\w+(?= = )", HEADER.read_text())) >= {
        "kTextAttribute",
        "enum class ErrorCode",
    }
    checks = ["static_assert(XLA_FFI_API_MAJOR == ours::kMajorVersion);"]
    for name, (theirs, fields) in STRUCTS.items():
        checks += [
            f"static_assert(offsetof(ours::{name}, {own}) == offsetof(XLA_FFI_{theirs}, {field}));"
            for own, field in fields.items()
        ]
        if name in SAME_SIZE:
            checks.append(f"static_assert(sizeof(ours::{name}) == sizeof(XLA_FFI_{theirs}));")
    checks += [f"static_assert(static_cast<int>(ours::{own}) == XLA_FFI_{name});" for own, name in NUMBERS.items()]
    source = tmp_path / "layouts.cpp"
    lines = [
        '#include "xla/ffi/api/c_api.h"',
        f'#include "{HEADER}"',
        "namespace ours = tilewise::python::xla;",
        *checks,
    ]
    source.write_text("\n".join(lines) + "\n")
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        "-Wno-invalid-offsetof",
        f"-I{jax.ffi.include_dir()}",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
