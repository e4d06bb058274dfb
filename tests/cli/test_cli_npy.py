"""The .npy reader and writer of the command: every flavour NumPy writes, and damaged files."""

from __future__ import annotations

import io
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

Q = np.random.default_rng(3).standard_normal((1, 5, 2, 8)).astype(np.float32)


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


def raw(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + header.encode() + data
    )


def head(descr: str = "'<f4'", order: str = "False", shape: str = "(1, 5, 2, 8)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@pytest.fixture
def attend(tilewise, tmp_path):
    """attend(bytes of q.npy, status=0): runs with k = v = Q; returns out, or the message."""

    def call(q: bytes, status: int = 0):
        (tmp_path / "q.npy").write_bytes(q)
        np.save(tmp_path / "k.npy", Q)
        files = ["--q", tmp_path / "q.npy", "--k", tmp_path / "k.npy", "--v", tmp_path / "k.npy"]
        done = tilewise("run", *files, "--out", tmp_path / "out.npy", status=status)
        return done.stderr if status else np.load(tmp_path / "out.npy")

    return call


@pytest.mark.parametrize(
    "data",
    [
        npy(Q, (1, 0)),
        npy(Q, (2, 0)),
        npy(Q, (3, 0)),
        npy(np.asfortranarray(Q)),
        raw("{\"shape\" :(1,5,2,8,),'fortran_order':False, 'descr' : '<f4'}", Q.tobytes()),
        raw(" \n" + head(), Q.tobytes(), version=2),
    ],
    ids=["v1", "v2", "v3", "fortran", "order_and_quotes", "odd_offset"],
)
def test_flavours_read_alike(attend, data):
    np.testing.assert_array_equal(attend(data), attend(npy(Q)))


def test_written_files_are_plain(tilewise, attend, tmp_path):
    attend(npy(Q))
    data = (tmp_path / "out.npy").read_bytes()
    assert data.startswith(b"\x93NUMPY\x01\x00")
    assert (len(data) - Q.nbytes) % 64 == 0
    assert np.load(io.BytesIO(data)).shape == Q.shape


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", [".npy", "''"]),
        (b"\x93NUMP", ["must begin with"]),
        (b"PK\x03\x04 a zip file", ["must begin with", "PK\\x03\\x04"]),
        (b"\x93NUMPY", ["longer", "6 bytes"]),
        (b"\x93NUMPY\x01\x00\x10", ["longer", "9 bytes"]),
        (b"\x93NUMPY\x04\x00" + npy(Q)[8:], ["version", "4.0"]),
        (npy(Q)[:40], ["header", "long"]),
        (npy(Q)[:-1], ["data", "320", "319"]),
        (npy(Q) + b"!", ["data", "320", "321"]),
        (raw("", version=2, length=0xFFFFFFFF), ["header length", "65536", "4294967295"]),
        (raw(head("'>f4'"), Q.tobytes()), ["dtype", "<f4", ">f4"]),
        (raw(head("'<c8'"), Q.tobytes()), ["dtype", "<c8"]),
        (raw(head("'|O'"), Q.tobytes()), ["dtype", "|O"]),
        (raw(head("'<M8[ns]'"), Q.tobytes()), ["dtype", "<M8[ns]"]),
        (raw(head("[('a', '<f4')]"), Q.tobytes()), ["dtype", "structured"]),
        (raw(head(order="Maybe"), Q.tobytes()), ["header", "fortran_order", "Maybe"]),
        (raw(head(shape="(1, -5)"), Q.tobytes()), ["header", "shape", "-5"]),
        (raw(head(shape="(1, 5.0)"), Q.tobytes()), ["header"]),
        (raw(head(shape="(99999999999999999999,)"), b""), ["header", "shape", "99999999999999999999"]),
        (raw(head(shape="(4611686018427387904, 4)"), b""), ["shape", "2^63", "4611686018427387904"]),
        (raw(head(shape="(0, 4611686018427387904, 8)"), b""), ["shape", "2^63"]),
        (raw(head(shape="(1, 1, 1, 1, 1, 1, 1)"), b"\0" * 4), ["rank", "6"]),
        (raw(head(shape="(1099511627776,)"), b"\0" * 4), ["data", "4398046511104", "4"]),
        (raw("{'descr': '<f4', 'fortran_order': False}"), ["header", "shape"]),
        (raw("{'descr': '<f4', 'descr': '<f4'}"), ["header", "once", "descr"]),
        (raw("{'descr': '<f4', 'flavour': 'sweet'}"), ["header", "flavour"]),
        (raw("{'descr"), ["header", "closed strings"]),
        (raw(head() + "import os"), ["header", "nothing after", "import os"]),
        (raw("[1, 2]"), ["header", "dict"]),
    ],
)
def test_damaged_files(attend, data, words):
    message = attend(data, status=2)
    assert "q.npy: " in message
    for word in words:
        assert word in message, message


def test_files_that_are_not_there(tilewise, tmp_path):
    np.save(tmp_path / "k.npy", Q)
    rest = ["--k", tmp_path / "k.npy", "--v", tmp_path / "k.npy", "--out", tmp_path / "out.npy"]
    missing = tilewise("run", "--q", tmp_path / "none.npy", *rest, status=2)
    assert "none.npy: must be readable" in missing.stderr
    assert "No such file" in missing.stderr
    assert "directory" in tilewise("run", "--q", tmp_path, *rest, status=2).stderr
    assert "device" in tilewise("run", "--q", "/dev/zero", *rest, status=2).stderr


def test_pipes_are_read(tilewise, tmp_path):
    np.save(tmp_path / "k.npy", Q)
    pipe = tmp_path / "q.npy"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: Path(pipe).write_bytes(npy(Q)))
    writer.start()
    tilewise("run", "--q", pipe, "--k", tmp_path / "k.npy", "--v", tmp_path / "k.npy", "--out", tmp_path / "out.npy")
    writer.join()
    assert np.load(tmp_path / "out.npy").shape == Q.shape
