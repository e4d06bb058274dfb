"""The libraries as python -m tilewise.bench calls them on a GPU, with stand-ins that compute by torch on the CPU."""

import csv
import sys
import weakref

import pytest
from bench_stand_ins import CHUNK, DECODE, SQUARE, counting_timer, on_cuda, torch
from bench_support import CSV_COLUMNS

from tilewise.bench import gpu_contenders
from tilewise.bench.ceilings import GpuCeilings
from tilewise.bench.contenders import RIVALS, Prepared, Tilewise, written_over_nan
from tilewise.bench.inputs import make_inputs
from tilewise.bench.rows import CsvFile
from tilewise.bench.runner import Settings, run_case


def run_all(case):
    """The rows of Tilewise and of every library as on a GPU, by library."""
    contenders = [Tilewise(), *(gpu_contenders.make_gpu_rival(name) for name in RIVALS)]
    assert [contender.missing() for contender in contenders] == [""] * 4
    settings = Settings(timer=counting_timer, ceilings=GpuCeilings(1.0, 1000.0), gpu="a GPU")
    rows = run_case(case, contenders, settings)
    return {row.library: row for row in rows}


@pytest.mark.usefixtures("fake_libraries", "cpu_as_cuda")
@pytest.mark.parametrize("shape", [CHUNK, DECODE, SQUARE], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_every_library_forward(shape, mask, layout):
    rows = run_all(on_cuda(shape, mask, layout=layout))
    for name in ("tilewise", "torch", "flash_attn"):
        assert rows[name].ok, rows[name]
        assert rows[name].median_us == pytest.approx(len(name))
    assert rows["torch"].implementation.upper() in gpu_contenders.TORCH_BACKENDS
    flashinfer = rows["flashinfer"]
    if layout == "bhsd":
        assert flashinfer.status == "unsupported: flashinfer takes batches in layout bshd alone (got bhsd)"
        assert flashinfer.implementation == ""
    else:
        assert flashinfer.ok, flashinfer
        assert flashinfer.version == "1.2.3"
        assert flashinfer.implementation == ("paged decode" if shape == DECODE else "ragged prefill")


@pytest.mark.usefixtures("fake_libraries", "cpu_as_cuda")
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_every_library_backward(mask):
    rows = run_all(on_cuda(CHUNK, mask, operation="backward"))
    for name in ("tilewise", "torch", "flash_attn"):
        assert rows[name].ok, rows[name]
    assert rows["flashinfer"].status == "unsupported: flashinfer has no backward pass"


@pytest.mark.usefixtures("fake_libraries", "cpu_as_cuda")
def test_rows_say_what_they_were_measured_on(tmp_path):
    row = run_all(on_cuda(SQUARE))["torch"]
    assert (row.case.device, row.gpu) == ("cuda", "a GPU")
    # 4 * 2 heads * 256 pairs * 8 flops by 1 TFLOP/s, which is longer than the traffic takes; 5 us.
    assert row.of_ceiling == pytest.approx(16384 / 1e12 / 5e-6)
    file = CsvFile(tmp_path / "rows.csv")
    file.write([row])
    file.close()
    with (tmp_path / "rows.csv").open(newline="") as stream:
        (written,) = csv.DictReader(stream)
    assert tuple(written) == CSV_COLUMNS
    assert written["gpu"] == "a GPU"


@pytest.mark.usefixtures("cpu_as_cuda")
def test_torchs_next_backend_takes_what_the_first_refuses(monkeypatch):
    case, asked = on_cuda(CHUNK), []

    real = gpu_contenders.Torch.prepare

    def prepare(self, case, inputs):
        asked.append([backend.name for backend in torch.nn.attention._cur_sdpa_kernel_backends()])
        if "FLASH_ATTENTION" in asked[-1]:
            raise RuntimeError("No available kernel. Aborting execution.")
        return real(self, case, inputs)

    monkeypatch.setattr(gpu_contenders.Torch, "prepare", prepare)
    contender = gpu_contenders.TorchOnGpu()
    prepared = contender.prepare(case, make_inputs(case))
    assert asked[0] == ["FLASH_ATTENTION"]
    assert len(asked) >= 2
    assert contender.implementation(case) == asked[-1][0].lower() != "flash_attention"
    assert prepared.results()[0].shape == (2, 5, 4, 8)


def test_what_is_missing_is_told(monkeypatch, fake_libraries):
    flash_attn, _ = fake_libraries
    del flash_attn.flash_attn_func  # as in a package that has its later generation alone
    assert "has no flash_attn_func: not measured" in gpu_contenders.make_gpu_rival("flash_attn").missing()
    monkeypatch.delitem(sys.modules, "flashinfer")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert gpu_contenders.make_gpu_rival("flashinfer").missing() == "flashinfer is not installed: not measured"


def test_a_broken_package_is_told(tmp_path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: x')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    missing = gpu_contenders.make_gpu_rival("flash_attn").missing()
    assert missing.endswith("can't be imported (undefined symbol: x): not measured")


def test_unwritten_results_stay_nan():
    kept = torch.ones(4)

    def results():
        kept[:3] = 1.0  # forgets the last
        return [kept]

    (written,) = written_over_nan(Prepared(results, results))
    assert written.isnan().tolist() == [False, False, False, True]


def test_nan_is_written_where_the_next_results_go():
    """An allocator gives a block out again only once nothing holds it."""
    lent = []

    def results():
        assert all(tensor() is None for tensor in lent)
        tensors = [torch.ones(4), torch.ones(4)]
        lent.extend(weakref.ref(tensor) for tensor in tensors)
        return tensors

    assert len(written_over_nan(Prepared(results, results))) == 2
    assert len(lent) == 4
